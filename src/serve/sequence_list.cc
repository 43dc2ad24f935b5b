#include "serve/sequence_list.h"

#include <algorithm>

#include "serve/state.h"

namespace quire::serve {

namespace {

Stage StageOf(const Task& task) {
  if (task.running()) return task.decoding() ? Stage::kGenerating : Stage::kReading;
  return task.wait().what == Waits::kLoad ? Stage::kLoading : Stage::kWaiting;
}

SequenceEntry EntryOf(Task& task, const EngineState& state, uint64_t now_us) {
  SequenceEntry entry{.request = task.id(),
                      .session = task.request().session,
                      .tenant = task.tenant(),
                      .stage = StageOf(task),
                      .priority = task.request().priority,
                      .age_us = now_us - std::min(now_us, task.submitted_us()),
                      .text_tokens = task.text().tokens().size(),
                      .generated_tokens = task.text().generated_tokens()};
  if (!entry.session.is_none()) {
    if (const Session* const session = state.keeper.Find(entry.session)) {
      entry.session_name = session->name;
    }
  }
  if (task.running()) entry.sequence = task.sequence().stats();
  return entry;
}

}  // namespace

std::string_view StageName(Stage stage) {
  switch (stage) {
    case Stage::kWaiting: return "waiting";
    case Stage::kLoading: return "loading";
    case Stage::kReading: return "reading";
    case Stage::kGenerating: return "generating";
    case Stage::kIdle: return "idle";
  }
  return "unknown";
}

std::vector<SequenceEntry> ListSequences(const EngineState& state) {
  const uint64_t now_us = state.clock.NowMicros();
  std::vector<SequenceEntry> list;
  for (const auto& [id, task] : state.tasks.all()) {
    if (!task->ended()) list.push_back(EntryOf(*task, state, now_us));
  }
  for (const auto& [id, session] : state.keeper.all()) {
    if (session->in_turn) continue;
    SequenceEntry entry{.session = id,
                        .session_name = session->name,
                        .tenant = session->tenant,
                        .stage = Stage::kIdle,
                        .text_tokens = session->text.size()};
    if (session->sequence != nullptr) entry.sequence = session->sequence->stats();
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace quire::serve
