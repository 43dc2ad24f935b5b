// Attention over paged K and V, read in place: one interface for backends. The plain structs that
// kernels take are in quire/attention_types.h.
#ifndef QUIRE_ATTENTION_H_
#define QUIRE_ATTENTION_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "quire/attention_types.h"
#include "quire/env.h"
#include "quire/error.h"

namespace [[gnu::visibility("default")]] quire {

/// One call of attention that several layers make, whose blocks lie in the same slots and whose
/// queries and outputs in the same memory, one layer after the other. Work that does not depend on
/// where a layer's streams lie in a slot was done once: validation, finding shared blocks, dividing
/// the work (and on a device copying tables).
///
/// Threads:  those of its backend: one at a time
/// Lifetime: its backend must outlive it, and the lists of its tables and all that its tasks point
///           to must stay
class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;

  /// Computes every task on one layer, with the bits of AttentionBackend::Attend.
  ///
  /// Errors:  those of Supports for the shape; kInvalidArgument it differs from the one planned for
  ///          in more than where streams lie. Nothing is computed then
  virtual Result<void> Run(const AttentionShape& shape, Executor& executor) = 0;
};

/// An implementation of attention on one kind of device. All of them follow docs/numerics.md; those
/// of one arithmetic class give the same bits.
class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;

  /// "cpu", "cuda".
  virtual std::string_view name() const = 0;
  /// Instruction set in use: "avx2", "avx3", "judge".
  virtual std::string_view target() const = 0;
  /// Errors: kUnsupported names the field this backend cannot do; kInvalidArgument a shape that is
  /// inconsistent (heads that do not divide, block_tokens not a power of two in 16..256, dim 0).
  virtual Result<void> Supports(const AttentionShape& shape) const = 0;
  /// Computes every task, whole or partial.
  ///
  /// Errors:  those of Supports; kInvalidArgument names the task and what is wrong with it: a null
  ///          pointer, no such row of the tables, a block that its rows see in its splits and that
  ///          has no slot in the form they read, lanes that `from` lacks, or both of `out` and `to`
  ///          or none. Nothing is computed then
  /// Threads: work runs on `executor`; tasks must not overlap in `out` and `to`
  /// Cost:    no allocation that grows with the context: scratch is one chunk per worker at most
  virtual Result<void> Attend(const AttentionShape& shape, const BlockTables& tables,
                              std::span<const AttentionTask> tasks, Executor& executor) = 0;
  /// The work of Attend before it computes, for all layers with such tables and tasks. A backend
  /// without its own Prepare calls all of Attend in each run.
  ///
  /// Errors: as Attend; kUnsupported and kInvalidArgument may come with the first run instead
  virtual Result<std::unique_ptr<AttentionPlan>> Prepare(const AttentionShape& shape,
                                                         const BlockTables& tables,
                                                         std::span<const AttentionTask> tasks,
                                                         Executor& executor);
};

/// Joins the states of two disjoint sets of lanes of the same query rows into one set; no state
/// changes. (Only the call that asks for `out` merges lanes, on the fixed tree.)
///
/// Shape:  a, b and to as in LaneStates, of `rows` rows; to.lanes are those of both. The memory of
///         `to` is neither that of a nor of b
/// Errors: kInvalidArgument the sets overlap, to.lanes is another set, or a pointer is null
Result<void> MergeLanes(const AttentionShape& shape, uint32_t rows, const LaneStates& a,
                        const LaneStates& b, const LaneStates& to);

/// Joins the tables of several sequences into those of one call: a row for each, in the order they
/// were added.
///
/// Threads:  one at a time
/// Lifetime: it has copies of the lists; what their slots hold is not pinned
class BatchTables {
 public:
  /// Adds every sequence of `tables`.
  ///
  /// Errors: kInvalidArgument their slots lie in other arenas than those of the first ones, so they
  ///         are of another cache. Nothing changes then
  Result<void> Add(const BlockTables& tables);
  void Clear();
  /// Valid until the next Add or Clear.
  BlockTables tables() const;

 private:
  struct Rows {
    void Add(const BlockTable& table);
    BlockTable table() const;

    const std::byte* base = nullptr;
    uint64_t slot_stride_bytes = 0;
    std::vector<uint64_t> indptr{0};
    std::vector<uint32_t> slots{};
  };

  Rows sealed_;
  Rows open_;  // nothing where the two forms are the same
  bool has_open_ = false;
};

/// The CPU backend for this machine's best target; kUnsupported when the CPU has no FMA.
/// One per thread of control: it owns scratch, so calls to Attend must not overlap.
Result<std::unique_ptr<AttentionBackend>> MakeCpuAttention();

/// The scalar judge: the order of docs/numerics.md in plain loops. Slow; every other backend is
/// compared with it.
std::unique_ptr<AttentionBackend> MakeJudgeAttention();

}  // namespace quire

#endif  // QUIRE_ATTENTION_H_
