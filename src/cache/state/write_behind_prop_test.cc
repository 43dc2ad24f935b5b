// The write-behind queue in lock step with a naive one: a list of blocks, and a map of their states
// in the store.
#include "cache/state/write_behind.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>

#include "base/prng.h"
#include "cache/state/lock_step.h"

namespace quire::cache {
namespace {

constexpr uint32_t kWriteBehindBlocks = 20;

class WriteBehindLockStep {
 public:
  void Step(Prng& prng) {
    const BlockId block(static_cast<uint32_t>(prng.NextBelow(kWriteBehindBlocks)));
    real_.Reserve(block.number() + 1);
    end_ = std::max(end_, block.number() + 1);
    const auto queued = std::ranges::find(queue_, block);
    switch (prng.NextBelow(8)) {
      case 0:
      case 1:
        real_.Queue(block);
        if (queued == queue_.end()) queue_.push_back(block);
        break;
      case 2:
        real_.Queue(block, /*first=*/true);
        if (queued == queue_.end()) queue_.push_front(block);
        break;
      case 3:
        real_.Unqueue(block);
        if (queued != queue_.end()) queue_.erase(queued);
        break;
      case 4:
        real_.Remove(block);
        if (queued != queue_.end()) queue_.erase(queued);
        below_.erase(block);
        break;
      default: {
        const bool twins = prng.NextChance(2);
        const auto below = static_cast<Below>(prng.NextBelow(3));
        real_.SetBelow(block, twins, below);
        below_[block][twins ? 1 : 0] = below;
      }
    }
    Compare();
  }

 private:
  void Compare() {
    real_.CheckInvariants();
    ASSERT_EQ(real_.queued(), queue_.size());
    ASSERT_EQ(real_.first(), queue_.empty() ? BlockId::None() : queue_.front());
    uint64_t stored = 0;
    for (uint32_t i = 0; i < end_; ++i) {
      const BlockId block(i);
      ASSERT_EQ(real_.IsQueued(block), std::ranges::count(queue_, block) > 0);
      const auto known = below_.find(block);
      for (const bool twins : {false, true}) {
        const Below below = known == below_.end() ? Below::kNothing : known->second[twins ? 1 : 0];
        ASSERT_EQ(real_.below(block, twins), below);
        if (!twins && below == Below::kDurable) ++stored;
      }
    }
    ASSERT_EQ(real_.stored(), stored);
  }

  WriteBehind real_;
  std::deque<BlockId> queue_;
  std::map<BlockId, std::array<Below, 2>> below_;  // sealed, twins
  uint32_t end_ = 0;                               // end of the ids that memory was reserved for
};

RC_GTEST_PROP(WriteBehindProperty, AgreesWithANaiveOne, (const std::vector<uint64_t>& seeds)) {
  WriteBehindLockStep both;
  StepFromSeeds(both, seeds, 4);
}

}  // namespace
}  // namespace quire::cache
