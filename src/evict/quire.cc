#include "evict/quire.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace quire::evict {
namespace {

// Ends of paths, or watched blocks, that are enough in any cache; or an eighth of its blocks.
constexpr uint64_t kEnough = 16'384;
constexpr uint64_t kWatchedLeast = 1024;  // fewer teach nothing

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

QuirePolicy::QuirePolicy()
    : order_(ReturnModel::kClasses), records_(std::make_shared<PerBlock<Record>>()) {}

QuirePolicy::QuirePolicy(const LeafOrder& order, std::shared_ptr<PerBlock<Record>> records)
    : order_(ReturnModel::kClasses, order), records_(std::move(records)) {}

std::unique_ptr<Policy> QuirePolicy::MakeSibling() const {
  return std::unique_ptr<Policy>(new QuirePolicy(order_, records_));
}

// Learns while there is memory for it.
void QuirePolicy::ShareHistory(uint64_t cache_blocks) {
  const uint64_t fixed_bytes =
      sizeof(Learner) + sizeof(LeastWorth) + cache_blocks * RecencyJudge::kBytesEach;
  const uint64_t bytes = history_bytes_ - std::min(history_bytes_, fixed_bytes);
  const uint64_t enough = std::max(kEnough, cache_blocks / 8);
  shares_.ends = std::min(enough, bytes / 3 / PathHistory::kBytesEach);
  shares_.watched =
      std::min(enough, (bytes - shares_.ends * PathHistory::kBytesEach) / ReturnShadow::kBytesEach);
  if (shares_.watched < kWatchedLeast) {
    learner_.reset();
  } else if (learner_ == nullptr) {
    learner_ = std::make_unique<Learner>();
    least_worth_ = std::make_unique<LeastWorth>();  // the one before knew another model
  }
}

uint32_t QuirePolicy::ClassOf(const ReturnFeatures& features) const {
  if (learner_ == nullptr) return 0;
  const ReturnModel& model = learner_->shadow.model();
  return model.ClassOf(model.Score(features));
}

void QuirePolicy::Begin(const RequestFacts& request) {
  std::unique_ptr<Use> use;
  uint64_t keys_left = UINT64_MAX;
  BeginSome(request, use, keys_left);
}

// Between two pieces the learner may be freed or replaced, so `use` has no pointer into it.
bool QuirePolicy::BeginSome(const RequestFacts& request, std::unique_ptr<Use>& use,
                            uint64_t& keys_left) {
  if (use == nullptr) use = BeginFirst(request);
  auto& beginning = static_cast<Beginning&>(*use);
  if (learner_ != nullptr) {
    const RecencyJudge::Path path = {.keys = request.keys,
                                     .asked_blocks = request.asked_blocks,
                                     .hit_blocks = request.hit_blocks,
                                     .cache_blocks = beginning.cache_blocks};
    if (!learner_->judge.UseSome(path, beginning.judged, keys_left)) return false;
    if (!learner_->paths.NoteSome(request.keys, now_ms_, shares_.ends, beginning.noted,
                                  keys_left)) {
      return false;
    }
    SetFeatures(request, beginning.noted.turn);
  }
  request_.is_under_way = true;
  request_.blocks = request.keys.size();
  return true;
}

std::unique_ptr<QuirePolicy::Beginning> QuirePolicy::BeginFirst(const RequestFacts& request) {
  now_ms_ = request.time_ms == 0 ? now_ms_ + 1 : std::max(now_ms_, request.time_ms);
  auto beginning = std::make_unique<Beginning>();
  const uint64_t blocks = request.keys.size();
  beginning->cache_blocks = resident_ + blocks - std::min(blocks, request.hit_blocks);
  ShareHistory(beginning->cache_blocks);
  if (learner_ != nullptr) learner_->shadow.Begin(beginning->cache_blocks, has_evicted_);
  return beginning;
}

// Lengths spread over a few powers of e; the divisors only bring them to about -1 to 1.
void QuirePolicy::SetFeatures(const RequestFacts& request, const PathHistory::Turn& turn) {
  request_.continues = turn.number > 0;
  request_.features = {1};
  request_.features[kPromptLength] = LogScaled(request.prompt_tokens, 5, 1.5);
  request_.features[kPromptLength + 1] =
      request_.features[kPromptLength] * request_.features[kPromptLength];
  request_.features[kOutputLength] = LogScaled(request.output_tokens, 4, 1.2);
  request_.features[kOutputLength + 1] =
      request_.features[kOutputLength] * request_.features[kOutputLength];
  request_.features[kSecondTurn] = turn.number == 1 ? 1.0F : 0.0F;
  request_.features[kLaterTurn] = turn.number > 1 ? 1.0F : 0.0F;
  request_.features[kGap] = request_.continues ? LogScaled(turn.gap_ms / 1000, 5, 1) : 0.0F;
  request_.of_class = ClassOf(request_.features);
}

void QuirePolicy::End() {
  if (request_.is_under_way && learner_ != nullptr) learner_->judge.End(resident_);
  request_.is_under_way = false;
}

std::unique_ptr<Policy::Use> QuirePolicy::Pause() {
  auto paused = std::make_unique<Paused>();
  paused->request = std::exchange(request_, {});
  return paused;
}

void QuirePolicy::Resume(std::unique_ptr<Use> use) {
  request_ = static_cast<Paused&>(*use).request;
}

void QuirePolicy::Add(BlockId block, const BlockFacts& facts) {
  QUIRE_CHECK(!block.is_none());
  records_->Prefetch(facts.parent);  // it is added next
  Record& record = records_->At(block);
  if (!record.resident) ++resident_;
  const bool is_new = !record.resident || record.key != facts.key;
  if (is_new) record = {.key = facts.key, .resident = true};
  uint32_t of_class = request_.of_class;
  if (learner_ == nullptr) {
    of_class = 0;
  } else if (!request_.is_under_way) {
    const auto former = is_new ? std::nullopt : order_.FormerRank(block);
    of_class = former ? former->queue : ClassOf({1});
  } else {
    if (!is_new && !request_.continues) ++record.branches;
    const bool ends_path = facts.depth + uint64_t{1} == request_.blocks;
    const bool is_plain = record.branches == 0 && !ends_path;
    const bool is_sampled = learner_->shadow.Samples(facts.key);
    if (!is_plain || is_sampled) {
      ReturnFeatures features = request_.features;
      if (record.branches > 0) features[kBranches] = std::log2(1.0F + record.branches) / 2;
      features[kEndsPath] = ends_path ? 1.0F : 0.0F;
      if (!is_plain) of_class = ClassOf(features);
      if (is_sampled) {
        learner_->shadow.Use(facts.key, features, now_ms_, resident_, shares_.watched);
      }
    }
  }
  order_.Add(block, facts.parent, {.queue = of_class, .weight = now_ms_, .stamp = ++stamp_});
}

void QuirePolicy::Evict(BlockId block) {
  const BlockId parent = order_.Remove(block);
  records_->Prefetch(parent);  // mostly goes next
  has_evicted_ = true;
  (*records_)[block] = {};  // so the order need not be asked for the former rank
  --resident_;
}

std::optional<BlockId> QuirePolicy::Victim() const {
  // Without a learner ever, all blocks are of one class.
  if (least_worth_ == nullptr) return order_.First();
  const bool model_leads =
      learner_ != nullptr && learner_->shadow.model_leads() && learner_->judge.trusts();
  const BlockId block = model_leads ? least_worth_->Find(order_, learner_->shadow.model(), now_ms_)
                                    : least_worth_->FindOldest(order_);
  return block.is_none() ? std::nullopt : std::optional(block);
}

}  // namespace quire::evict
