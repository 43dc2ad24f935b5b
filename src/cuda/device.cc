#include "cuda/device.h"

#include <type_traits>

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

void Device::BeginPass(const void* model) {
  MutexLock lock(mutex_);
  StartWaiting();
  pass_.Begin(model);
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
  if (blocks_of_ == std::this_thread::get_id()) blocks_of_ = {};
  if (stream == Stream::kCompute) return StartInPass(launch);
  StartPass();
  StartNow(launch, stream);
}

// With the lock: what another thread asks for next comes after it.
void Device::StartWaiting() {
  StartBlocks();
  StartPass();
  if (blocks_of_ == std::this_thread::get_id()) blocks_of_ = {};
}

// Those that another thread starts are not counted as launches of the pass: the rest of its rows
// are the launch that is expected there.
void Device::StartBlocks() {
  class Sink final : public LaunchSink {
   public:
    Sink(Device& device, bool sums) : device_(device), sums_(sums) {}
    void Take(const KernelLaunch& launch) override QUIRE_REQUIRES(device_.mutex_) {
      if (!sums_) return device_.StartInPass(launch);
      device_.pass_.StartAll(device_, /*cut=*/true);  // they are of no pass
      device_.StartNow(launch, Stream::kCompute);
    }

   private:
    Device& device_;
    const bool sums_;
  };
  blocks_.LaunchAll([&]<class Args>(const Args& args) {
    Sink sink(*this, std::is_same_v<Args, ChecksumArgs>);
    MakeLaunch(args, sink);
  });
}

void Device::StartPass() { pass_.StartAll(*this, /*cut=*/in_pass_ != std::this_thread::get_id()); }

void Device::StartInPass(const KernelLaunch& launch) {
  if (in_pass_ == std::this_thread::get_id()) return pass_.Add(launch, *this);
  StartPass();
  StartNow(launch, Stream::kCompute);
}

}  // namespace quire::cuda
