// What goes to the store and comes from there: verbs under the lock. Bytes move between them.
#ifndef QUIRE_CACHE_BELOW_H_
#define QUIRE_CACHE_BELOW_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/state.h"

namespace quire::cache {

/// Most blocks that wait for the store to hear of their use.
inline constexpr size_t kUsedBelowMax = 4096;

/// A form of a published block: all its sealed slots, or its open ones.
struct StoredForm {
  BlockId block{};
  Digest key{};  // of the block; its id may be another's later
  bool twins = false;
};

/// What the store is to be given.
struct BlockToWrite {
  StoredForm form{};
  Digest parent_key{};
  uint64_t block_index = 0;
  uint64_t erase_epoch = 0;  // of the account in the store when it was published
  std::string account{};     // name of who pays for it; empty: the default tenant
  std::vector<TokenId> tokens{};
  PerClass<SlotId> slots{};   // of the form
  PerClass<uint32_t> crcs{};  // of each
  bool is_last = true;        // no other form of the block waits
};

/// A block is to be written, as far as the store lacks it: unless its account keeps nothing below
/// memory, or the block before it will not be there either.
void Offer(State& state, BlockId block);
/// Takes the next block out of the queue. Its slots are State::reading until EndReading.
std::optional<BlockToWrite> NextWrite(State& state);
/// A block is handed out: the store shall hear of it.
void NoteUsed(State& state, BlockId block);
/// What of the blocks that were used since is durable below, as far as is remembered; some of it.
std::vector<StoredForm> TakeUsed(State& state);
/// The store lost this, which was durable: it is to be written again.
void OfferAgain(State& state, std::span<const StoredForm> lost);
/// What became of what NextWrite gave. kNothing with `again`: it is the next one again.
void EndWrite(State& state, const StoredForm& form, Below below, bool again);

}  // namespace quire::cache

#endif  // QUIRE_CACHE_BELOW_H_
