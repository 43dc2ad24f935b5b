// What the stages of a pipeline tell each other. Rank 0 makes each message, all ranks do what it
// says in the order of their layers and pass it on, and it comes back to rank 0 with what they
// added: so all of them do the same in one order, and rank 0 hears of it.
#ifndef QUIRE_RANKS_PIPELINE_MESSAGE_H_
#define QUIRE_RANKS_PIPELINE_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/cache.h"
#include "quire/error.h"
#include "quire/identity.h"
#include "quire/stats.h"

namespace quire::ranks::pipeline {

enum class Command : uint8_t {
  kJoin = 1,     // how each was started, and the fingerprint of what it has
  kAcquire = 2,  // finds what its cache has of a prompt
  kOpen = 3,     // makes a sequence of what the last kAcquire found
  kReserve = 4,  // room for a sequence to grow
  kEnd = 5,      // of a sequence
  kStep = 6,     // computes the next tokens of sequences
  kStop = 7,     // no more comes
  kTenant = 8,   // a TenantChange
};

/// Rows of logits of a step's item.
enum class Wanted : uint8_t { kNone = 0, kLast = 1, kAll = 2 };

struct MessageItem {
  uint64_t sequence = 0;
  uint32_t tokens = 0;
  Wanted wanted = Wanted::kNone;

  bool operator==(const MessageItem&) const = default;
};

struct Message {
  Command command = Command::kJoin;
  uint64_t number = 0;  // of rank 0's messages, from 1 on
  // Over all commands before this one and what came of them: ranks that differ there have other
  // caches than they say.
  Digest state{};

  TenantId tenant = kDefaultTenant;  // kAcquire: in rank 0's cache
  uint64_t sequence = 0;             // kOpen, kReserve, kEnd
  uint64_t position = 0;  // kReserve: its tokens; kAcquire: only so many of the prompt's are used
  uint64_t tokens_least = 0;  // kAcquire: found, by the rank that found least, and most;
  uint64_t tokens_most = 0;   // kOpen: that all of them have
  MissReason reason = MissReason::kNeverSeen;  // kAcquire: of the rank that found least
  bool reuse = true;
  bool opens = false;            // kAcquire: `options` says how it will be opened
  SequenceOptions options{};     // reserve_tokens, step_tokens, on_full, publish alone
  std::optional<Error> error{};  // no room at a rank, which the text names

  std::vector<MessageItem> items{};  // kStep
  std::vector<TokenId> tokens{};     // kStep: of all items; kAcquire: the prompt
  std::vector<Digest> digests{};     // kJoin: of the ranks so far
  std::string text{};                // kJoin: how rank 0 was started; kTenant: the change
  std::vector<float> rows{};         // kStep: [tokens, hidden] of the stage before, or the logits
};

/// The bytes of a message, for a process of the same build.
std::vector<std::byte> Encode(const Message& message);

/// Checks every number and length.
///
/// Errors: kCorrupt it is no message of this build
Result<Message> Decode(std::span<const std::byte> bytes);

}  // namespace quire::ranks::pipeline

#endif  // QUIRE_RANKS_PIPELINE_MESSAGE_H_
