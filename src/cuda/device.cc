#include "cuda/device.h"

namespace quire::cuda {

template <typename Add>
void Device::AddOrLaunch(const Add& add) {
  MutexLock lock(waiting_mutex_);
  const bool waits = waits_ == std::this_thread::get_id();
  if (!waits || !add(waiting_)) {
    LaunchAll();
    add(waiting_);
  }
  if (!waits) LaunchAll();
}

void Device::Write(const WrittenStream& stream, const WrittenBlock& block) {
  AddOrLaunch([&](WaitingBlocks& waiting) { return waiting.Write(stream, block); });
}

void Device::Seal(const SealedStream& stream, const SealedBlock& block) {
  AddOrLaunch([&](WaitingBlocks& waiting) { return waiting.Seal(stream, block); });
}

void Device::LetWait() {
  MutexLock lock(waiting_mutex_);
  waits_ = std::this_thread::get_id();
}

void Device::LaunchWaiting() {
  MutexLock lock(waiting_mutex_);
  LaunchAll();
  waits_ = {};
}

// With the lock: what another thread asks for next comes after it.
void Device::LaunchAll() {
  waiting_.LaunchAll([this](const auto& args) { Launch(args); });
}

}  // namespace quire::cuda
