#include "cuda/device.h"

namespace quire::cuda {

template <typename Add>
void Device::AddOrLaunch(const Add& add) {
  MutexLock lock(mutex_);
  const bool waits = blocks_of_ == std::this_thread::get_id();
  if (!waits || !add(blocks_)) {
    StartBlocks();
    add(blocks_);
  }
  if (!waits) StartWaiting();
}

void Device::Write(const WrittenStream& stream, const WrittenBlock& block) {
  AddOrLaunch([&](WaitingBlocks& waiting) { return waiting.Write(stream, block); });
}

void Device::Seal(const SealedStream& stream, const SealedBlock& block) {
  AddOrLaunch([&](WaitingBlocks& waiting) { return waiting.Seal(stream, block); });
}

void Device::Sum(const ChecksumArgs& args) {
  MutexLock lock(mutex_);
  if (blocks_.Sum(args)) return;
  StartBlocks();
  blocks_.Sum(args);
}

void Device::LetWait() {
  MutexLock lock(mutex_);
  blocks_of_ = std::this_thread::get_id();
}

void Device::BeginPass() {
  MutexLock lock(mutex_);
  StartWaiting();
  pass_.Begin();
  in_pass_ = std::this_thread::get_id();
}

void Device::EndPass() {
  MutexLock lock(mutex_);
  StartWaiting();
  if (in_pass_ == std::this_thread::get_id()) in_pass_ = {};
}

void Device::LaunchWaiting() {
  MutexLock lock(mutex_);
  StartWaiting();
}

void Device::Start(const KernelLaunch& launch, Stream stream) {
  MutexLock lock(mutex_);
  StartBlocks();
  blocks_of_ = {};
  if (stream == Stream::kCompute) return StartInPass(launch);
  StartPass();
  StartNow(launch, stream);
}

// With the lock: what another thread asks for next comes after it.
void Device::StartWaiting() {
  StartBlocks();
  StartPass();
  blocks_of_ = {};
}

void Device::StartBlocks() {
  class Sink final : public LaunchSink {
   public:
    explicit Sink(Device& device) : device_(device) {}
    void Take(const KernelLaunch& launch) override QUIRE_REQUIRES(device_.mutex_) {
      device_.StartInPass(launch);
    }

   private:
    Device& device_;
  };
  Sink sink(*this);
  blocks_.LaunchAll([&](const auto& args) { MakeLaunch(args, sink); });
}

void Device::StartPass() { pass_.StartAll(*this, /*cut=*/in_pass_ != std::this_thread::get_id()); }

void Device::StartInPass(const KernelLaunch& launch) {
  if (in_pass_ == std::this_thread::get_id()) return pass_.Add(launch, *this);
  StartPass();
  StartNow(launch, Stream::kCompute);
}

}  // namespace quire::cuda
