#include "ranks/pipeline/memory_ring.h"

#include <fmt/format.h>

#include <deque>
#include <utility>

#include "base/mutex.h"

namespace quire::ranks {

namespace {

std::unexpected<Error> Ended(uint32_t rank) {
  return Fail(ErrorCode::kIo, fmt::format("rank {} has ended", rank));
}

// What lies between a rank and the next one.
struct Inbox {
  std::deque<std::vector<std::byte>> messages;
  bool sender_ended = false;
  bool receiver_ended = false;
};

struct Shared {
  explicit Shared(uint32_t ranks) : inboxes(ranks) {}

  Mutex mutex{LockRank::kLeaf};
  CondVar changed;
  std::vector<Inbox> inboxes QUIRE_GUARDED_BY(mutex);  // by receiver
};

class MemoryRing final : public Ring {
 public:
  MemoryRing(std::shared_ptr<Shared> shared, uint32_t rank, uint32_t ranks)
      : shared_(std::move(shared)), rank_(rank), ranks_(ranks) {}
  ~MemoryRing() override {
    MutexLock lock(shared_->mutex);
    shared_->inboxes[rank_].receiver_ended = true;
    shared_->inboxes[next()].sender_ended = true;
    shared_->changed.NotifyAll();
  }

  uint32_t rank() const override { return rank_; }
  uint32_t ranks() const override { return ranks_; }

  Result<void> Send(std::vector<std::byte> bytes) override {
    MutexLock lock(shared_->mutex);
    Inbox& inbox = shared_->inboxes[next()];
    if (inbox.receiver_ended) return Ended(next());
    inbox.messages.push_back(std::move(bytes));
    shared_->changed.NotifyAll();
    return {};
  }

  Result<std::vector<std::byte>> Receive() override {
    MutexLock lock(shared_->mutex);
    Inbox& inbox = shared_->inboxes[rank_];
    while (inbox.messages.empty()) {
      if (inbox.sender_ended) return Ended(previous());
      shared_->changed.Wait(shared_->mutex);
    }
    std::vector<std::byte> bytes = std::move(inbox.messages.front());
    inbox.messages.pop_front();
    return bytes;
  }

 private:
  const std::shared_ptr<Shared> shared_;
  const uint32_t rank_;
  const uint32_t ranks_;
};

}  // namespace

std::vector<std::unique_ptr<Ring>> MakeMemoryRing(uint32_t ranks) {
  const auto shared = std::make_shared<Shared>(ranks);
  std::vector<std::unique_ptr<Ring>> places;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    places.push_back(std::make_unique<MemoryRing>(shared, rank, ranks));
  }
  return places;
}

}  // namespace quire::ranks
