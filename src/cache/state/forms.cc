#include "cache/state/forms.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

namespace quire::cache {
namespace {

uint64_t HeadValues(const StreamLayout& stream) {
  return uint64_t{stream.block_tokens} * stream.dim;
}

/// [head][token][dim], as they were encoded: a rotation changes no error.
std::span<const float> ReadAll(BlockOps& ops, StreamLayout stream, const std::byte* block,
                               std::vector<float>& out) {
  stream.rotated = false;
  out.resize(stream.heads * HeadValues(stream));
  ops.ReadRows(stream, block, {.begin = 0, .count = stream.block_tokens}, out.data(),
               static_cast<int64_t>(HeadValues(stream)));
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

/// The largest that error_of(stream, other) returns for the same streams of two layouts.
template <typename ErrorOf>
FormError LargestOf(const codec::SlotLayout& layout, const codec::SlotLayout& other,
                    const ErrorOf& error_of) {
  FormError error;
  for (uint32_t layer = 0; layer < layout.layer_count(); ++layer) {
    error.key = std::max(error.key, error_of(layout.key(layer), other.key(layer)));
    if (layout.geometry_group(layer).streams.size() < 2) continue;  // one latent
    error.value = std::max(error.value, error_of(layout.value(layer), other.value(layer)));
  }
  return error;
}

// As an engine writes them, into a block that has nothing but this stream.
StreamLayout WriteOpen(BlockOps& ops, const StreamLayout& like, std::span<const float> values,
                       std::vector<float>& block) {
  const uint64_t head_values = HeadValues(like);
  const StreamLayout open = {.codec = Codec::kF32,
                             .inner = like.inner,
                             .heads = like.heads,
                             .dim = like.dim,
                             .block_tokens = like.block_tokens,
                             .head_stride_bytes = head_values * sizeof(float)};
  block.resize(values.size());
  const RowsView rows = {.data = values.data(),
                         .token_stride = static_cast<int64_t>(like.dim),
                         .head_stride = static_cast<int64_t>(head_values)};
  ops.WriteRows(open, rows, 0, {.begin = 0, .count = like.block_tokens},
                reinterpret_cast<std::byte*>(block.data()));
  return open;
}

}  // namespace

FormError MeasureError(BlockOps& ops, const Form& written, const Form& encoded) {
  std::vector<float> before;
  std::vector<float> after;
  return LargestOf(written.layout, encoded.layout,
                   [&](const StreamLayout& from, const StreamLayout& to) {
                     const auto values = ReadAll(ops, from, written.bytes, before);
                     const auto others = ReadAll(ops, to, encoded.bytes, after);
                     static_cast<void>(ops.Synchronize());  // host memory: it cannot fail
                     return RelativeError(values, others);
                   });
}

FormError Reencode(BlockOps& ops, const Form& from, const codec::SlotLayout& layout,
                   std::byte* to) {
  std::vector<float> before;
  std::vector<float> after;
  std::vector<float> block;
  return LargestOf(from.layout, layout, [&](const StreamLayout& old, const StreamLayout& stream) {
    const auto values = ReadAll(ops, old, from.bytes, before);
    static_cast<void>(ops.Synchronize());  // host memory: it cannot fail
    const StreamLayout open = WriteOpen(ops, old, values, block);
    ops.Encode(open, reinterpret_cast<const std::byte*>(block.data()), stream, to);
    const auto others = ReadAll(ops, stream, to, after);
    static_cast<void>(ops.Synchronize());
    return RelativeError(values, others);
  });
}

}  // namespace quire::cache
