// Attention over paged K and V, read in place. Plain structs for kernels, one interface for
// backends.
#ifndef QUIRE_ATTENTION_H_
#define QUIRE_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "quire/env.h"
#include "quire/error.h"
#include "quire/geometry.h"

namespace [[gnu::visibility("default")]] quire {

/// Which axis of a block's [token, dim] plane is contiguous in memory.
enum class InnerAxis : uint8_t {
  kToken = 1,  // [dim][token]: K, so that a vector of scores is a vector of tokens
  kDim = 2,    // [token][dim]: V
};

/// Where one stream of one layer lies inside a slot: [head][plane], plane as `inner` says; the
/// planes of codecs that encode are in docs/codecs.md.
struct StreamLayout {
  Codec codec = Codec::kF32;
  InnerAxis inner = InnerAxis::kDim;
  uint32_t heads = 0;
  uint32_t dim = 0;
  uint32_t block_tokens = 0;
  uint64_t offset_bytes = 0;       // of head 0 from the slot's first byte
  uint64_t head_stride_bytes = 0;  // from one head's plane to the next
  // Codecs that encode: per head block_tokens f16 scales, then as many f16 mids if it has them.
  uint64_t scale_offset_bytes = 0;
  uint64_t scale_head_stride_bytes = 0;
  bool rotated = false;  // rows passed the rotation of docs/codecs.md, in the open form too
};

/// What all tasks of one call share.
struct AttentionShape {
  uint32_t query_heads = 0;  // a multiple of key.heads
  StreamLayout key{};
  StreamLayout value{};        // same heads and block_tokens as key; dim may differ
  StreamLayout open_key{};     // of the blocks that a row reads open; heads 0: as key
  StreamLayout open_value{};   // likewise
  uint32_t open_blocks = 0;    // whole blocks before its own that a row reads open too
  float scale = 0.0f;          // multiplies q before the dot product
  uint32_t window_tokens = 0;  // 0: full attention
  uint32_t sink_tokens = 0;    // with a window: first tokens that stay visible
};

/// One run of consecutive query rows of one sequence; row r stands at position first_position + r
/// and sees the tokens up to and including its own.
struct AttentionTask {
  const float* queries = nullptr;  // [rows, query_heads, key.dim]
  float* out = nullptr;            // [rows, query_heads, value.dim]
  uint32_t rows = 0;
  uint64_t first_position = 0;
  /// Slot of every block up to the one of the last row. A row reads its own block and
  /// `open_blocks` before it from `open`, every earlier one from `sealed`; codecs that store values
  /// as they are give the same pointers twice.
  const std::byte* const* sealed = nullptr;  // [blocks]
  const std::byte* const* open = nullptr;    // [blocks]
};

/// An implementation of attention on one kind of device. All of them follow docs/numerics.md; those
/// of one arithmetic class give the same bits.
class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;

  /// "cpu", "cuda".
  virtual std::string_view name() const = 0;
  /// Instruction set in use: "avx2", "avx3", "judge".
  virtual std::string_view target() const = 0;
  /// Errors: kUnsupported names the field this backend cannot do; kInvalidArgument a shape that is
  /// inconsistent (heads that do not divide, block_tokens not a power of two in 16..256, dim 0).
  virtual Result<void> Supports(const AttentionShape& shape) const = 0;
  /// Computes every task. The shape must be supported; a task outside its blocks is a bug.
  ///
  /// Threads: work runs on `executor`; tasks must not overlap in `out`
  /// Cost:    no allocation that grows with the context: scratch is one chunk per worker at most
  virtual void Attend(const AttentionShape& shape, std::span<const AttentionTask> tasks,
                      Executor& executor) = 0;
};

/// The CPU backend for this machine's best target; kUnsupported when the CPU has no FMA.
/// One per thread of control: it owns scratch, so calls to Attend must not overlap.
Result<std::unique_ptr<AttentionBackend>> MakeCpuAttention();

/// The scalar judge: the order of docs/numerics.md in plain loops. Slow; the measure of every
/// other.
std::unique_ptr<AttentionBackend> MakeJudgeAttention();

}  // namespace quire

#endif  // QUIRE_ATTENTION_H_
