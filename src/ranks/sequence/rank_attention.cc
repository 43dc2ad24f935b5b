#include "ranks/sequence/rank_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "ranks/sequence/subtree.h"

namespace quire::ranks::sequence {
namespace {

/// A chunk's rows are attended to in so many pieces, so that the states of one travel while the
/// next one is computed; pieces of fewer rows are not worth a message.
constexpr uint32_t kPiecesMax = 4;
constexpr uint32_t kRowsPerPieceMin = 64;

constexpr float kEmptyMax = -std::numeric_limits<float>::infinity();

using Floats = std::unique_ptr<float[]>;

/// The states of a task from its first vector on.
LaneStates StatesFrom(const States& states, LaneSet lanes, uint64_t first) {
  return {.lanes = lanes,
          .max = states.max() + first,
          .sum = states.sum() + first,
          .out = states.out() + first * states.dim};
}

/// Some rows of each task.
class Piece {
 public:
  Piece(const AttentionShape& shape, std::vector<AttentionTask> tasks, const LaneShare& share)
      : tasks_(std::move(tasks)), share_(share), dim_(shape.value.dim) {
    for (const AttentionTask& task : tasks_) queries_ += uint64_t{task.rows} * shape.query_heads;
    const uint64_t floats = States::Floats(queries_, dim_);
    merged_ = std::make_unique_for_overwrite<float[]>(floats);
    gathered_ = std::make_unique_for_overwrite<float[]>(floats * share_.ranks());
    all_ = std::make_unique_for_overwrite<float[]>(States::Floats(queries_ * kLanes, dim_));
    // A rank's subtree stands in its lowest lane; the others stay empty.
    std::fill_n(All().max(), queries_ * kLanes, kEmptyMax);
    std::fill_n(All().sum(), queries_ * kLanes, 0.0f);
  }

  uint64_t own_floats() const { return States::Floats(queries_ * OwnLanes(), dim_); }

  /// `own`: memory of own_floats() that pieces may share.
  Result<void> Prepare(AttentionBackend& inner, const AttentionShape& shape,
                       const BlockTables& tables, float* own, Executor& executor) {
    own_ = {queries_ * OwnLanes(), dim_, own};
    std::vector<AttentionTask> of_lanes = tasks_;
    std::vector<AttentionTask> last = tasks_;
    uint64_t query = 0;
    for (size_t i = 0; i < tasks_.size(); ++i) {
      of_lanes[i].out = nullptr;
      of_lanes[i].to = StatesFrom(own_, share_.lanes(), query * OwnLanes());
      last[i].splits = {.begin = 0, .end = 0};
      last[i].from = StatesFrom(All(), kAllLanes, query * kLanes);
      query += uint64_t{tasks_[i].rows} * shape.query_heads;
    }
    QUIRE_ASSIGN(own_plan_, inner.Prepare(shape, tables, of_lanes, executor));
    QUIRE_ASSIGN(last_plan_, inner.Prepare(shape, tables, last, executor));
    return {};
  }

  /// Attends to the own lanes, and sends what came out on its way.
  Result<void> Attend(const AttentionShape& shape, Group& group, Executor& executor) {
    QUIRE_TRY(own_plan_->Run(shape, executor));
    const States merged = {queries_, dim_, merged_.get()};
    const uint32_t workers = executor.worker_count();
    executor.ParallelFor(workers, [&](uint32_t i, uint32_t /*worker*/) {
      MergeSubtrees(own_, OwnLanes(), queries_ * i / workers, queries_ * (i + 1) / workers, merged);
    });
    const uint64_t floats = States::Floats(queries_, dim_);
    const std::span<const float> own(merged_.get(), floats);
    const std::span<float> gathered(gathered_.get(), floats * share_.ranks());
    QUIRE_ASSIGN(under_way_,
                 group.BeginAllGather(std::as_bytes(own), std::as_writable_bytes(gathered)));
    return {};
  }

  /// Merges what came from all ranks.
  Result<void> Finish(const AttentionShape& shape, Executor& executor) {
    QUIRE_TRY(under_way_.Wait());
    executor.ParallelFor(share_.ranks(),
                         [this](uint32_t rank, uint32_t /*worker*/) { PutInOrder(rank); });
    return last_plan_->Run(shape, executor);
  }

 private:
  uint32_t OwnLanes() const { return kLanes / share_.ranks(); }
  States All() const { return {queries_ * kLanes, dim_, all_.get()}; }

  // Into the rank's lowest lane.
  void PutInOrder(uint32_t rank) const {
    const States from = {queries_, dim_, gathered_.get() + rank * States::Floats(queries_, dim_)};
    const States to = All();
    for (uint64_t query = 0; query < queries_; ++query) {
      const uint64_t at = query * kLanes + rank;
      to.max()[at] = from.max()[query];
      to.sum()[at] = from.sum()[query];
      std::copy_n(from.out() + query * dim_, dim_, to.out() + at * dim_);
    }
  }

  const std::vector<AttentionTask> tasks_;
  const LaneShare share_;
  const uint64_t dim_;
  uint64_t queries_ = 0;  // rows * query_heads
  States own_{};
  Floats merged_;    // of the own subtree
  Floats gathered_;  // [ranks] of what merged_ is
  Floats all_;       // [16 lanes]
  std::unique_ptr<AttentionPlan> own_plan_{};
  std::unique_ptr<AttentionPlan> last_plan_{};
  Transfer under_way_{};
};

/// Rows [begin, end) of a task.
AttentionTask RowsOf(const AttentionShape& shape, const AttentionTask& task, uint32_t begin,
                     uint32_t end) {
  AttentionTask rows = task;
  rows.queries += uint64_t{begin} * shape.query_heads * shape.key.dim;
  rows.out += uint64_t{begin} * shape.query_heads * shape.value.dim;
  rows.first_position += begin;
  rows.rows = end - begin;
  return rows;
}

class RankPlan final : public AttentionPlan {
 public:
  explicit RankPlan(Group& group) : group_(group) {}

  Result<void> Prepare(AttentionBackend& inner, const AttentionShape& shape,
                       const BlockTables& tables, std::span<const AttentionTask> tasks,
                       const LaneShare& share, Executor& executor) {
    uint64_t rows = 0;
    for (const AttentionTask& task : tasks) rows += task.rows;
    const auto count = static_cast<uint32_t>(
        std::clamp<uint64_t>(rows / kRowsPerPieceMin, 1, share.ranks() == 1 ? 1 : kPiecesMax));
    uint64_t own_floats = 0;
    for (uint32_t i = 0; i < count; ++i) {
      std::vector<AttentionTask> some;
      for (const AttentionTask& task : tasks) {
        some.push_back(RowsOf(shape, task, task.rows * i / count, task.rows * (i + 1) / count));
      }
      pieces_.push_back(std::make_unique<Piece>(shape, std::move(some), share));
      own_floats = std::max(own_floats, pieces_.back()->own_floats());
    }
    own_ = std::make_unique_for_overwrite<float[]>(own_floats);
    for (const auto& piece : pieces_) {
      QUIRE_TRY(piece->Prepare(inner, shape, tables, own_.get(), executor));
    }
    return {};
  }

  Result<void> Run(const AttentionShape& shape, Executor& executor) override {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      QUIRE_TRY(pieces_[i]->Attend(shape, group_, executor));
      if (i > 0) QUIRE_TRY(pieces_[i - 1]->Finish(shape, executor));
    }
    return pieces_.back()->Finish(shape, executor);
  }

 private:
  Group& group_;
  Floats own_;  // of one piece at a time
  std::vector<std::unique_ptr<Piece>> pieces_;
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
    auto plan = std::make_unique<RankPlan>(group_);
    QUIRE_TRY(plan->Prepare(inner_, shape, tables, tasks, share_, executor));
    return plan;
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kNoSpace,
                "ranks: the system has no memory for the lane states of a step; take smaller "
                "chunks (--chunk)");
  }
}

}  // namespace quire::ranks::sequence
