// Records that a sequence which streams waits for together.
#ifndef QUIRE_CACHE_BELOW_RECORD_READS_H_
#define QUIRE_CACHE_BELOW_RECORD_READS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/wiped_vector.h"
#include "cache/below/record_chain.h"
#include "transfer/transfers.h"

namespace quire::cache {

/// Reads sections of records into slots, of block-major arenas.
///
/// Threads:  one at a time
/// Lifetime: the cache must outlive it; slots that are read into stay until all is done, cancelled
///           or ended
class RecordReads {
 public:
  /// Where the next `sections` sections of a record go: [offset, offset + bytes) of a slot. Without
  /// a slot they are not wanted.
  struct To {
    SlotId slot{};
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint32_t sections = 0;
  };
  struct Failed {
    uint64_t block = 0;  // the first that did not come
    tier::StoreOutcome outcome{};
    tier::RecordMiss miss{};
  };

  /// `wakes`: as Ends.
  explicit RecordReads(LockedState& cache, bool wakes = false)
      : cache_(cache), ends_(*cache.transfers(), wakes) {}
  /// Takes the memory for so many reads at a time, of so many bytes together.
  void Reserve(size_t reads, uint64_t bytes);

  /// Those of before are not there any more; needs that they are done.
  void Clear();
  /// Sections of a block's record, or of the run that begins with it, from `section` on.
  void AddBlock(const RecordChain& chain, uint64_t block, uint32_t section, std::span<const To> to);
  void AddRun(const RecordChain& chain, uint64_t block, uint32_t section, std::span<const To> to);
  /// Begins all that were added.
  void Begin();
  /// All have ended, and those that the disk failed to read have been asked for once more.
  bool IsDone();
  /// The first that did not come, when all have ended.
  std::optional<Failed> failed() const;
  /// Requests of the store.
  size_t count() const { return count_; }
  /// What has no slot, one after the other as it was added; valid until Clear.
  std::span<const std::byte> beside() const { return host_; }
  /// Returns when all have ended and are in their slots.
  /// Errors: kCancelled `cancel` was set, which may be null; kIo a device failed
  Result<std::optional<Failed>> Await(const std::atomic<bool>* cancel);
  /// When it returns nothing is read any more, nor asked for again.
  void Cancel();

 private:
  struct Read {
    uint64_t block = 0;
    const tier::RecordLayout* layout = nullptr;
    uint32_t section = 0;
    std::vector<To> to{};
    WipedVector<TokenId> tokens{};
    std::vector<std::span<std::byte>> out{};
    uint64_t at = 0;  // in `host_`
    tier::RecordIdentity identity{};
    tier::StoreCompletion end{};
  };

  Read& Add(uint64_t block, std::span<const TokenId> tokens, uint32_t section,
            std::span<const To> to);
  std::span<std::byte> SlotOf(const To& to) const;
  void BeginCancelled();
  void BeginOne(Read& read, uint64_t deadline_us);
  Result<void> CopyIn();

  LockedState& cache_;
  std::vector<Read> reads_;  // the first `count_`
  size_t count_ = 0;
  WipedVector<std::byte> host_;  // where there is no slot, or the host cannot reach it
  size_t left_ = 0;              // that have not ended
  bool is_second_try_ = false;
  transfer::Ends ends_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_BELOW_RECORD_READS_H_
