#include "ranks/rank_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

namespace quire::ranks {
namespace {

/// Lane states of some rows and heads, in one piece of memory: max, sum, out.
struct States {
  static uint64_t Floats(uint64_t vectors, uint64_t dim) { return vectors * (dim + 2); }
  float* max() const { return data; }
  float* sum() const { return data + vectors; }
  float* out() const { return data + 2 * vectors; }
  /// Those of a task from its first vector on.
  LaneStates From(LaneSet lanes, uint64_t first) const {
    return {.lanes = lanes, .max = max() + first, .sum = sum() + first, .out = out() + first * dim};
  }

  uint64_t vectors = 0;  // rows * query_heads * lanes
  uint64_t dim = 0;
  float* data = nullptr;
};

class RankPlan final : public AttentionPlan {
 public:
  RankPlan(const AttentionShape& shape, std::span<const AttentionTask> tasks, Group& group,
           const LaneShare& share)
      : group_(group), share_(share), dim_(shape.value.dim) {
    for (const AttentionTask& task : tasks) queries_ += uint64_t{task.rows} * shape.query_heads;
    const uint64_t own_floats = States::Floats(queries_ * OwnLanes(), dim_);
    own_ = std::make_unique_for_overwrite<float[]>(own_floats);
    gathered_ = std::make_unique_for_overwrite<float[]>(own_floats * share_.ranks());
    all_ = std::make_unique_for_overwrite<float[]>(States::Floats(queries_ * kLanes, dim_));
  }

  Result<void> Prepare(AttentionBackend& inner, const AttentionShape& shape,
                       const BlockTables& tables, std::span<const AttentionTask> tasks,
                       Executor& executor) {
    std::vector<AttentionTask> own;
    std::vector<AttentionTask> last;
    uint64_t query = 0;
    for (const AttentionTask& task : tasks) {
      own.push_back(task);
      own.back().out = nullptr;
      own.back().to = Own().From(share_.lanes(), query * OwnLanes());
      last.push_back(task);
      last.back().splits = {.begin = 0, .end = 0};
      last.back().from = All().From(kAllLanes, query * kLanes);
      query += uint64_t{task.rows} * shape.query_heads;
    }
    QUIRE_ASSIGN(own_plan_, inner.Prepare(shape, tables, own, executor));
    QUIRE_ASSIGN(last_plan_, inner.Prepare(shape, tables, last, executor));
    return {};
  }

  Result<void> Run(const AttentionShape& shape, Executor& executor) override {
    QUIRE_TRY(own_plan_->Run(shape, executor));
    const uint64_t floats = States::Floats(queries_ * OwnLanes(), dim_);
    const std::span<const float> own(own_.get(), floats);
    const std::span<float> gathered(gathered_.get(), floats * share_.ranks());
    QUIRE_TRY(group_.AllGather(std::as_bytes(own), std::as_writable_bytes(gathered)));
    executor.ParallelFor(share_.ranks(),
                         [this](uint32_t rank, uint32_t /*worker*/) { PutInOrder(rank); });
    return last_plan_->Run(shape, executor);
  }

 private:
  uint64_t OwnLanes() const { return kLanes / share_.ranks(); }
  States Own() const { return {queries_ * OwnLanes(), dim_, own_.get()}; }
  States All() const { return {queries_ * kLanes, dim_, all_.get()}; }
  States Gathered(uint32_t rank) const {
    const uint64_t vectors = queries_ * OwnLanes();
    return {vectors, dim_, gathered_.get() + rank * States::Floats(vectors, dim_)};
  }

  // The lanes of one rank, between those of the others.
  void PutInOrder(uint32_t rank) const {
    const States from = Gathered(rank);
    const States to = All();
    for (uint64_t i = 0; i < from.vectors; ++i) {
      const uint64_t lane = i % OwnLanes() * share_.ranks() + rank;
      const uint64_t at = i / OwnLanes() * kLanes + lane;
      to.max()[at] = from.max()[i];
      to.sum()[at] = from.sum()[i];
      std::copy_n(from.out() + i * dim_, dim_, to.out() + at * dim_);
    }
  }

  Group& group_;
  const LaneShare share_;
  const uint64_t dim_;
  uint64_t queries_ = 0;  // rows * query_heads
  std::unique_ptr<float[]> own_;
  std::unique_ptr<float[]> gathered_;  // [ranks] of what own_ is
  std::unique_ptr<float[]> all_;       // lanes in ascending order
  std::unique_ptr<AttentionPlan> own_plan_{};
  std::unique_ptr<AttentionPlan> last_plan_{};
};

}  // namespace

Result<void> RankAttention::Attend(const AttentionShape& shape, const BlockTables& tables,
                                   std::span<const AttentionTask> tasks, Executor& executor) {
  QUIRE_ASSIGN(const auto plan, Prepare(shape, tables, tasks, executor));
  return plan->Run(shape, executor);
}

Result<std::unique_ptr<AttentionPlan>> RankAttention::Prepare(const AttentionShape& shape,
                                                              const BlockTables& tables,
                                                              std::span<const AttentionTask> tasks,
                                                              Executor& executor) {
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (tasks[i].out != nullptr && tasks[i].from.lanes == 0) continue;
    return Fail(ErrorCode::kUnsupported,
                fmt::format("tasks[{}]: it is partial; ranks divide the lanes themselves", i));
  }
  try {
    auto plan = std::make_unique<RankPlan>(shape, tasks, group_, share_);
    QUIRE_TRY(plan->Prepare(inner_, shape, tables, tasks, executor));
    return plan;
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kNoSpace,
                "ranks: the system has no memory for the lane states of a step; take smaller "
                "chunks (--chunk)");
  }
}

}  // namespace quire::ranks
