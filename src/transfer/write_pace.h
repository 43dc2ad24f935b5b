// When blocks that wait are written to the store.
#ifndef QUIRE_TRANSFER_WRITE_PACE_H_
#define QUIRE_TRANSFER_WRITE_PACE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>

namespace quire::transfer {

/// Spreads writing: what begins to wait is written evenly over a time, so that a prompt that was
/// published all at once does not take the memory's and the disk's bandwidth from computing.
/// Where blocks leave memory before their turn, all is written at once for a while.
///
/// Threads: one at a time
class WritePace {
 public:
  /// `spread_us` 0: everything is due at once.
  explicit WritePace(uint64_t spread_us) : spread_us_(spread_us) {}

  /// How many of `queued` blocks are to be written now. `lost_total`: how many have left memory
  /// unwritten so far. What was written since the last call is seen by the queue being shorter.
  uint64_t Due(uint64_t now_us, uint64_t queued, uint64_t lost_total) {
    if (lost_total > lost_total_) hurried_until_us_ = now_us + kHurryUs;
    lost_total_ = lost_total;
    if (queued > queued_) Add(now_us, queued - queued_);
    if (queued < queued_) left_ += queued_ - queued;
    queued_ = queued;
    while (!batches_.empty() && now_us >= batches_.front().begin_us + spread_us_) {
      due_ += batches_.front().blocks;
      batches_.pop_front();
    }
    if (spread_us_ == 0 || now_us < hurried_until_us_) return queued;
    double due = static_cast<double>(due_);
    for (const Batch& batch : batches_) {
      const auto waited_us = static_cast<double>(now_us - batch.begin_us);
      due += static_cast<double>(batch.blocks) * waited_us / static_cast<double>(spread_us_);
    }
    const auto by_now = static_cast<uint64_t>(std::ceil(due));
    return std::min(by_now - std::min(by_now, left_), queued);
  }

 private:
  static constexpr uint64_t kHurryUs = 10'000'000;
  static constexpr uint64_t kBatchesPerSpread = 32;

  struct Batch {
    uint64_t begin_us = 0;
    uint64_t blocks = 0;
  };

  // A little later than another batch is as good as with it.
  void Add(uint64_t now_us, uint64_t blocks) {
    if (batches_.empty() || now_us - batches_.back().begin_us > spread_us_ / kBatchesPerSpread) {
      batches_.push_back({.begin_us = now_us});
    }
    batches_.back().blocks += blocks;
  }

  uint64_t spread_us_;
  std::deque<Batch> batches_;
  uint64_t due_ = 0;   // of batches whose time is over
  uint64_t left_ = 0;  // the queue so far
  uint64_t queued_ = 0;
  uint64_t lost_total_ = 0;
  uint64_t hurried_until_us_ = 0;
};

}  // namespace quire::transfer

#endif  // QUIRE_TRANSFER_WRITE_PACE_H_
