#include "evict/batch_size.h"

#include <algorithm>

namespace quire::evict {
namespace {

constexpr double kNew = 1.0 / 16;  // weight of the latest request

}  // namespace

uint64_t BatchSize::Next(uint64_t needed, uint64_t unused, uint64_t capacity) {
  const bool is_tight = needed > unused;
  pressure_ += kNew * ((is_tight ? 1.0 : 0.0) - pressure_);
  if (!is_tight) return 0;
  demand_ += kNew * (static_cast<double>(needed) - demand_);
  const auto in_advance = static_cast<uint64_t>(pressure_ * demand_);
  return needed - unused + std::min(in_advance, capacity / 8);
}

}  // namespace quire::evict
