#include "bench/sequence.h"

#include <algorithm>
#include <cstring>

#include "base/prng.h"
#include "codec/scalar.h"

namespace quire::bench {
namespace {

void Repeat(const std::vector<std::byte>& pattern, std::byte* to, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += pattern.size()) {
    std::memcpy(to + at, pattern.data(), std::min<uint64_t>(pattern.size(), bytes - at));
  }
}

}  // namespace

void DecodedSequence::Fill() {
  constexpr uint64_t kPatternBytes = 1 << 17;
  const Codec codec = layout_.key(0).codec;
  std::vector<std::byte> codes(kPatternBytes);
  std::vector<std::byte> f16_values(kPatternBytes);
  Prng prng(1);
  for (std::byte& code : codes) code = std::byte(prng.Next64() & 0xb7);  // fp8: no NaN, no Inf
  if (IsIdentity(codec)) {
    for (uint64_t i = 0; i < kPatternBytes / codec::ValueBytes(codec); ++i) {
      codec::StoreValue(codec, prng.NextFloat(-1.0f, 1.0f), codes.data(), i);
    }
  }
  for (uint64_t i = 0; i < kPatternBytes / 2; ++i) {
    codec::StoreValue(Codec::kF16, prng.NextFloat(0.01f, 0.02f), f16_values.data(), i);
  }
  for (const uint32_t slot : slots_) {
    std::byte* const to = arena_->base() + slot * layout_.slot_bytes(0);
    Repeat(IsIdentity(codec) ? codes : f16_values, to, layout_.slot_bytes(0));
    if (IsIdentity(codec)) continue;
    for (uint32_t layer = 0; layer < layers(); ++layer) {
      for (const StreamLayout* stream : {&layout_.key(layer), &layout_.value(layer)}) {
        Repeat(codes, to + stream->offset_bytes, stream->heads * stream->head_stride_bytes);
      }
    }
  }
}

std::vector<float> Queries(uint32_t rows, uint32_t group) {
  Prng prng(2);
  std::vector<float> queries(size_t{rows} * kKvHeads * group * kHeadDim);
  for (float& value : queries) value = prng.NextFloat(-2.0f, 2.0f);
  return queries;
}

}  // namespace quire::bench
