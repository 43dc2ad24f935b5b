#include "ranks/local_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "base/prng.h"

namespace quire::ranks {

/// Letters on their way, in a box for each pair of ranks and channel. The n-th letter of a box is
/// for the n-th receive.
class LocalRanks::Mail {
 public:
  using Pair = std::tuple<uint32_t, uint32_t, Channel>;  // from, to

  Mail(uint32_t size, const Clock& clock, const Schedule& schedule)
      : size_(size), clock_(clock), schedule_(schedule), draws_(schedule.seed) {}

  uint32_t size() const { return size_; }
  const Schedule& schedule() const { return schedule_; }

  /// Null: it is sent. Else it is once this is true.
  std::shared_ptr<std::atomic<bool>> Put(const Pair& pair, std::span<const std::byte> bytes) {
    MutexLock lock(mutex_);
    Box& box = boxes_[pair];
    Letter letter{.bytes = {bytes.begin(), bytes.end()}};
    if (schedule_.delay_us_max > 0) {
      const uint64_t delay_us = draws_.NextBelow(schedule_.delay_us_max + 1);
      box.last_comes_us = std::max(box.last_comes_us, clock_.NowMicros() + delay_us);
      if (draws_.NextBelow(2) == 0) letter.taken = std::make_shared<std::atomic<bool>>(false);
    }
    letter.comes_us = box.last_comes_us;
    auto taken = letter.taken;
    box.letters.emplace(box.sent++, std::move(letter));
    return taken;
  }
  /// The number of the letter that this receive gets.
  uint64_t Expect(const Pair& pair) {
    MutexLock lock(mutex_);
    return boxes_[pair].expected++;
  }
  /// That letter, if it has come.
  std::optional<std::vector<std::byte>> Take(const Pair& pair, uint64_t number) {
    MutexLock lock(mutex_);
    Box& box = boxes_[pair];
    const auto found = box.letters.find(number);
    if (found == box.letters.end() || found->second.comes_us > clock_.NowMicros()) {
      return std::nullopt;
    }
    Letter letter = std::move(found->second);
    box.letters.erase(found);
    if (letter.taken != nullptr) letter.taken->store(true, std::memory_order_release);
    return std::move(letter.bytes);
  }

 private:
  struct Letter {
    std::vector<std::byte> bytes;
    uint64_t comes_us = 0;                       // when it can be received
    std::shared_ptr<std::atomic<bool>> taken{};  // set then; null: its sender does not wait
  };
  struct Box {
    uint64_t sent = 0;
    uint64_t expected = 0;
    uint64_t last_comes_us = 0;            // no later letter comes earlier
    std::map<uint64_t, Letter> letters{};  // by number
  };

  const uint32_t size_;
  const Clock& clock_;
  const Schedule schedule_;
  Mutex mutex_{LockRank::kLeaf};
  Prng draws_ QUIRE_GUARDED_BY(mutex_);
  std::map<Pair, Box> boxes_ QUIRE_GUARDED_BY(mutex_);
};

class LocalRanks::Sent final : public Message {
 public:
  explicit Sent(std::shared_ptr<std::atomic<bool>> taken) : taken_(std::move(taken)) {}
  Result<bool> IsDone() override {
    return taken_ == nullptr || taken_->load(std::memory_order_acquire);
  }

 private:
  const std::shared_ptr<std::atomic<bool>> taken_;
};

class LocalRanks::Received final : public Message {
 public:
  Received(Mail& mail, const Mail::Pair& pair, std::span<std::byte> bytes)
      : mail_(mail), pair_(pair), number_(mail.Expect(pair)), bytes_(bytes) {}
  Result<bool> IsDone() override {
    const auto came = mail_.Take(pair_, number_);
    if (!came) return false;
    if (came->size() != bytes_.size()) {
      return Fail(ErrorCode::kCorrupt,
                  fmt::format("{} bytes came, {} were expected", came->size(), bytes_.size()));
    }
    std::ranges::copy(*came, bytes_.begin());
    return true;
  }

 private:
  Mail& mail_;
  const Mail::Pair pair_;
  const uint64_t number_;
  const std::span<std::byte> bytes_;
};

class LocalRanks::End final : public Transport {
 public:
  End(Mail& mail, uint32_t rank) : mail_(mail), rank_(rank) {}

  uint32_t rank() const override { return rank_; }
  uint32_t size() const override { return mail_.size(); }
  Result<std::unique_ptr<Message>> Send(uint32_t to, Channel channel,
                                        std::span<const std::byte> bytes) override {
    QUIRE_TRY(Live());
    return std::make_unique<Sent>(mail_.Put({rank_, to, channel}, bytes));
  }
  Result<std::unique_ptr<Message>> Receive(uint32_t from, Channel channel,
                                           std::span<std::byte> bytes) override {
    QUIRE_TRY(Live());
    return std::make_unique<Received>(mail_, Mail::Pair{from, rank_, channel}, bytes);
  }

 private:
  Result<void> Live() {
    const auto& death = mail_.schedule().death;
    if (!death || death->rank != rank_ || begun_++ < death->after_messages) return {};
    return Fail(ErrorCode::kIo, fmt::format("rank {} died, as the schedule says", rank_));
  }

  Mail& mail_;
  const uint32_t rank_;
  uint64_t begun_ = 0;
};

LocalRanks::LocalRanks(uint32_t size, const Clock& clock, const Schedule& schedule)
    : mail_(std::make_unique<Mail>(size, clock, schedule)) {}
LocalRanks::~LocalRanks() = default;

std::unique_ptr<Transport> LocalRanks::Join(uint32_t rank) {
  QUIRE_CHECK(rank < mail_->size());
  return std::make_unique<End>(*mail_, rank);
}

}  // namespace quire::ranks
