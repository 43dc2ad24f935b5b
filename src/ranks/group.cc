#include "ranks/group.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/spin.h"

namespace quire::ranks {
namespace {

/// While it waits for longer than this, a rank sleeps between two looks, so that others that share
/// its core can work.
constexpr uint64_t kEagerUs = 20'000;
constexpr std::chrono::microseconds kNap{100};
// A rank that waits for so long has nothing to do: it looks less often.
constexpr uint64_t kIdleUs = 1'000'000;
constexpr std::chrono::microseconds kIdleNap{1000};

}  // namespace

Transfer::Transfer(Transfer&& other) noexcept
    : group_(std::exchange(other.group_, nullptr)),
      what_(other.what_),
      pending_(std::move(other.pending_)) {
  other.pending_.clear();
}

Transfer& Transfer::operator=(Transfer&& other) noexcept {
  std::swap(group_, other.group_);
  std::swap(what_, other.what_);
  std::swap(pending_, other.pending_);
  return *this;
}

Transfer::~Transfer() {
  const auto under_way = [](const Pending& pending) { return pending.message != nullptr; };
  if (group_ == nullptr || std::ranges::none_of(pending_, under_way)) return;
  // Its bytes may go now, while the other rank still counts on the message.
  group_->Fail({ErrorCode::kIo, fmt::format("ranks: rank {} gave up {}", group_->rank(), what_)});
}

Result<bool> Transfer::IsDone() { return group_ == nullptr ? true : group_->Poll(*this); }

Result<void> Transfer::Wait() {
  if (group_ == nullptr) return {};
  return group_->Wait(*this, group_->options().deadline_us);
}

Result<void> Group::Check() const {
  if (broken_) return std::unexpected(*broken_);
  return {};
}

Error Group::Fail(Error error) {
  if (!broken_) {
    alarm_.Tell(error);
    broken_ = std::move(error);
  }
  return *broken_;
}

Transfer Group::Begin(std::string_view what) {
  Transfer transfer;
  transfer.group_ = this;
  transfer.what_ = what;
  return transfer;
}

Result<void> Group::AddSend(Transfer& transfer, uint32_t to, Channel channel,
                            std::span<const std::byte> bytes) {
  auto message = transport_.Send(to, channel, bytes);
  if (!message) return std::unexpected(Fail(std::move(message).error()));
  traffic_.sent_bytes += bytes.size();
  ++traffic_.messages;
  transfer.pending_.push_back({.rank = to, .message = *std::move(message)});
  return {};
}

Result<void> Group::AddReceive(Transfer& transfer, uint32_t from, Channel channel,
                               std::span<std::byte> bytes) {
  auto message = transport_.Receive(from, channel, bytes);
  if (!message) return std::unexpected(Fail(std::move(message).error()));
  traffic_.received_bytes += bytes.size();
  transfer.pending_.push_back({.rank = from, .message = *std::move(message)});
  return {};
}

Result<bool> Group::Poll(Transfer& transfer) {
  QUIRE_TRY(Check());
  bool all = true;
  for (Transfer::Pending& pending : transfer.pending_) {
    if (pending.message == nullptr) continue;
    auto done = pending.message->IsDone();
    if (!done) {
      done.error().message = fmt::format("ranks: {} with rank {}: {}", transfer.what_, pending.rank,
                                         done.error().message);
      return std::unexpected(Fail(std::move(done).error()));
    }
    if (*done) {
      pending.message.reset();
    } else {
      all = false;
    }
  }
  return all;
}

Result<void> Group::Wait(Transfer& transfer, uint64_t deadline_us) {
  const uint64_t begin_us = clock_.NowMicros();
  uint64_t waited_us = 0;
  while (true) {
    QUIRE_ASSIGN(const bool done, Poll(transfer));
    if (done) return {};
    waited_us = clock_.NowMicros() - begin_us;
    if (waited_us < static_cast<uint64_t>(kSpinTime.count())) {
      Pause();
      continue;
    }
    if (waited_us >= deadline_us || alarm_.IsRaised()) break;
    if (waited_us < kEagerUs) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(waited_us < kIdleUs ? kNap : kIdleNap);
    }
  }
  RankSet silent = 0;
  for (const Transfer::Pending& pending : transfer.pending_) {
    if (pending.message != nullptr) silent |= RankSet{1} << pending.rank;
  }
  broken_ = alarm_.Accuse({.silent = silent,
                           .what = transfer.what_,
                           .waited_us = waited_us,
                           .deadline_us = deadline_us});
  return std::unexpected(*broken_);
}

Result<void> Group::Heed(const Alarm::Wait& wait) {
  QUIRE_TRY(Check());
  if (wait.waited_us < wait.deadline_us && !alarm_.IsRaised()) return {};
  broken_ = alarm_.Accuse(wait);
  return std::unexpected(*broken_);
}

Result<void> Group::Broadcast(uint32_t root, std::span<std::byte> bytes) {
  QUIRE_CHECK(root < size());
  QUIRE_TRY(Check());
  Transfer transfer = Begin("broadcast");
  if (rank() != root) {
    QUIRE_TRY(AddReceive(transfer, root, Channel::kCollective, bytes));
    return transfer.Wait();
  }
  for (uint32_t to = 0; to < size(); ++to) {
    if (to != root) QUIRE_TRY(AddSend(transfer, to, Channel::kCollective, bytes));
  }
  return transfer.Wait();
}

Result<void> Group::BroadcastAny(uint32_t root, std::vector<std::byte>& bytes) {
  uint64_t length = bytes.size();
  QUIRE_TRY(Broadcast(root, BytesOf(length)));
  bytes.resize(length);
  return Broadcast(root, bytes);
}

Result<void> Group::AllGather(std::span<const std::byte> own, std::span<std::byte> all) {
  QUIRE_ASSIGN(Transfer transfer, BeginAllGather(own, all));
  return transfer.Wait();
}

Result<Transfer> Group::BeginAllGather(std::span<const std::byte> own, std::span<std::byte> all) {
  QUIRE_CHECK(all.size() == own.size() * size());
  QUIRE_TRY(Check());
  Transfer transfer = Begin("all-gather");
  for (uint32_t other = 0; other < size(); ++other) {
    const auto place = all.subspan(other * own.size(), own.size());
    if (other == rank()) {
      std::ranges::copy(own, place.begin());
    } else {
      QUIRE_TRY(AddReceive(transfer, other, Channel::kCollective, place));
    }
  }
  for (uint32_t i = 1; i < size(); ++i) {
    QUIRE_TRY(AddSend(transfer, (rank() + i) % size(), Channel::kCollective, own));
  }
  return transfer;
}

Result<std::vector<std::vector<std::byte>>> Group::AllGatherAny(std::span<const std::byte> own) {
  const uint64_t length = own.size();
  std::vector<uint64_t> lengths(size());
  QUIRE_TRY(AllGather(BytesOf(length), std::as_writable_bytes(std::span(lengths))));
  std::vector<std::vector<std::byte>> all(size());
  Transfer transfer = Begin("all-gather");
  for (uint32_t other = 0; other < size(); ++other) {
    all[other].resize(lengths[other]);
    if (other == rank()) {
      std::ranges::copy(own, all[other].begin());
    } else {
      QUIRE_TRY(AddReceive(transfer, other, Channel::kCollective, all[other]));
    }
  }
  for (uint32_t i = 1; i < size(); ++i) {
    QUIRE_TRY(AddSend(transfer, (rank() + i) % size(), Channel::kCollective, own));
  }
  QUIRE_TRY(transfer.Wait());
  return all;
}

Result<void> Group::Barrier(std::optional<uint64_t> deadline_us) {
  QUIRE_TRY(Check());
  const std::byte here{};
  std::vector<std::byte> there(size());
  Transfer transfer = Begin("barrier");
  for (uint32_t other = 0; other < size(); ++other) {
    if (other == rank()) continue;
    QUIRE_TRY(AddReceive(transfer, other, Channel::kCollective, BytesOf(there[other])));
    QUIRE_TRY(AddSend(transfer, other, Channel::kCollective, BytesOf(here)));
  }
  return Wait(transfer, deadline_us.value_or(options_.deadline_us));
}

Result<Transfer> Group::Send(uint32_t to, std::span<const std::byte> bytes) {
  QUIRE_CHECK(to < size() && to != rank());
  QUIRE_TRY(Check());
  Transfer transfer = Begin("send");
  QUIRE_TRY(AddSend(transfer, to, Channel::kData, bytes));
  return transfer;
}

Result<Transfer> Group::Receive(uint32_t from, std::span<std::byte> bytes) {
  QUIRE_CHECK(from < size() && from != rank());
  QUIRE_TRY(Check());
  Transfer transfer = Begin("receive");
  QUIRE_TRY(AddReceive(transfer, from, Channel::kData, bytes));
  return transfer;
}

Result<Transfer> Group::Shift(std::span<const std::byte> to_next,
                              std::span<std::byte> from_previous) {
  QUIRE_CHECK(to_next.size() == from_previous.size());
  QUIRE_TRY(Check());
  if (size() == 1) {
    std::ranges::copy(to_next, from_previous.begin());
    return Transfer();
  }
  Transfer transfer = Begin("ring shift");
  QUIRE_TRY(AddReceive(transfer, (rank() + size() - 1) % size(), Channel::kData, from_previous));
  QUIRE_TRY(AddSend(transfer, (rank() + 1) % size(), Channel::kData, to_next));
  return transfer;
}

}  // namespace quire::ranks
