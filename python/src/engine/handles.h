// What the files of quire._engine share: the handles of the C interface as Python holds them.
#ifndef QUIRE_PYTHON_ENGINE_HANDLES_H_
#define QUIRE_PYTHON_ENGINE_HANDLES_H_

#include <quire/engine.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../handle.h"
#include "../process.h"
#include "../values.h"

namespace quire::python {

inline void Check(quire_code code, const quire_error& error) {
  if (code == QUIRE_OK) return;
  if (code == QUIRE_NO_MEMORY) throw std::bad_alloc();
  if (code == QUIRE_INTERNAL) throw std::runtime_error(error.message);
  Raise(static_cast<ErrorCode>(code), error.message);
}

struct EngineState {
  explicit EngineState(quire_engine* opened) : engine(opened) {}
  ~EngineState() { quire_engine_free(engine); }
  EngineState(const EngineState&) = delete;
  EngineState& operator=(const EngineState&) = delete;

  quire_engine* const engine;
};

/// A session, or a call in none. The C interface lets one thread at a time use it, but for cancel.
struct TalkState {
  explicit TalkState(quire_session* opened) : session(opened) {}
  ~TalkState() { quire_session_free(session); }
  TalkState(const TalkState&) = delete;
  TalkState& operator=(const TalkState&) = delete;

  quire_session* const session;
  std::mutex turn;
};

struct LeaseState {
  explicit LeaseState(quire_lease* taken) : lease(taken) {}
  ~LeaseState() { quire_lease_free(lease); }
  LeaseState(const LeaseState&) = delete;
  LeaseState& operator=(const LeaseState&) = delete;

  quire_lease* const lease;
};

class PyEngine : public Handle<EngineState> {
 public:
  explicit PyEngine(std::shared_ptr<EngineState> engine)
      : Handle(std::move(engine), "the engine") {}
};
class PyLease : public Handle<LeaseState> {
 public:
  explicit PyLease(std::shared_ptr<LeaseState> lease) : Handle(std::move(lease), "the lease") {}
};
class PySession : public Handle<TalkState> {
 public:
  PySession(std::shared_ptr<TalkState> talk, std::string name)
      : Handle(std::move(talk), "the session"), name_(std::move(name)) {}
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

/// What an answer says, one after the other.
struct Event {
  std::string kind;
  std::string text;
  int32_t token = 0;
  uint64_t prompt_done = 0;
  uint64_t prompt_tokens = 0;
  uint64_t reused_tokens = 0;
  uint64_t loaded_tokens = 0;
  uint64_t generated_tokens = 0;
  uint64_t dropped_tokens = 0;
  uint64_t retained_tokens = 0;
  uint64_t approximate_tokens = 0;
  double approximate_error = 0;
  std::string finish;
};

/// The events of one turn, and what they said so far.
class PyAnswer : public Handle<TalkState> {
 public:
  explicit PyAnswer(std::shared_ptr<TalkState> talk) : Handle(std::move(talk), "the answer") {}

  std::string text;
  std::vector<int32_t> tokens;
  std::optional<Event> done;
  bool is_over = false;  // nothing more comes
};

// answers.cc
void BindEvent(nb::module_& module);
void BindAnswer(nb::module_& module);

}  // namespace quire::python

#endif  // QUIRE_PYTHON_ENGINE_HANDLES_H_
