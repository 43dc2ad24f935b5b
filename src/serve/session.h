// What a session keeps between its turns.
#ifndef QUIRE_SERVE_SESSION_H_
#define QUIRE_SERVE_SESSION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/sampling.h"
#include "quire/sequence.h"
#include "serve/request.h"
#include "serve/session_store.h"

namespace quire::serve {

/// A session is its text and its sampler; the sequence only saves work. A session that idles may
/// lose it when room is needed: the next turn then finds in the cache what is still there and
/// computes the rest. With a SessionStore it may lose its text too, which is then read again.
struct Session {
  SessionId id;
  TenantId tenant;
  model::SamplerState sampler;
  std::vector<TokenId> text{};  // fed and generated
  // Holds at most text.size() - 1 tokens. Null while a turn has it, and after it was let go.
  std::unique_ptr<Sequence> sequence{};
  uint64_t turns_ended = 0;  // by the engine's count, at its last turn: the least goes first
  std::string name{};        // of its file; empty: it has none
  uint64_t opened_unix_us = 0;
  bool in_memory = true;  // text and sampler; else they are in the file alone
  bool in_turn = false;   // a turn has its text, or waits for it
  uint64_t writes = 0;    // of its file, that were asked for
  bool saved = false;     // the last of them was done: the file has text and sampler as they are
  // Of a fork whose text was in the other one's file alone: what is read for this session brings
  // it. None: the text is here, or in a file of its own.
  SessionId text_from{};
  std::optional<Error> lost{};  // why it did not come
  OnSettled opened{};           // hears of a file of its own, which is written once it has come
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_SESSION_H_
