// What rank 0 tells the other ranks to do.
#ifndef QUIRE_RANKS_SEQUENCE_COMMAND_H_
#define QUIRE_RANKS_SEQUENCE_COMMAND_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quire/cache.h"
#include "quire/error.h"
#include "quire/identity.h"

namespace quire::ranks::sequence {

enum class Verb : uint8_t {
  kAcquire = 1,   // tokens: the prompt
  kOpen = 2,      // what was acquired last, as `sequence`
  kReserve = 3,   // `number` tokens
  kStep = 4,      // items, and the tokens of all of them
  kRollback = 5,  // to `number` tokens
  kFork = 6,      // as sequence `number`
  kReset = 7,
  kEnd = 8,      // the sequence
  kBeat = 9,     // nothing: all are there
  kTenant = 10,  // text: a TenantChange
  kStop = 11,
};

/// Which logits a step computes of an item's tokens.
enum class Wanted : uint8_t { kNone = 0, kLast = 1, kAll = 2 };

struct StepEntry {
  uint64_t sequence = 0;
  uint32_t tokens = 0;
  Wanted logits = Wanted::kNone;
};

struct Command {
  Verb verb{};
  bool reuse = true;                 // of kAcquire
  bool has_options = false;          // kAcquire: it is to be opened with `options`
  TenantId tenant = kDefaultTenant;  // of kAcquire, in rank 0's cache
  uint64_t sequence = 0;
  uint64_t number = 0;
  SequenceOptions options{};
  std::vector<StepEntry> items{};
  std::vector<TokenId> tokens{};
  std::string text{};
};

std::vector<std::byte> Write(const Command& command);
/// Errors: kCorrupt it is no command
Result<Command> ReadCommand(std::span<const std::byte> bytes);

}  // namespace quire::ranks::sequence

#endif  // QUIRE_RANKS_SEQUENCE_COMMAND_H_
