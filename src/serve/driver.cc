#include "serve/driver.h"

namespace quire::serve {

Driver::Driver(Engine& engine) : engine_(engine), thread_([this] { Turn(); }) {}

Driver::~Driver() {
  ending_.store(true, std::memory_order_release);
  engine_.CancelAll();  // and wakes it
  thread_.join();
}

EngineStats Driver::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

void Driver::Turn() {
  while (true) {
    // Before the Tick, so that it takes in the cancellations that came with it.
    const bool ending = ending_.load(std::memory_order_acquire);
    if (ending) engine_.CancelAll();  // what was submitted after the first time too
    const TickReport report = engine_.Tick();
    {
      MutexLock lock(mutex_);
      stats_ = engine_.stats();
    }
    if (ending && report.settled) return;  // who awaits an answer has it
    if (!report.worked) engine_.AwaitChange(report.wait_us);
  }
}

}  // namespace quire::serve
