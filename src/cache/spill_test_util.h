// A spill for tests: everything it gets stays in memory, and it can be told to wait or to fail.
#ifndef QUIRE_CACHE_SPILL_TEST_UTIL_H_
#define QUIRE_CACHE_SPILL_TEST_UTIL_H_

#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "quire/cache.h"

namespace quire::cache {

/// A leaving block, copied.
struct SpilledBlock {
  struct Part {
    uint32_t part = 0;
    uint32_t crc32c = 0;
    uint64_t pieces = 0;
    std::vector<std::byte> bytes{};

    bool operator==(const Part&) const = default;
  };

  explicit SpilledBlock(const LeavingBlock& block)
      : key(block.key),
        parent_key(block.parent_key),
        index(block.index),
        tokens(block.tokens.begin(), block.tokens.end()),
        publisher(block.publisher),
        account(block.account),
        erase_epoch(block.erase_epoch),
        priority(block.priority),
        retained_until_us(block.retained_until_us) {
    for (const LeavingPart& part : block.parts) {
      Part& copy = parts.emplace_back(
          Part{.part = part.part, .crc32c = part.crc32c, .pieces = part.pieces.size()});
      for (const auto& piece : part.pieces) {
        copy.bytes.insert(copy.bytes.end(), piece.begin(), piece.end());
      }
      QUIRE_CHECK_MSG(Crc32c(copy.bytes) == part.crc32c, "damaged bytes were offered");
    }
  }

  Digest key;
  Digest parent_key;
  uint64_t index;
  std::vector<TokenId> tokens;
  std::vector<Part> parts{};
  std::string publisher;
  std::string account;
  uint32_t erase_epoch;
  uint8_t priority;
  uint64_t retained_until_us;
};

class MemorySpill final : public Spill {
 public:
  Result<void> Store(const LeavingBlock& block) override {
    SpilledBlock copy(block);
    if (before) QUIRE_TRY(before(copy));
    const std::lock_guard lock(mutex_);
    stored_.push_back(std::move(copy));
    return {};
  }

  std::vector<SpilledBlock> stored() const {
    const std::lock_guard lock(mutex_);
    return stored_;
  }
  /// The latest with this key.
  std::optional<SpilledBlock> Find(const Digest& key) const {
    const std::lock_guard lock(mutex_);
    for (size_t i = stored_.size(); i > 0; --i) {
      if (stored_[i - 1].key == key) return stored_[i - 1];
    }
    return std::nullopt;
  }

  /// Called for each block, before it is kept; an error is the answer.
  std::function<Result<void>(const SpilledBlock& block)> before;

 private:
  mutable std::mutex mutex_;
  std::vector<SpilledBlock> stored_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_SPILL_TEST_UTIL_H_
