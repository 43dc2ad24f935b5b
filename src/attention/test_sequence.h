// A paged sequence for tests: sanitizers see reads beyond a block's slot, unwritten bytes are NaN,
// invisible blocks have no slot.
#ifndef QUIRE_ATTENTION_TEST_SEQUENCE_H_
#define QUIRE_ATTENTION_TEST_SEQUENCE_H_

#include <hwy/highway.h>
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attention/kernels.h"
#include "attention/reference.h"
#include "attention/shape.h"
#include "base/bits.h"
#include "base/check.h"
#include "base/prng.h"
#include "codec/scalar.h"
#include "codec/test_util.h"
#include "quire/attention.h"

namespace quire::attention {

struct TestShape {
  uint32_t kv_heads = 1;
  uint32_t group = 1;
  uint32_t key_dim = 16;
  uint32_t value_dim = 16;
  uint32_t block_tokens = 16;
  Codec key_codec = Codec::kF16;
  Codec value_codec = Codec::kF16;
  uint32_t window_tokens = 0;
  uint32_t sink_tokens = 0;
  InnerAxis key_inner = InnerAxis::kToken;
  bool rotated = false;
  Codec open_codec = Codec::kF16;  // of blocks that are read open, where K or V is encoded
  uint32_t open_blocks = 0;
  bool has_sinks = false;  // sink logits, of which some are -infinity
  bool has_slopes = false;
};

/// A number for each query head of any test shape: from -3 to 3, every fifth -infinity.
inline const float* TestSinkLogits() {
  static const std::vector<float> logits = [] {
    Prng prng(17);
    std::vector<float> made(256);
    for (size_t h = 0; h < made.size(); ++h) {
      const float logit = prng.NextFloat(-3.0f, 3.0f);
      made[h] = h % 5 == 4 ? -std::numeric_limits<float>::infinity() : logit;
    }
    return made;
  }();
  return logits.data();
}

/// Likewise: from 1 down, no powers of two.
inline const float* TestSlopes() {
  static const std::vector<float> slopes = [] {
    std::vector<float> made(256);
    for (size_t h = 0; h < made.size(); ++h) made[h] = 1.0f / (1.0f + 3.0f * static_cast<float>(h));
    return made;
  }();
  return slopes.data();
}

/// First byte of a slot behind a stream.
inline uint64_t StreamEnd(const StreamLayout& stream) {
  return stream.scale_offset_bytes + stream.heads * stream.scale_head_stride_bytes;
}

inline AttentionShape MakeShape(const TestShape& test) {
  const auto stream = [&](Codec codec, InnerAxis inner, uint32_t dim, uint64_t offset_bytes) {
    StreamLayout layout{.codec = codec,
                        .inner = inner,
                        .heads = test.kv_heads,
                        .dim = dim,
                        .block_tokens = test.block_tokens,
                        .offset_bytes = offset_bytes};
    layout.head_stride_bytes = codec::PlaneBytes(codec, inner, dim, test.block_tokens);
    layout.scale_offset_bytes = offset_bytes + test.kv_heads * layout.head_stride_bytes;
    layout.scale_head_stride_bytes = codec::ScaleBytes(codec, test.block_tokens);
    layout.rotated = test.rotated;
    return layout;
  };
  AttentionShape shape;
  shape.query_heads = test.kv_heads * test.group;
  shape.key = stream(test.key_codec, test.key_inner, test.key_dim, 64);
  shape.value =
      stream(test.value_codec, InnerAxis::kDim, test.value_dim, RoundUp(StreamEnd(shape.key), 64));
  if (!IsIdentity(test.key_codec) || !IsIdentity(test.value_codec)) {
    shape.open_key = stream(test.open_codec, test.key_inner, test.key_dim, 0);
    shape.open_value = stream(test.open_codec, InnerAxis::kDim, test.value_dim,
                              RoundUp(StreamEnd(shape.open_key), 64));
  }
  shape.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.key.dim)));
  shape.window_tokens = test.window_tokens;
  shape.sink_tokens = test.sink_tokens;
  shape.open_blocks = test.open_blocks;
  if (test.has_sinks) shape.sink_logits = TestSinkLogits();
  if (test.has_slopes) shape.alibi_slopes = TestSlopes();
  return shape;
}

/// The shape of the layer whose streams follow those of `shape` in their slots.
inline AttentionShape LayerAfter(const AttentionShape& shape) {
  const uint64_t bytes = RoundUp(std::max(StreamEnd(shape.value), StreamEnd(shape.open_value)), 64);
  AttentionShape after = shape;
  for (StreamLayout* stream : {&after.key, &after.value, &after.open_key, &after.open_value}) {
    stream->offset_bytes += bytes;
    stream->scale_offset_bytes += bytes;
  }
  return after;
}

/// Gives value (stream 0 = K, 1 = V; head; token; d).
using ValueOf = std::function<float(int stream, uint32_t head, uint64_t token, uint32_t d)>;

/// Memory of the slots of every test sequence of a program, in which slots of all sizes have one
/// stride, so that sequences of any shapes can be in one call.
class TestArena {
 public:
  static constexpr uint64_t kStrideBytes = 64;

  static TestArena& Get() {
    static TestArena arena;
    return arena;
  }

  std::byte* base() const { return base_; }
  /// Of all slots so far, from base() on.
  uint64_t used_bytes() const { return end_bytes_; }

  /// The number of a slot of exactly so many bytes, all of them 0xff; those behind it belong to no
  /// block.
  uint32_t Add(uint64_t bytes) {
    const uint64_t used_bytes = RoundUp(bytes, kStrideBytes) + kStrideBytes;
    QUIRE_CHECK(end_bytes_ + used_bytes <= kBytes);
    std::byte* const slot = base_ + end_bytes_;
    ASAN_UNPOISON_MEMORY_REGION(slot, bytes);
    std::memset(slot, 0xff, bytes);
    ASAN_POISON_MEMORY_REGION(slot + bytes, used_bytes - bytes);
    const auto number = static_cast<uint32_t>(end_bytes_ / kStrideBytes);
    end_bytes_ += used_bytes;
    return number;
  }
  /// The memory is used anew once no sequence is left.
  void Enter() { ++sequences_; }
  void Leave() {
    if (--sequences_ == 0) end_bytes_ = 0;
  }

 private:
  static constexpr uint64_t kBytes = uint64_t{8} << 30;

  TestArena() {
    void* const mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0);
    QUIRE_CHECK(mapped != MAP_FAILED);
    base_ = static_cast<std::byte*>(mapped);
  }

  std::byte* base_ = nullptr;
  uint64_t end_bytes_ = 0;
  uint32_t sequences_ = 0;
};

class TestSequence {
 public:
  /// The tokens [0, tokens) of every head. With `two_forms` a block's open form holds other values
  /// than its sealed one (by 0.5).
  TestSequence(const AttentionShape& shape, uint64_t tokens, bool two_forms,
               const ValueOf& value_of)
      : shape_(shape), tokens_(tokens) {
    TestArena& arena = TestArena::Get();
    arena.Enter();
    const uint64_t blocks = (tokens + shape.key.block_tokens - 1) / shape.key.block_tokens;
    two_forms = two_forms_ = two_forms || HasOpenForm(shape);
    for (uint64_t b = 0; b < blocks; ++b) {
      for (int form = 0; form < (two_forms ? 2 : 1); ++form) {
        const StreamLayout& key = form == 1 ? OpenKey(shape) : shape.key;
        const StreamLayout& value = form == 1 ? OpenValue(shape) : shape.value;
        const uint32_t number = arena.Add(StreamEnd(value));
        std::byte* const slot = arena.base() + number * TestArena::kStrideBytes;
        Fill(key, 0, b, form == 1 ? 0.5f : 0.0f, value_of, slot);
        Fill(value, 1, b, form == 1 ? 0.5f : 0.0f, value_of, slot);
        (form == 1 ? open_ : sealed_).push_back(number);
      }
    }
    if (!two_forms) open_ = sealed_;
    indptr_[1] = blocks;
  }

  TestSequence(const AttentionShape& shape, uint64_t tokens, bool two_forms, Prng* prng)
      : TestSequence(shape, tokens, two_forms, [prng](int, uint32_t, uint64_t, uint32_t) {
          return prng->NextFloat(-1.0f, 1.0f);
        }) {}

  ~TestSequence() { TestArena::Get().Leave(); }
  TestSequence(const TestSequence&) = delete;
  TestSequence& operator=(const TestSequence&) = delete;

  uint64_t tokens() const { return tokens_; }

  /// Writes the streams of another layer, which end before those of this one, into its slots.
  void AddLayer(const AttentionShape& layer, Prng* prng) {
    const ValueOf value_of = [prng](int, uint32_t, uint64_t, uint32_t) {
      return prng->NextFloat(-1.0f, 1.0f);
    };
    for (uint64_t b = 0; b < sealed_.size(); ++b) {
      for (int form = 0; form < (two_forms_ ? 2 : 1); ++form) {
        std::byte* const slot =
            TestArena::Get().base() + (form == 1 ? open_ : sealed_)[b] * TestArena::kStrideBytes;
        Fill(form == 1 ? OpenKey(layer) : layer.key, 0, b, 0.0f, value_of, slot);
        Fill(form == 1 ? OpenValue(layer) : layer.value, 1, b, 0.0f, value_of, slot);
      }
    }
  }

  /// Its first blocks become those of `other`, which has to stay.
  void ShareFirst(const TestSequence& other, uint64_t blocks) {
    std::copy_n(other.sealed_.begin(), blocks, sealed_.begin());
    std::copy_n(other.open_.begin(), blocks, open_.begin());
  }

  /// Removes every block that rows from `first_position` on do not see, and of the others the form
  /// in which none of them reads it.
  void DropInvisible(uint64_t first_position) {
    const uint32_t block_tokens = shape_.key.block_tokens;
    for (uint64_t b = 0; b < sealed_.size(); ++b) {
      bool read_open = false;
      bool read_sealed = false;
      for (uint64_t t = b * block_tokens; t < (b + 1) * block_tokens && t < tokens_; ++t) {
        for (uint64_t p = std::max(first_position, t); p < tokens_; ++p) {
          const bool seen =
              shape_.window_tokens == 0 || t + shape_.window_tokens > p || t < shape_.sink_tokens;
          const bool is_open = IsReadOpen(shape_, p, b, IsInOpen(b));
          (is_open ? read_open : read_sealed) |= seen;
        }
      }
      if (!read_open && (two_forms_ || !read_sealed)) open_[b] = kNoSlot;
      if (!read_sealed && (two_forms_ || !read_open)) sealed_[b] = kNoSlot;
    }
  }

  /// Of a ladder: whether a block has its open form. In each split none, some or all of the last.
  bool IsInOpen(uint64_t block) const {
    const uint64_t blocks_per_split = kSplitTokens / shape_.key.block_tokens;
    const uint64_t split = block / blocks_per_split;
    return block % blocks_per_split >= split * 7 % 5 * blocks_per_split / 4;
  }

  /// Row 0 is the sequence.
  BlockTables tables() const { return {.sealed = TableOf(sealed_), .open = TableOf(open_)}; }

  AttentionTask Task(uint64_t first_position, uint32_t rows, const float* queries,
                     float* out) const {
    QUIRE_CHECK(first_position + rows <= tokens_);
    return {.queries = queries, .out = out, .rows = rows, .first_position = first_position};
  }

 private:
  BlockTable TableOf(const std::vector<uint32_t>& slots) const {
    return {.base = TestArena::Get().base(),
            .slot_stride_bytes = TestArena::kStrideBytes,
            .sequences = 1,
            .indptr = indptr_,
            .slots = slots.data()};
  }

  void Fill(const StreamLayout& layout, int stream, uint64_t block, float shift,
            const ValueOf& value_of, std::byte* slot) const {
    std::vector<float> values(layout.dim);
    std::vector<uint8_t> codes(codec::CodeCount(layout.codec, layout.inner, layout.dim));
    for (uint32_t h = 0; h < layout.heads; ++h) {
      for (uint32_t t = 0; t < layout.block_tokens; ++t) {
        const uint64_t token = block * layout.block_tokens + t;
        if (token >= tokens_) break;
        for (uint32_t d = 0; d < layout.dim; ++d) values[d] = value_of(stream, h, token, d) + shift;
        if (IsIdentity(layout.codec)) {
          StoreValues(layout, h, t, values, slot);
          continue;
        }
        const codec::TokenScale scale =
            codec::EncodeToken(layout.codec, layout.inner, values, codes);
        std::byte* scales = slot + codec::ScaleAt(layout, h, t);
        std::memcpy(scales, &scale.scale, 2);
        if (codec::HasMids(layout.codec)) {
          std::memcpy(scales + uint64_t{layout.block_tokens} * 2, &scale.mid, 2);
        }
        StoreCodes(layout, h, t, codes, slot);
      }
    }
  }

  static void StoreValues(const StreamLayout& layout, uint32_t head, uint32_t token,
                          const std::vector<float>& values, std::byte* slot) {
    std::byte* plane = slot + layout.offset_bytes + head * layout.head_stride_bytes;
    for (uint32_t d = 0; d < layout.dim; ++d) {
      const uint64_t index = layout.inner == InnerAxis::kToken
                                 ? uint64_t{d} * layout.block_tokens + token
                                 : uint64_t{token} * layout.dim + d;
      codec::StoreValue(layout.codec, values[d], plane, index);
    }
  }

  static void StoreCodes(const StreamLayout& layout, uint32_t head, uint32_t token,
                         const std::vector<uint8_t>& codes, std::byte* slot) {
    std::byte* plane = slot + layout.offset_bytes + head * layout.head_stride_bytes;
    for (uint32_t i = 0; i < codes.size(); ++i) {
      codec::StoreCode(layout, token, i, codes[i], plane);
    }
  }

  AttentionShape shape_;
  uint64_t tokens_;
  bool two_forms_ = false;
  std::vector<uint32_t> sealed_;
  std::vector<uint32_t> open_;
  uint64_t indptr_[2] = {0, 0};
};

inline void Attend(AttentionBackend& backend, const AttentionShape& shape,
                   const BlockTables& tables, std::span<const AttentionTask> tasks,
                   Executor& executor) {
  const Result<void> done = backend.Attend(shape, tables, tasks, executor);
  QUIRE_CHECK_MSG(done.has_value(), done.error().message);
}

inline std::vector<float> RandomFloats(size_t count, Prng* prng) {
  std::vector<float> values(count);
  for (float& value : values) value = prng->NextFloat(-2.0f, 2.0f);
  return values;
}

/// The CPU backend on each target this machine can run. Empty without FMA.
inline std::vector<std::unique_ptr<AttentionBackend>> AllTargets() {
  std::vector<std::unique_ptr<AttentionBackend>> backends;
  const int64_t supported = hwy::SupportedTargets();
  for (const int64_t target : {HWY_AVX2, HWY_AVX3, HWY_AVX3_DL}) {
    if ((supported & target) == 0) continue;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    const Kernels* const kernels = BestKernels(false);
    if (kernels != nullptr) backends.push_back(MakeAttention(*kernels));
    if (BestKernels() != kernels) backends.push_back(MakeAttention(*BestKernels()));
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  return backends;
}

}  // namespace quire::attention

#endif  // QUIRE_ATTENTION_TEST_SEQUENCE_H_
