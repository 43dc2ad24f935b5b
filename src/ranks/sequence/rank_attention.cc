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

constexpr float kEmptyMax = -std::numeric_limits<float>::infinity();

/// The states of a task from its first vector on.
LaneStates StatesFrom(const States& states, LaneSet lanes, uint64_t first) {
  return {.lanes = lanes,
          .max = states.max() + first,
          .sum = states.sum() + first,
          .out = states.out() + first * states.dim};
}

/// The rows of tasks, numbered one after the other, that lie in [begin, end).
std::vector<AttentionTask> RowsOf(const AttentionShape& shape, std::span<const AttentionTask> tasks,
                                  uint64_t begin, uint64_t end) {
  std::vector<AttentionTask> found;
  uint64_t first = 0;
  for (const AttentionTask& task : tasks) {
    const uint64_t from = std::clamp(begin, first, first + task.rows) - first;
    const uint64_t to = std::clamp(end, first, first + task.rows) - first;
    first += task.rows;
    if (from == to) continue;
    AttentionTask rows = task;
    rows.queries += from * shape.query_heads * shape.key.dim;
    rows.out += from * shape.query_heads * shape.value.dim;
    rows.first_position += from;
    rows.rows = static_cast<uint32_t>(to - from);
    found.push_back(rows);
  }
  return found;
}

/// Rows of each task whose states some ranks merge: of one rank, or of all.
class Piece {
 public:
  Piece(const AttentionShape& shape, std::vector<AttentionTask> tasks, const LaneShare& share,
        bool is_finished_here)
      : tasks_(std::move(tasks)),
        share_(share),
        dim_(shape.value.dim),
        is_finished_here_(is_finished_here) {
    for (const AttentionTask& task : tasks_) queries_ += uint64_t{task.rows} * shape.query_heads;
  }

  /// Of the states of a rank's subtree.
  uint64_t state_floats() const { return States::Floats(queries_, dim_); }
  /// Of those of its lanes, which pieces may share.
  uint64_t lane_floats() const { return States::Floats(queries_ * OwnLanes(), dim_); }
  /// Of what the piece needs besides.
  uint64_t floats() const {
    const uint64_t here = share_.ranks() * state_floats() + States::Floats(queries_ * kLanes, dim_);
    return state_floats() + (is_finished_here_ ? here : 0);
  }

  /// Shape: lanes [lane_floats()], memory [floats()]
  Result<void> Prepare(AttentionBackend& inner, const AttentionShape& shape,
                       const BlockTables& tables, float* lanes, float* memory, Executor& executor) {
    own_ = {queries_ * OwnLanes(), dim_, lanes};
    merged_ = {queries_, dim_, memory};
    std::vector<AttentionTask> of_lanes = tasks_;
    std::vector<AttentionTask> last = tasks_;
    if (is_finished_here_) {
      gathered_ = memory + state_floats();
      all_ = {queries_ * kLanes, dim_, gathered_ + share_.ranks() * state_floats()};
      // A rank's subtree stands in its lowest lane; the others stay empty.
      std::fill_n(all_.max(), all_.vectors, kEmptyMax);
      std::fill_n(all_.sum(), all_.vectors, 0.0f);
    }
    uint64_t query = 0;
    for (size_t i = 0; i < tasks_.size(); ++i) {
      of_lanes[i].out = nullptr;
      of_lanes[i].to = StatesFrom(own_, share_.lanes(), query * OwnLanes());
      last[i].splits = {.begin = 0, .end = 0};
      if (is_finished_here_) last[i].from = StatesFrom(all_, kAllLanes, query * kLanes);
      query += uint64_t{tasks_[i].rows} * shape.query_heads;
    }
    QUIRE_ASSIGN(own_plan_, inner.Prepare(shape, tables, of_lanes, executor));
    if (!is_finished_here_) return {};
    QUIRE_ASSIGN(last_plan_, inner.Prepare(shape, tables, last, executor));
    return {};
  }

  /// Attends to the own lanes, and merges their states.
  Result<void> Attend(const AttentionShape& shape, Executor& executor) {
    QUIRE_TRY(own_plan_->Run(shape, executor));
    const uint32_t workers = executor.worker_count();
    executor.ParallelFor(workers, [&](uint32_t i, uint32_t /*worker*/) {
      MergeSubtrees(own_, OwnLanes(), queries_ * i / workers, queries_ * (i + 1) / workers,
                    merged_);
    });
    return {};
  }

  /// What Attend made; on its way it must stay.
  std::span<const std::byte> merged() const {
    return std::as_bytes(std::span(merged_.data, state_floats()));
  }
  /// Where that of each rank goes. Needs a piece that is finished here.
  std::span<std::byte> place_of(uint32_t rank) const {
    return std::as_writable_bytes(std::span(gathered_ + rank * state_floats(), state_floats()));
  }
  std::span<std::byte> places() const {
    return std::as_writable_bytes(std::span(gathered_, share_.ranks() * state_floats()));
  }

  /// Merges what all ranks made, which is in its places.
  Result<void> Finish(const AttentionShape& shape, Executor& executor) {
    executor.ParallelFor(share_.ranks(),
                         [this](uint32_t rank, uint32_t /*worker*/) { PutInOrder(rank); });
    return last_plan_->Run(shape, executor);
  }

 private:
  uint32_t OwnLanes() const { return kLanes / share_.ranks(); }

  // Into the rank's lowest lane.
  void PutInOrder(uint32_t rank) const {
    const States from = {queries_, dim_, gathered_ + rank * state_floats()};
    for (uint64_t query = 0; query < queries_; ++query) {
      const uint64_t at = query * kLanes + rank;
      all_.max()[at] = from.max()[query];
      all_.sum()[at] = from.sum()[query];
      std::copy_n(from.out() + query * dim_, dim_, all_.out() + at * dim_);
    }
  }

  const std::vector<AttentionTask> tasks_;
  const LaneShare share_;
  const uint64_t dim_;
  const bool is_finished_here_;
  uint64_t queries_ = 0;  // rows * query_heads
  States own_{};
  States merged_{};            // of the own subtree
  float* gathered_ = nullptr;  // [ranks] of what merged_ is
  States all_{};               // [16 lanes]
  std::unique_ptr<AttentionPlan> own_plan_{};
  std::unique_ptr<AttentionPlan> last_plan_{};
};

class RankPlan final : public AttentionPlan {
 public:
  RankPlan(Group& group, RankAttention::Memory& memory) : group_(group), memory_(memory) {}
  ~RankPlan() override {
    pieces_.clear();
    memory_.Give(std::move(floats_));
  }

  Result<void> Prepare(AttentionBackend& inner, const AttentionShape& shape,
                       const BlockTables& tables, std::span<const AttentionTask> tasks,
                       const LaneShare& share, Executor& executor) {
    uint64_t rows = 0;
    for (const AttentionTask& task : tasks) rows += task.rows;
    const RowShare of_rows = {.rows = rows, .ranks = share.ranks()};
    is_shared_ = of_rows.is_shared();
    for (uint32_t rank = 0; rank < (is_shared_ ? share.ranks() : 1); ++rank) {
      auto some = is_shared_
                      ? RowsOf(shape, tasks, of_rows.FirstOf(rank), of_rows.FirstOf(rank + 1))
                      : std::vector(tasks.begin(), tasks.end());
      pieces_.push_back(std::make_unique<Piece>(shape, std::move(some), share,
                                                !is_shared_ || rank == share.rank()));
    }
    uint64_t lanes = 0;
    uint64_t floats = 0;
    for (const auto& piece : pieces_) {
      lanes = std::max(lanes, piece->lane_floats());
      floats += piece->floats();
    }
    floats_ = memory_.Take(lanes + floats);
    float* next = floats_.data() + lanes;
    for (const auto& piece : pieces_) {
      QUIRE_TRY(piece->Prepare(inner, shape, tables, floats_.data(), next, executor));
      next += piece->floats();
    }
    return {};
  }

  Result<void> Run(const AttentionShape& shape, Executor& executor) override {
    if (is_shared_) return RunShared(shape, executor);
    Piece& all = *pieces_.front();
    QUIRE_TRY(all.Attend(shape, executor));
    QUIRE_TRY(group_.AllGather(all.merged(), all.places()));
    return all.Finish(shape, executor);
  }

 private:
  // The rows of the other ranks go first, so that their states travel while the next ones are
  // computed.
  Result<void> RunShared(const AttentionShape& shape, Executor& executor) {
    const uint32_t rank = group_.rank();
    const Piece& own = *pieces_[rank];
    std::vector<Transfer> under_way;
    for (uint32_t other = 0; other < group_.size(); ++other) {
      if (other == rank) continue;
      QUIRE_ASSIGN(auto coming, group_.Receive(other, own.place_of(other)));
      under_way.push_back(std::move(coming));
    }
    for (uint32_t i = 1; i <= group_.size(); ++i) {
      const uint32_t owner = (rank + i) % group_.size();
      Piece& piece = *pieces_[owner];
      QUIRE_TRY(piece.Attend(shape, executor));
      if (owner == rank) {
        std::ranges::copy(piece.merged(), piece.place_of(rank).begin());
        continue;
      }
      QUIRE_ASSIGN(auto going, group_.Send(owner, piece.merged()));
      under_way.push_back(std::move(going));
    }
    for (Transfer& transfer : under_way) QUIRE_TRY(transfer.Wait());
    return pieces_[rank]->Finish(shape, executor);
  }

  Group& group_;
  RankAttention::Memory& memory_;
  std::vector<float> floats_{};  // lane states, of one piece at a time; then of each piece
  bool is_shared_ = false;
  std::vector<std::unique_ptr<Piece>> pieces_;  // of all ranks' rows, or one
};

}  // namespace

std::vector<float> RankAttention::Memory::Take(uint64_t count) {
  std::vector<float> taken;
  {
    MutexLock lock(mutex_);
    taken = std::exchange(spare_, {});
  }
  if (taken.size() < count) taken = std::vector<float>(count);
  return taken;
}

void RankAttention::Memory::Give(std::vector<float> floats) {
  MutexLock lock(mutex_);
  if (floats.size() > spare_.size()) spare_.swap(floats);
}

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
    auto plan = std::make_unique<RankPlan>(group_, memory_);
    QUIRE_TRY(plan->Prepare(inner_, shape, tables, tasks, share_, executor));
    return plan;
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kNoSpace,
                "ranks: the system has no memory for the lane states of a step; take smaller "
                "chunks (--chunk)");
  }
}

}  // namespace quire::ranks::sequence
