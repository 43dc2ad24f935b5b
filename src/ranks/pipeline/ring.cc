#include "ranks/pipeline/ring.h"

#include <algorithm>
#include <new>
#include <string>

#include "base/thread.h"

namespace quire::ranks::pipeline {

namespace {

// Between two looks at what has come, and where no message has come or gone for so long.
constexpr uint64_t kLookUs = 300;
constexpr uint64_t kIdleLookUs = 1000;
constexpr uint64_t kIdleUs = 1'000'000;
// Lengths that are no lengths: the rank is there; it has said all.
constexpr uint64_t kThere = 0;
constexpr uint64_t kAll = UINT64_MAX;
// A message larger than this is no message of ours: memory is not taken for what another rank says.
constexpr uint64_t kMessageBytesMax = uint64_t{1} << 40;

}  // namespace

Ring::Ring(Group& group, const Clock& clock)
    : group_(group), clock_(clock), rank_(group.rank()), ranks_(group.size()) {
  if (ranks_ > 1) thread_ = StartThread([this] { Run(); });
}

Ring::~Ring() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(mutex_);
    ending_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

Result<void> Ring::Send(std::vector<std::byte> bytes) {
  MutexLock lock(mutex_);
  if (broken_) return std::unexpected(*broken_);
  (ranks_ > 1 ? outbox_ : inbox_).push_back(std::move(bytes));
  changed_.NotifyAll();
  return {};
}

Result<std::vector<std::byte>> Ring::Receive() {
  MutexLock lock(mutex_);
  while (inbox_.empty()) {
    if (broken_) return std::unexpected(*broken_);
    changed_.Wait(mutex_);
  }
  std::vector<std::byte> bytes = std::move(inbox_.front());
  inbox_.pop_front();
  return bytes;
}

Result<void> Ring::Check() {
  MutexLock lock(mutex_);
  if (broken_) return std::unexpected(*broken_);
  return {};
}

Error Ring::Break(Error error) {
  MutexLock lock(mutex_);
  if (ranks_ == 1 && !broken_) broken_ = std::move(error);
  if (broken_) return *broken_;
  asked_to_break_ = std::move(error);
  changed_.NotifyAll();
  while (!broken_) changed_.Wait(mutex_);
  return *broken_;
}

void Ring::Run() {
  sent_us_ = heard_us_ = message_us_ = clock_.NowMicros();
  while (true) {
    Result<bool> moved = false;
    try {
      moved = Move();
    } catch (const std::bad_alloc&) {
      moved = Fail(ErrorCode::kNoSpace, "ranks: the system has no memory left for a message");
    }
    std::optional<Error> failure;
    {
      MutexLock lock(mutex_);
      failure = moved ? asked_to_break_ : std::optional(moved.error());
      if (!failure) {
        if (said_all_ && sent_.empty() && heard_all_) break;
        if (*moved || !outbox_.empty()) continue;
        const bool is_idle = clock_.NowMicros() - message_us_ >= kIdleUs;
        changed_.WaitFor(mutex_, is_idle ? kIdleLookUs : kLookUs);
        continue;
      }
    }
    Error first = group_.Fail(*std::move(failure));  // which takes locks of its own
    MutexLock lock(mutex_);
    broken_ = std::move(first);
    changed_.NotifyAll();
    break;
  }
  // What a group knows of lies here: it is of no use without, and after an error in any case.
  sent_.clear();
  coming_.reset();
}

// Whether anything moved.
Result<bool> Ring::Move() {
  std::deque<std::vector<std::byte>> outgoing;
  bool ending = false;
  {
    MutexLock lock(mutex_);
    outgoing.swap(outbox_);
    ending = ending_;
  }
  const bool moved = !outgoing.empty();
  for (std::vector<std::byte>& bytes : outgoing) {
    const uint64_t count = bytes.size();
    QUIRE_TRY(Put(count, std::move(bytes)));
  }
  if (ending && !said_all_) {
    QUIRE_TRY(Put(kAll, {}));
    said_all_ = true;
  }
  QUIRE_ASSIGN(const bool out, MoveOut());
  QUIRE_ASSIGN(const bool in, MoveIn());
  QUIRE_TRY(Await());
  return moved || out || in;
}

Result<void> Ring::Put(uint64_t bytes_count, std::vector<std::byte> bytes) {
  Outgoing& outgoing = sent_.emplace_back();
  outgoing.bytes = std::move(bytes);
  outgoing.bytes_count = bytes_count;
  const uint32_t next = (rank_ + 1) % ranks_;
  QUIRE_ASSIGN(outgoing.length, group_.Send(next, BytesOf(outgoing.bytes_count)));
  if (!outgoing.bytes.empty()) {
    QUIRE_ASSIGN(outgoing.payload, group_.Send(next, outgoing.bytes));
  }
  sent_us_ = clock_.NowMicros();
  if (bytes_count != kThere) message_us_ = sent_us_;
  return {};
}

// They end in the order in which they were sent, or nearly: one that waits keeps those behind it.
Result<bool> Ring::MoveOut() {
  bool moved = false;
  while (!sent_.empty()) {
    QUIRE_ASSIGN(const bool length, sent_.front().length.IsDone());
    QUIRE_ASSIGN(const bool payload, sent_.front().payload.IsDone());
    if (!length || !payload) break;
    sent_.pop_front();
    moved = true;
  }
  return moved;
}

Result<bool> Ring::MoveIn() {
  bool moved = false;
  const uint32_t previous = (rank_ + ranks_ - 1) % ranks_;
  while (!heard_all_) {
    if (!coming_) {
      coming_ = Incoming();
      QUIRE_ASSIGN(coming_->length, group_.Receive(previous, BytesOf(coming_->bytes_count)));
    }
    if (!coming_->has_length) {
      QUIRE_ASSIGN(const bool done, coming_->length.IsDone());
      if (!done) return moved;
      heard_us_ = clock_.NowMicros();
      moved = true;
      coming_->has_length = true;
      if (coming_->bytes_count == kThere || coming_->bytes_count == kAll) {
        heard_all_ = coming_->bytes_count == kAll;
        coming_.reset();
        continue;
      }
      if (coming_->bytes_count > kMessageBytesMax) {
        return quire::Fail(ErrorCode::kCorrupt, "ranks: rank " + std::to_string(previous) +
                                                    " says it sends a message of " +
                                                    std::to_string(coming_->bytes_count) +
                                                    " bytes");
      }
      coming_->bytes.resize(coming_->bytes_count);
      QUIRE_ASSIGN(coming_->payload, group_.Receive(previous, coming_->bytes));
    }
    QUIRE_ASSIGN(const bool done, coming_->payload.IsDone());
    if (!done) return moved;
    heard_us_ = message_us_ = clock_.NowMicros();
    moved = true;
    MutexLock lock(mutex_);
    inbox_.push_back(std::move(coming_->bytes));
    changed_.NotifyAll();
    coming_.reset();
  }
  return moved;
}

// The others know that this rank is there, and it looks whether all others are.
Result<void> Ring::Await() {
  const uint64_t deadline_us = group_.options().deadline_us;
  const uint64_t now_us = clock_.NowMicros();
  const bool may_be_missed = now_us - sent_us_ >= deadline_us / 8 && sent_.empty();
  if (may_be_missed && !said_all_) QUIRE_TRY(Put(kThere, {}));
  // What has said all may end, and then says nothing more.
  if (heard_all_) heard_us_ = now_us;
  return group_.Heed({.silent = RankSet{1} << ((rank_ + ranks_ - 1) % ranks_),
                      .what = "pipeline",
                      .waited_us = now_us - heard_us_,
                      .deadline_us = deadline_us});
}

}  // namespace quire::ranks::pipeline
