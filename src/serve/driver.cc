#include "serve/driver.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "base/sync_point.h"
#include "base/thread.h"

namespace quire::serve {

Driver::Driver(Engine& engine, BetweenTicks between)
    : engine_(engine), between_(std::move(between)), thread_(StartThread([this] { Turn(); })) {}

Driver::~Driver() {
  ending_.store(true, std::memory_order_release);
  engine_.CancelAll();  // and wakes it
  AtSyncPoint("driver: asked to end");
  thread_.join();
}

EngineStats Driver::stats() const {
  EngineStats stats;
  {
    MutexLock lock(mutex_);
    stats = stats_;
  }
  // These change without a step.
  stats.adapters = engine_.adapters().count();
  stats.adapter_bytes = engine_.adapters().bytes();
  return stats;
}

std::vector<SequenceEntry> Driver::Sequences() {
  uint64_t asked = 0;
  {
    MutexLock lock(mutex_);
    asked = ++asked_;
  }
  engine_.Wake();
  MutexLock lock(mutex_);
  while (answered_ < asked) told_.Wait(mutex_);
  return sequences_;
}

void Driver::TellSequences() {
  uint64_t asked = 0;
  {
    MutexLock lock(mutex_);
    if (answered_ == asked_) return;
    asked = asked_;
  }
  std::vector<SequenceEntry> list = engine_.sequences();
  MutexLock lock(mutex_);
  sequences_ = std::move(list);
  answered_ = asked;
  told_.NotifyAll();
}

void Driver::Turn() {
  while (true) {
    // Before the Tick, so that it takes in the cancellations that came with it.
    const bool ending = ending_.load(std::memory_order_acquire);
    if (ending) engine_.CancelAll();  // what was submitted after the first time too
    AtSyncPoint("driver: before a tick");
    const TickReport report = engine_.Tick();
    {
      const EngineStats stats = engine_.stats();  // which takes locks of its own
      MutexLock lock(mutex_);
      stats_ = stats;
    }
    TellSequences();
    if (between_.call) between_.call();
    if (ending && report.settled) return;  // what is awaited has its answer
    // That Tick may have taken in what was to wake this thread for its end.
    const bool just_asked = !ending && ending_.load(std::memory_order_acquire);
    if (report.worked || just_asked) continue;
    engine_.AwaitChange(std::min(report.wait_us, between_.every_us));
  }
}

namespace {

// Takes what a request has to say; its Response, once it has come.
std::optional<Response> Drain(Engine& engine, RequestId id, size_t index, const OnEvent& on_event) {
  while (auto event = engine.Next(id)) {
    if (auto* const response = std::get_if<Response>(&*event)) return std::move(*response);
    if (on_event && !on_event(index, *event)) engine.Cancel(id);
  }
  return std::nullopt;
}

}  // namespace

std::vector<Response> RunAll(Engine& engine, std::vector<Request> requests,
                             const OnEvent& on_event) {
  std::vector<Response> responses(requests.size());
  std::vector<std::pair<RequestId, size_t>> open;  // and their place in `requests`
  size_t next = 0;
  while (next < requests.size() || !open.empty()) {
    while (next < requests.size()) {
      auto id = engine.Submit(requests[next]);
      // A full queue empties as others end.
      if (!id && id.error().code == ErrorCode::kNoSpace && !open.empty()) break;
      if (id) {
        open.emplace_back(*id, next);
      } else {
        responses[next].prompt_tokens = requests[next].prompt.size();
        responses[next].error = std::move(id).error();
      }
      requests[next++] = {};
    }
    const TickReport report = engine.Tick();
    std::erase_if(open, [&](const auto& each) {
      auto response = Drain(engine, each.first, each.second, on_event);
      if (!response) return false;
      responses[each.second] = *std::move(response);
      return true;
    });
    if (!report.worked && !open.empty()) engine.AwaitChange(report.wait_us);
  }
  return responses;
}

}  // namespace quire::serve
