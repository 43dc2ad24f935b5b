#include "apps/quire/sequence_ranks.h"

#include <fmt/format.h>

#include <bit>
#include <utility>

#include "env/clock.h"

namespace quire::app {

Result<ranks::sequence::LaneShare> SequenceRanks::ShareOf(const ranks::Group& group) {
  const uint32_t size = group.size();
  if (std::has_single_bit(size) && size <= kLanes)
    return ranks::sequence::LaneShare(group.rank(), size);
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("--ranks sequence: {} ranks; 1, 2, 4, 8 or 16 can divide the {} lanes of "
                          "a context",
                          size, kLanes));
}

SequenceRanks::SequenceRanks(ranks::sequence::ShareCache cache, const Components& components)
    : cache_(std::move(cache)),
      vocab_(components.model.config().vocab),
      member_(std::make_unique<ranks::sequence::Member>(ranks::sequence::Member::Components{
          components.group, cache_, components.model, components.attention, components.executor})) {
  if (components.group.rank() == 0)
    leader_ = std::make_unique<ranks::sequence::LeaderCache>(*member_);
}

Result<std::unique_ptr<SequenceRanks>> SequenceRanks::Join(const Components& components) {
  QUIRE_ASSIGN(const ranks::sequence::LaneShare share, ShareOf(components.group));
  QUIRE_ASSIGN(auto cache, ranks::sequence::ShareCache::Create(
                               components.cache, components.identity, share,
                               {.vocab = components.model.config().vocab,
                                .loads = components.loads,
                                .load_timeout_us = components.group.options().deadline_us / 2}));
  std::unique_ptr<SequenceRanks> joined(new SequenceRanks(std::move(cache), components));
  // Whatever decides bits; secrets differ, each rank has a store of its own.
  Identity same = components.identity;
  same.domain.secret = {};
  const Digest description = RootKey(same, components.geometry, components.cache.options().profile);
  QUIRE_TRY(joined->member_->Join(description, kRankLoadDeadlineUs));
  return joined;
}

Result<void> SequenceRanks::KeepAlive() {
  const uint64_t now_us = SystemClock().NowMicros();
  if (now_us - beat_us_ < KeepAliveUs(member_->group())) {
    return member_->group().Check();
  }
  beat_us_ = now_us;
  return leader_->Beat();
}

nlohmann::ordered_json SequenceRanks::Describe() const {
  return {{"mode", "sequence"},
          {"count", leader_->ranks()},
          {"sent_bytes", leader_->traffic().sent_bytes},
          {"received_bytes", leader_->traffic().received_bytes}};
}

}  // namespace quire::app
