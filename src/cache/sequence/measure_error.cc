#include "cache/sequence/measure_error.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

namespace quire::cache {
namespace {

std::span<const float> ReadAll(BlockOps& ops, const StreamLayout& stream, const std::byte* slot,
                               std::vector<float>& out) {
  const uint64_t head_stride = uint64_t{stream.block_tokens} * stream.dim;
  out.resize(stream.heads * head_stride);
  ops.ReadRows(stream, slot, {.begin = 0, .count = stream.block_tokens}, out.data(),
               static_cast<int64_t>(head_stride));
  return out;
}

// Values that are not finite have no error that a request could accept.
float RelativeError(std::span<const float> written, std::span<const float> encoded) {
  double noise = 0.0;
  double signal = 0.0;
  for (size_t i = 0; i < written.size(); ++i) {
    const double difference = double{encoded[i]} - double{written[i]};
    noise += difference * difference;
    signal += double{written[i]} * double{written[i]};
  }
  if (noise == 0.0) return 0.0f;
  return FormError{.key = static_cast<float>(std::sqrt(noise / signal))}.Checked().key;
}

}  // namespace

FormError MeasureError(const LockedState& cache, SlotId open_slot, SlotId sealed_slot) {
  const codec::SlotLayout& sealed = cache.layout();
  const codec::SlotLayout& open = cache.open_layout();
  BlockOps& ops = cache.slots().ops();
  std::vector<float> written;
  std::vector<float> encoded;
  const auto error_of = [&](const StreamLayout& from, const StreamLayout& to) {
    const auto before = ReadAll(ops, from, cache.slots().data(open_slot), written);
    const auto after = ReadAll(ops, to, cache.slots().data(sealed_slot), encoded);
    static_cast<void>(ops.Synchronize());  // host memory: nothing can have failed
    return RelativeError(before, after);
  };
  FormError error;
  for (uint32_t layer = 0; layer < sealed.layer_count(); ++layer) {
    error.key = std::max(error.key, error_of(open.key(layer), sealed.key(layer)));
    if (sealed.geometry_group(layer).streams.size() < 2) continue;  // one latent
    error.value = std::max(error.value, error_of(open.value(layer), sealed.value(layer)));
  }
  return error;
}

}  // namespace quire::cache
