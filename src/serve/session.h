// What a session keeps between its turns.
#ifndef QUIRE_SERVE_SESSION_H_
#define QUIRE_SERVE_SESSION_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "model/sampling.h"
#include "quire/sequence.h"
#include "serve/mailbox.h"

namespace quire::serve {

/// A session is its text and its sampler; the sequence only saves work. A session that idles may
/// lose it when room is needed: the next turn then finds in the cache what is still there and
/// computes the rest. A store of sessions would write what is here, and nothing else.
struct Session {
  TenantId tenant;
  model::Sampler sampler;
  std::vector<TokenId> text{};  // fed and generated
  // Holds at most text.size() - 1 tokens. Null while a turn has it, and after it was let go.
  std::unique_ptr<Sequence> sequence{};
  uint64_t turns_ended = 0;  // by the engine's count, at its last turn: the least goes first
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_SESSION_H_
