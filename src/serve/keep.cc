#include "serve/keep.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/mass.h"
#include "base/bits.h"

namespace quire::serve {

std::string_view KeepByName(KeepBy by) {
  switch (by) {
    case KeepBy::kObserved: return "observed";
    case KeepBy::kAccumulated: return "accumulated";
    case KeepBy::kRecent: return "recent";
  }
  return "unknown";
}

void KeepObserver::OnAttention(uint32_t, const AttentionShape& shape, const AttentionTask& task,
                               Executor& executor) {
  const uint64_t end = task.first_position + task.rows;
  if (end <= from_) return;
  AttentionTask counted = task;
  const uint64_t skipped = from_ - std::min(from_, task.first_position);
  counted.queries += skipped * shape.query_heads * shape.key.dim;
  counted.first_position += skipped;
  counted.rows -= static_cast<uint32_t>(skipped);
  mass_.resize(std::max<size_t>(mass_.size(), DivUp(end, shape.key.block_tokens)));
  attention::AddAttentionMass(shape, counted, executor, mass_);
}

std::vector<uint64_t> BlocksToKeep(const KeepOptions& options, uint64_t whole_blocks,
                                   uint32_t block_tokens, std::span<const double> mass) {
  const auto wanted =
      static_cast<uint64_t>(std::ceil(options.share * static_cast<double>(whole_blocks)));
  const uint64_t at_end =
      options.by == KeepBy::kObserved ? DivUp(options.observe_tokens, block_tokens) : 1;
  std::vector<uint64_t> blocks(whole_blocks);
  std::iota(blocks.begin(), blocks.end(), 0);
  // Sinks, then the end, then what is worth most.
  const auto rank = [&](uint64_t block) {
    return block < options.sink_blocks ? 0 : whole_blocks - block <= at_end ? 1 : 2;
  };
  const auto worth = [&](uint64_t block) {
    if (options.by == KeepBy::kRecent || block >= mass.size()) return 0.0;
    return mass[block];
  };
  std::ranges::sort(blocks, [&](uint64_t a, uint64_t b) {
    if (rank(a) != rank(b)) return rank(a) < rank(b);
    if (worth(a) != worth(b)) return worth(a) > worth(b);
    return a > b;
  });
  blocks.resize(std::min(wanted, whole_blocks));
  std::ranges::sort(blocks);
  return blocks;
}

}  // namespace quire::serve
