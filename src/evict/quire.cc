#include "evict/quire.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace quire::evict {
namespace {

constexpr uint64_t kPathEndsMin = 16'384;

// Features of a request by place; 0 is the constant.
enum Feature : uint32_t {
  kPromptLength = 1,  // and its square
  kOutputLength = 3,  // and its square
  kSecondTurn = 5,
  kLaterTurn = 6,
  kGap = 7,
  kBranches = 8,  // of a block, as kEndsPath
  kEndsPath = 9,
};

float LogScaled(uint64_t count, double divisor, double centre) {
  return static_cast<float>(std::log(static_cast<double>(count) + 1) / divisor - centre);
}

}  // namespace

void QuirePolicy::Begin(const RequestFacts& request) {
  now_ms_ = request.time_ms == 0 ? now_ms_ + 1 : std::max(now_ms_, request.time_ms);
  const PathHistory::Turn turn =
      paths_.Note(request.keys, now_ms_, std::max(kPathEndsMin, resident_ / 8));
  in_request_ = true;
  blocks_ = request.keys.size();
  continues_ = turn.number > 0;
  // Lengths spread over a few powers of e; the divisors only bring them to about -1 to 1.
  features_ = {1};
  features_[kPromptLength] = LogScaled(request.prompt_tokens, 5, 1.5);
  features_[kPromptLength + 1] = features_[kPromptLength] * features_[kPromptLength];
  features_[kOutputLength] = LogScaled(request.output_tokens, 4, 1.2);
  features_[kOutputLength + 1] = features_[kOutputLength] * features_[kOutputLength];
  features_[kSecondTurn] = turn.number == 1 ? 1.0F : 0.0F;
  features_[kLaterTurn] = turn.number > 1 ? 1.0F : 0.0F;
  features_[kGap] = continues_ ? LogScaled(turn.gap_ms / 1000, 5, 1) : 0.0F;
  class_ = shadow_.model().ClassOf(shadow_.model().Score(features_));
}

void QuirePolicy::Add(BlockId block, const BlockFacts& facts) {
  QUIRE_CHECK(!block.is_none());
  if (block.number() >= records_.size()) records_.resize(block.number() + size_t{1});
  if (facts.parent.number() < records_.size()) {
    __builtin_prefetch(&records_[facts.parent.number()]);  // it is added next
  }
  Record& record = records_[block.number()];
  if (!record.resident) ++resident_;
  const bool is_new = !record.resident || record.key != facts.key;
  if (is_new) record = {.key = facts.key, .resident = true};
  if (!in_request_) {
    const auto former = is_new ? std::nullopt : order_.FormerRank(block);
    const uint32_t of_class =
        former ? former->queue : shadow_.model().ClassOf(shadow_.model().Score({1}));
    order_.Add(block, facts.parent, {.queue = of_class, .weight = now_ms_, .stamp = ++stamp_});
    return;
  }
  if (!is_new && !continues_) ++record.branches;
  const bool ends_path = facts.depth + uint64_t{1} == blocks_;
  const bool is_plain = record.branches == 0 && !ends_path;
  const bool is_sampled = ReturnShadow::Samples(facts.key);
  uint32_t of_class = class_;
  if (!is_plain || is_sampled) {
    ReturnFeatures features = features_;
    if (record.branches > 0) features[kBranches] = std::log2(1.0F + record.branches) / 2;
    features[kEndsPath] = ends_path ? 1.0F : 0.0F;
    if (!is_plain) of_class = shadow_.model().ClassOf(shadow_.model().Score(features));
    if (is_sampled) shadow_.Use(facts.key, features, now_ms_, resident_);
  }
  order_.Add(block, facts.parent, {.queue = of_class, .weight = now_ms_, .stamp = ++stamp_});
}

void QuirePolicy::Evict(BlockId block) {
  const BlockId parent = order_.Remove(block);
  if (!parent.is_none()) __builtin_prefetch(&records_[parent.number()]);  // mostly goes next
  order_.Forget(block);
  records_[block.number()] = {};
  --resident_;
}

std::optional<BlockId> QuirePolicy::Victim() const {
  const BlockId block = shadow_.model_leads() ? least_worth_.Find(order_, shadow_.model(), now_ms_)
                                              : least_worth_.FindOldest(order_);
  return block.is_none() ? std::nullopt : std::optional(block);
}

}  // namespace quire::evict
