// The CPU backend: checks shapes, cuts a call into items, lends every worker its scratch, and
// merges the subtrees of tiles that several workers shared.
#include <fmt/format.h>

#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <vector>

#include "attention/kernels.h"
#include "attention/plan.h"
#include "attention/shape.h"
#include "codec/formats.h"
#include "quire/attention.h"

namespace quire {
namespace attention {
namespace {

/// Aligned floats that only ever grow; zeroed, so that padding has one value.
class Buffer {
 public:
  /// Throws std::bad_alloc, as other allocations here; the buffer is empty then.
  float* AtLeast(size_t floats) {
    if (floats > floats_) {
      floats_ = 0;
      data_ = hwy::AllocateAligned<float>(floats, &Take, &GiveBack, nullptr);
      if (data_ == nullptr) throw std::bad_alloc();
      std::memset(data_.get(), 0, floats * sizeof(float));
      floats_ = floats;
    }
    return data_.get();
  }

 private:
  // Highway may be built without exceptions: nothing is thrown through it.
  static void* Take(void*, size_t bytes) noexcept {
    try {
      return ::operator new(bytes);
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }
  static void GiveBack(void*, void* memory) { ::operator delete(memory); }

  hwy::AlignedFreeUniquePtr<float[]> data_;
  size_t floats_ = 0;
};

size_t StateFloats(const AttentionShape& shape, uint32_t queries) {
  return 2 * size_t{PaddedQueries(queries)} + size_t{queries} * OutStride(shape.value.dim);
}

States StatesAt(float* memory, uint32_t queries) {
  const uint32_t padded = PaddedQueries(queries);
  return {.max = memory, .sum = memory + padded, .out = memory + 2 * size_t{padded}};
}

/// Cuts one buffer into the arrays of a Scratch, each on a cache line.
Scratch MakeScratch(const AttentionShape& shape, const Plan& plan, Buffer* buffer) {
  const uint32_t queries = plan.queries_max;
  const size_t state = StateFloats(shape, queries);
  const size_t query = RoundUp(size_t{queries} * shape.key.dim, 16);
  const size_t scores = size_t{queries} * kSplitTokens;
  const size_t padded = PaddedQueries(queries);
  const size_t key = plan.expands ? size_t{kSplitTokens} * shape.key.dim : 0;
  const size_t value = plan.expands ? size_t{kSplitTokens} * OutStride(shape.value.dim) : 0;
  const bool fixed =
      codec::HasIntegerCodes(shape.key.codec) || codec::HasIntegerCodes(shape.value.codec);
  const size_t units = fixed ? RoundUp(size_t{queries} * (kSplitTokens / kGroupTokens), 16) : 0;
  // In floats, each of which holds two of these numbers.
  const size_t fixed_query =
      fixed ? RoundUp(size_t{queries} * FixedStride(shape.key.dim) / 2, 16) : 0;
  const size_t fixed_weights = fixed ? scores / 2 : 0;
  const size_t key_pairs =
      fixed && plan.expands ? size_t{kColumnsPerSplit} * KeyPairsStride(shape.key.dim) / 2 : 0;
  const size_t value_pairs = fixed && plan.expands ? size_t{OutStride(shape.value.dim)} /
                                                         kPanelDims * kValuePairsStride / 2
                                                   : 0;
  float* next =
      buffer->AtLeast(query + scores + 6 * padded + key + value + 2 * units + fixed_query +
                      fixed_weights + key_pairs + value_pairs + (kTreeLevels + 1) * state);
  const auto take = [&next](size_t floats) {
    float* taken = next;
    next += floats;
    return taken;
  };
  Scratch scratch;
  scratch.query = take(query);
  scratch.scores = take(scores);
  scratch.factors = take(2 * padded);
  scratch.query_sum = take(padded);
  scratch.mid_sum = take(padded);
  scratch.query_units = take(padded);
  scratch.weight_units = take(units);
  scratch.query_bias_terms = reinterpret_cast<int32_t*>(take(padded));
  scratch.weight_bias_terms = reinterpret_cast<int32_t*>(take(units));
  const auto take_pairs = [&take](size_t floats) {
    return reinterpret_cast<int16_t*>(take(floats));
  };
  scratch.fixed_query = take_pairs(fixed_query);
  scratch.fixed_weights = take_pairs(fixed_weights);
  scratch.key_pairs = take_pairs(key_pairs);
  scratch.value_pairs = take_pairs(value_pairs);
  scratch.key = take(key);
  scratch.value = take(value);
  scratch.split = StatesAt(take(state), queries);
  for (States& level : scratch.stack) level = StatesAt(take(state), queries);
  return scratch;
}

class CpuAttention final : public AttentionBackend {
 public:
  explicit CpuAttention(const Kernels* kernels) : kernels_(kernels) {}

  std::string_view name() const override { return "cpu"; }
  std::string_view target() const override { return kernels_->target; }

  Result<void> Supports(const AttentionShape& shape) const override {
    QUIRE_TRY(ValidateShape(shape));
    const auto unsupported = [&](const std::string& what) -> Result<void> {
      return Fail(ErrorCode::kUnsupported,
                  fmt::format("attention on {}: {}", kernels_->target, what));
    };
    if (shape.key.dim > kDimMax) {
      return unsupported(fmt::format("key.dim is {}, more than {}", shape.key.dim, kDimMax));
    }
    if (shape.value.dim > kDimMax) {
      return unsupported(fmt::format("value.dim is {}, more than {}", shape.value.dim, kDimMax));
    }
    if (shape.query_heads / shape.key.heads > kQueryHeadsPerHeadMax) {
      return unsupported(fmt::format("query_heads is {} with {} key.heads, more than {} for each",
                                     shape.query_heads, shape.key.heads, kQueryHeadsPerHeadMax));
    }
    if (shape.value.inner != InnerAxis::kDim) {
      return unsupported("value.inner is token, kernels read V channel-contiguous");
    }
    return {};
  }

  Result<void> Attend(const AttentionShape& shape, const BlockTables& tables,
                      std::span<const AttentionTask> tasks, Executor& executor) override {
    QUIRE_TRY(Cut(shape, tables, tasks, executor, &plan_));
    Run(plan_, executor);
    return {};
  }

  Result<std::unique_ptr<AttentionPlan>> Prepare(const AttentionShape& shape,
                                                 const BlockTables& tables,
                                                 std::span<const AttentionTask> tasks,
                                                 Executor& executor) override {
    auto prepared = std::make_unique<Prepared>(*this);
    QUIRE_TRY(Cut(shape, tables, tasks, executor, &prepared->plan));
    return prepared;
  }

 private:
  struct Prepared final : public AttentionPlan {
    explicit Prepared(CpuAttention& of) : backend(of) {}

    Result<void> Run(const AttentionShape& shape, Executor& executor) override {
      QUIRE_TRY(backend.Supports(shape));
      QUIRE_TRY(CheckPlanned(plan.shape, shape));
      plan.shape = shape;
      backend.Run(plan, executor);
      return {};
    }

    CpuAttention& backend;
    Plan plan;
  };

  Result<void> Cut(const AttentionShape& shape, const BlockTables& tables,
                   std::span<const AttentionTask> tasks, Executor& executor, Plan* plan) const {
    QUIRE_TRY(Supports(shape));
    QUIRE_TRY(ValidateTasks(shape, tables, tasks));
    MakePlan(shape, tables, tasks, executor.worker_count(), plan);
    return {};
  }

  void Run(Plan& plan, Executor& executor) {
    if (plan.items.empty()) return;
    const uint32_t workers = executor.worker_count();
    if (buffers_.size() < workers) buffers_.resize(workers);
    scratch_.clear();
    for (uint32_t w = 0; w < workers; ++w) {
      scratch_.push_back(MakeScratch(plan.shape, plan, &buffers_[w]));
    }
    state_floats_ = StateFloats(plan.shape, plan.queries_max);
    subtree_states_.AtLeast(plan.subtree_states * state_floats_);
    subtrees_done_.assign(plan.tiles, 0);
    if (!plan.first_items.empty()) RunFirstItems(plan, executor);
    executor.ParallelFor(static_cast<uint32_t>(plan.items.size()),
                         [this, &plan](uint32_t item, uint32_t worker) {
                           RunItem(plan.items[item], plan.queries_max, scratch_[worker]);
                         });
  }

  void RunFirstItems(Plan& plan, Executor& executor) {
    const AttentionShape& shape = plan.shape;
    const size_t states = size_t{plan.cascade_rows} * shape.query_heads * kLanes;
    LaneStates& to = plan.cascade_states;
    to.max = cascade_states_.AtLeast(states * (2 + shape.value.dim));
    to.sum = to.max + states;
    to.out = to.sum + states;
    executor.ParallelFor(static_cast<uint32_t>(plan.first_items.size()),
                         [this, &plan](uint32_t item, uint32_t worker) {
                           kernels_->run(plan.first_items[item], scratch_[worker]);
                         });
  }

  void RunItem(const Item& item, uint32_t queries_max, const Scratch& scratch) {
    const States states = kernels_->run(item, scratch);
    if (item.to != nullptr) return;
    const uint32_t subtrees = item.lane_step;
    if (subtrees == 1) {
      kernels_->finish(item, scratch, states);
      return;
    }
    const auto of_subtree = [&](uint32_t subtree) {
      return StatesAt(subtree_states_.AtLeast(0) + (item.subtrees_begin + subtree) * state_floats_,
                      queries_max);
    };
    CopyStates(item, states, of_subtree(item.first_lane));
    // The last subtree to finish merges: it sees the states that the others wrote before they
    // counted.
    std::atomic_ref<uint32_t> done(subtrees_done_[item.tile]);
    if (done.fetch_add(1, std::memory_order_acq_rel) + 1 != subtrees) return;
    for (uint32_t width = subtrees / 2; width > 0; width /= 2) {
      for (uint32_t j = 0; j < width; ++j) {
        kernels_->merge(item, scratch, of_subtree(j), of_subtree(j + width));
      }
    }
    kernels_->finish(item, scratch, of_subtree(0));
  }

  static void CopyStates(const Item& item, const States& from, const States& to) {
    const uint32_t padded = PaddedQueries(item.queries());
    std::copy_n(from.max, padded, to.max);
    std::copy_n(from.sum, padded, to.sum);
    std::copy_n(from.out, size_t{item.queries()} * OutStride(item.shape->value.dim), to.out);
  }

  const Kernels* kernels_;
  Plan plan_;                     // of calls
  std::vector<Buffer> buffers_;   // one a worker
  std::vector<Scratch> scratch_;  // views into buffers_
  Buffer subtree_states_;
  Buffer cascade_states_;
  size_t state_floats_ = 0;              // of one state in subtree_states_
  std::vector<uint32_t> subtrees_done_;  // [tiles], through atomic_ref
};

}  // namespace

std::unique_ptr<AttentionBackend> MakeAttention(const Kernels& kernels) {
  return std::make_unique<CpuAttention>(&kernels);
}

}  // namespace attention

Result<std::unique_ptr<AttentionBackend>> MakeCpuAttention() {
  const attention::Kernels* kernels = attention::BestKernels();
  if (kernels == nullptr) {
    return Fail(ErrorCode::kUnsupported,
                "cpu attention needs a processor with fused multiply-add (AVX2)");
  }
  return attention::MakeAttention(*kernels);
}

}  // namespace quire
