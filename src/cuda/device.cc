#include "cuda/device.h"

namespace quire::cuda {

void Device::Write(const WrittenStream& stream, const WrittenBlock& block) {
  MutexLock lock(waiting_mutex_);
  if (waiting_.Write(stream, block)) return;
  LaunchAll();
  waiting_.Write(stream, block);
}

void Device::Seal(const SealedStream& stream, const SealedBlock& block) {
  MutexLock lock(waiting_mutex_);
  if (waiting_.Seal(stream, block)) return;
  LaunchAll();
  waiting_.Seal(stream, block);
}

void Device::LaunchWaiting() {
  MutexLock lock(waiting_mutex_);
  LaunchAll();
}

// With the lock: what another thread asks for next comes after it.
void Device::LaunchAll() {
  waiting_.LaunchAll([this](const auto& args) { Launch(args); });
}

}  // namespace quire::cuda
