#include "ranks/alarm.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <thread>
#include <utility>

namespace quire::ranks {
namespace {

constexpr std::chrono::milliseconds kLookAgain{1};

RankSet SetOf(uint32_t rank) { return RankSet{1} << rank; }

std::string Names(RankSet ranks) {
  std::string names;
  for (uint32_t rank = 0; rank < kRanksMax; ++rank) {
    if ((ranks & SetOf(rank)) == 0) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", rank);
  }
  return names;
}

}  // namespace

// A receive for each other rank stands from the first look on. Where that fails the rank counts as
// silent.
void Alarm::Listen() {
  if (std::exchange(listens_, true)) return;
  others_.resize(transport_.size());
  for (uint32_t rank = 0; rank < transport_.size(); ++rank) {
    if (rank == transport_.rank()) continue;
    auto message = transport_.Receive(rank, Channel::kAlarm,
                                      std::as_writable_bytes(std::span(&others_[rank].notice, 1)));
    if (message) others_[rank].message = *std::move(message);
  }
}

bool Alarm::IsRaised() {
  Listen();
  bool raised = false;
  for (Other& other : others_) {
    if (other.message != nullptr) {
      const auto done = other.message->IsDone();
      other.has_come = done.has_value() && *done;
      if (!done || *done) other.message.reset();
    }
    raised = raised || other.has_come;
  }
  return raised;
}

void Alarm::Send(const Notice& notice) {
  if (!sent_.empty()) return;
  own_ = notice;
  for (uint32_t rank = 0; rank < transport_.size(); ++rank) {
    if (rank == transport_.rank()) continue;
    auto message = transport_.Send(rank, Channel::kAlarm, std::as_bytes(std::span(&own_, 1)));
    if (message) sent_.push_back(*std::move(message));
  }
}

void Alarm::Tell(const Error& error) {
  Notice notice{.code = static_cast<uint32_t>(error.code)};
  const size_t bytes = std::min(error.message.size(), notice.text.size() - 1);
  std::copy_n(error.message.begin(), bytes, notice.text.begin());
  Send(notice);
}

std::optional<Error> Alarm::Told() const {
  for (const Other& other : others_) {
    if (!other.has_come || other.notice.code == 0) continue;
    const auto end = std::ranges::find(other.notice.text, '\0');
    return Error{static_cast<ErrorCode>(other.notice.code),
                 std::string(other.notice.text.begin(), end)};
  }
  return std::nullopt;
}

Error Alarm::Accuse(const Wait& wait) {
  Listen();
  const bool is_late = wait.waited_us >= wait.deadline_us;
  Send({.overdue = is_late ? wait.silent : 0, .waits_for = wait.silent});
  const uint64_t begin_us = clock_.NowMicros();
  const RankSet last = SetOf(transport_.size() - 1);
  RankSet overdue = own_.overdue;
  RankSet waits_for = own_.waits_for;
  RankSet spoke = SetOf(transport_.rank());
  while (true) {
    IsRaised();
    if (auto told = Told()) return *std::move(told);
    for (uint32_t rank = 0; rank < transport_.size(); ++rank) {
      if (!others_[rank].has_come) continue;
      spoke |= SetOf(rank);
      overdue |= others_[rank].notice.overdue;
      waits_for |= others_[rank].notice.waits_for;
    }
    const RankSet quiet = (last | (last - 1)) & ~spoke;
    const bool only_failed_are_quiet = quiet != 0 && (quiet & ~overdue) == 0;
    const uint64_t listened_us = clock_.NowMicros() - begin_us;
    if (only_failed_are_quiet || listened_us >= wait.deadline_us / 10) break;
    std::this_thread::sleep_for(kLookAgain);
  }
  RankSet failed = wait.silent;
  if ((waits_for & ~spoke) != 0) failed = waits_for & ~spoke;
  if ((overdue & ~spoke) != 0) failed = overdue & ~spoke;
  return {ErrorCode::kIo,
          fmt::format("ranks: rank {} was not heard for {} ms ({} of rank {})", Names(failed),
                      wait.deadline_us / 1000, wait.what, transport_.rank())};
}

}  // namespace quire::ranks
