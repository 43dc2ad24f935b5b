// What is held of the cache now, and by which sequence: the requests of an engine, and its sessions
// that idle.
#ifndef QUIRE_SERVE_SEQUENCE_LIST_H_
#define QUIRE_SERVE_SEQUENCE_LIST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/stats.h"
#include "serve/request.h"

namespace quire::serve {

struct EngineState;

/// What a request or a session does.
enum class Stage : uint8_t {
  kWaiting = 1,     // it holds nothing, and has not begun or lost what it had
  kLoading = 2,     // what the store has of its text is on its way
  kReading = 3,     // its prompt, or after a preemption all of its text
  kGenerating = 4,  // one token a step
  kIdle = 5,        // a session between two turns
};
std::string_view StageName(Stage stage);

struct SequenceEntry {
  RequestId request{};         // none: a session that idles
  SessionId session{};         // none: it is in no session
  std::string session_name{};  // empty: it has no file
  TenantId tenant = kDefaultTenant;
  Stage stage = Stage::kWaiting;
  uint8_t priority = 0;           // Request::priority
  uint64_t age_us = 0;            // since it was submitted; 0 of a session that idles
  uint64_t text_tokens = 0;       // all of its text so far; 0: it is in a file alone
  uint64_t generated_tokens = 0;  // of these, of this answer
  SequenceStats sequence{};       // zeros: it holds none
};

/// Requests by age, then sessions. Threads: the one that turns the engine
std::vector<SequenceEntry> ListSequences(const EngineState& state);

}  // namespace quire::serve

#endif  // QUIRE_SERVE_SEQUENCE_LIST_H_
