// Blocks that left the index to make room for a request, until they were offered to the spill.
#ifndef QUIRE_CACHE_LEAVING_H_
#define QUIRE_CACHE_LEAVING_H_

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/reach.h"
#include "quire/identity.h"
#include "quire/ids.h"

namespace quire::cache {

class Core;

/// What the spill said.
enum class Answer : uint8_t {
  kNotAsked = 1,  // its account saw an erasure since it left
  kStored = 2,
  kFailed = 3,
  kDamaged = 4,  // not asked: its bytes, or those of a block before it, failed the check
};

/// A block that left, or parts of one that stays. Its slots are in nobody's account, but charged to
/// the budget, and no one else can get hold of them.
struct LeavingRecord {
  BlockId stays{};  // none: it left as a whole
  Digest key{};
  Digest parent_key{};
  uint64_t index = 0;
  std::vector<TokenId> tokens{};
  PerPart<SlotId> slots{};  // none: no such part, or that does not leave now
  PerPart<uint32_t> crcs{};
  TenantId account{};
  uint32_t erasures = 0;  // of the account when it left
  std::string_view account_name{};
  std::string_view publisher_name{};
  uint8_t priority = 0;
  uint64_t retained_until_us = 0;
  Answer answer = Answer::kNotAsked;
};

/// What leaves for one request, and what that was promised meanwhile. Lets go of all of it at its
/// end, if nobody did before.
class Leaving {
 public:
  explicit Leaving(Core& core) : core_(core) {}
  Leaving(const Leaving&) = delete;
  Leaving& operator=(const Leaving&) = delete;
  ~Leaving();

  bool empty() const { return records_.empty(); }
  /// That the budget has back when it is let go of.
  uint64_t bytes() const { return bytes_; }

 private:
  friend class Core;

  Core& core_;
  std::vector<LeavingRecord> records_;  // children before their parents
  uint64_t bytes_ = 0;
  // The whole request in its tenant's account, in the budget what it needs besides bytes_.
  TenantId promised_to_{};
  uint64_t promised_bytes_ = 0;
  uint64_t promised_free_bytes_ = 0;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_LEAVING_H_
