// Reading the cache in place: leases that pin blocks, and views that carry pointer, shape and
// strides.
#ifndef QUIRE_VIEW_H_
#define QUIRE_VIEW_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "quire/attention.h"
#include "quire/env.h"
#include "quire/error.h"
#include "quire/geometry.h"
#include "quire/ids.h"

namespace quire::cache {
class Core;
}

namespace [[gnu::visibility("default")]] quire {

class BlockListView;
class UnleasedView;

/// Move-only pin on slots: while it lives they are neither evicted, moved nor reused.
///
/// Threads:  may be released on any thread; one lease is used by one thread at a time
/// Lifetime: the cache must outlive it
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease();

  bool empty() const { return slots_.empty(); }
  uint32_t block_count() const { return static_cast<uint32_t>(slots_.size()); }

  /// Drops the pins once `fence` is done (null: now). Nobody waits: what is pinned stays so until a
  /// call on the cache finds the fence done. Destroying the cache waits for it.
  ///
  /// Errors: none; without memory to remember the fence it is waited for
  void Release(std::shared_ptr<Fence> fence = nullptr);

 private:
  friend class cache::Core;
  friend class BlockListView;
  Lease(cache::Core* core, std::vector<SlotId> slots);

  cache::Core* core_ = nullptr;
  std::vector<SlotId> slots_;  // each holds one reference in the pool
};

/// A strided array in place, as DLPack would describe it. Read-only.
struct TensorView {
  const void* data = nullptr;
  Codec dtype = Codec::kF32;
  uint32_t rank = 0;
  std::array<int64_t, 5> shape{};    // [rank]
  std::array<int64_t, 5> strides{};  // [rank], in elements
  std::string_view device{};         // "cpu", or the name of the cache's memory
};

/// Tokens of a sequence.
struct TokenRange {
  uint64_t begin = 0;
  uint64_t end = UINT64_MAX;  // after the last; may lie beyond what is written
};

/// One stream of one layer of one sequence: a list of blocks in token order, pinned while it lives.
class BlockListView {
 public:
  BlockListView(StreamLayout layout, uint64_t first_token, uint64_t tokens,
                std::vector<const std::byte*> slots, Lease lease)
      : layout_(layout),
        first_token_(first_token),
        tokens_(tokens),
        slots_(std::move(slots)),
        lease_(std::move(lease)) {}

  const StreamLayout& layout() const { return layout_; }
  /// Of the sequence, the first that is shown: a multiple of block_tokens.
  uint64_t first_token() const { return first_token_; }
  /// Tokens readable from there on; the last block may be partial.
  uint64_t tokens() const { return tokens_; }
  uint32_t block_count() const { return static_cast<uint32_t>(slots_.size()); }
  /// Slots in token order; null for blocks that the layer's window has passed.
  std::span<const std::byte* const> slots() const { return slots_; }
  /// All blocks as one array in place, where they lie equally far apart: always in a sequence that
  /// is contiguous. In a head-major arena [heads, tokens, dim], elsewhere [blocks, heads,
  /// block_tokens, dim], of whose last block only the first tokens() % block_tokens may be written.
  ///
  /// Errors: kUnsupported they do not lie so, or there are none; nothing is ever copied
  Result<TensorView> array() const;
  /// Block i as [heads, tokens in this block, dim]. One that the window has passed is a bug.
  TensorView block(uint32_t i) const;

  /// The same without the pin, for who comes back to it later.
  UnleasedView Unleased() const;

  /// Ends the view: it shows nothing any more, and its pins go as those of a lease.
  void Release(std::shared_ptr<Fence> fence = nullptr);

 private:
  StreamLayout layout_;
  uint64_t first_token_;
  uint64_t tokens_;
  std::vector<const std::byte*> slots_;
  Lease lease_;
};

/// What a view showed, not pinned: its blocks may be evicted, moved, erased or written anew, and
/// then it fails. It gives no pointers, only views that hold a lease, so it cannot dangle.
///
/// Threads:  any
/// Lifetime: the cache must outlive it
class UnleasedView {
 public:
  /// The view, pinned again.
  ///
  /// Errors: kNotFound the slot of one of its blocks holds something else now, or a block failed a
  ///         check or was erased. It will not come back: take a new view of the sequence
  /// Cost:   O(blocks) under the cache lock
  Result<BlockListView> Pin() const;

 private:
  friend class BlockListView;
  UnleasedView(const StreamLayout& layout, uint64_t first_token, uint64_t tokens,
               std::vector<const std::byte*> slots)
      : layout_(layout), first_token_(first_token), tokens_(tokens), slots_(std::move(slots)) {}

  StreamLayout layout_;
  uint64_t first_token_;
  uint64_t tokens_;
  std::vector<const std::byte*> slots_;
  cache::Core* core_ = nullptr;
  std::vector<SlotId> held_;           // by the view, once
  std::vector<uint32_t> generations_;  // of each; another one: its bytes are not these any more
};

}  // namespace quire

#endif  // QUIRE_VIEW_H_
