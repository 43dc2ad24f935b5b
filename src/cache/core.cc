#include "cache/core.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "base/sync_point.h"
#include "cache/below/store_state.h"
#include "cache/fallback.h"
#include "cache/sequence/sequence_impl.h"
#include "cache/shared_budget.h"
#include "cache/verbs/evict.h"
#include "cache/verbs/leases.h"
#include "env/clock.h"
#include "evict/policies.h"

namespace quire {

Result<std::unique_ptr<Cache>> Cache::Create(CacheOptions options) {
  return cache::Core::Make(std::move(options));
}

namespace cache {

namespace {

Result<void> CheckCodecs(const NumericProfile& profile) {
  const auto check = [](Codec codec, std::string_view field) -> Result<void> {
    if (CodecName(codec) != "unknown") return {};
    return Fail(ErrorCode::kUnsupported,
                fmt::format("cache options: profile.{}: codec {}", field, static_cast<int>(codec)));
  };
  QUIRE_TRY(check(profile.open_dtype, "open_dtype"));
  for (const CodecRule& rule : profile.codecs) QUIRE_TRY(check(rule.codec, "codecs"));
  if (profile.store_codec) QUIRE_TRY(check(*profile.store_codec, "store_codec"));
  return {};
}

Result<void> CheckOptions(const CacheOptions& options) {
  if (options.tokens_max == 0) {
    return Fail(ErrorCode::kInvalidArgument, "cache options: tokens_max is 0");
  }
  if (ArenaLayoutName(options.layout) == "unknown") {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("cache options: arena layout {}", static_cast<int>(options.layout)));
  }
  if (PlacementName(options.placement) == "unknown") {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("cache options: placement {}", static_cast<int>(options.placement)));
  }
  if (options.huge_pages && options.layout != ArenaLayout::kBlockMajor) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("cache options: huge_pages with layout {}, whose slots share pages",
                            ArenaLayoutName(options.layout)));
  }
  if (options.memory != nullptr && options.huge_pages) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("cache options: huge_pages with memory of the caller's (\"{}\"), who "
                            "decides that",
                            options.memory->name()));
  }
  if (options.memory != nullptr && !options.memory->host_accessible() && options.ops == nullptr) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("cache options: the host cannot reach memory \"{}\", and there are no "
                            "ops that can",
                            options.memory->name()));
  }
  if (options.eviction_batch != EvictionBatch::kExact &&
      options.eviction_batch != EvictionBatch::kAdaptive) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("cache options: eviction_batch {}",
                                                         static_cast<int>(options.eviction_batch)));
  }
  if (evict::MakePolicy(options.policy) == nullptr) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("cache options: policy \"{}\" is none of {}", options.policy,
                            fmt::join(evict::PolicyNames(), ", ")));
  }
  QUIRE_TRY(CheckCodecs(options.profile));
  return options.geometry.Validate();
}

// A store that has nothing yet gets segments for whole splits, unless they would be too few of them
// to tell what is used from what is not.
uint64_t FitSplits(const LockedState& cache, uint64_t most) {
  constexpr uint64_t kSegmentsMin = 128;
  const uint64_t bytes = cache.shapes().SplitBytes();
  const uint64_t cap = cache.transfers()->stats().bytes_cap;
  return bytes > most && bytes <= cap / (2 * kSegmentsMin) ? cache.transfers()->FitRecords(bytes)
                                                           : most;
}

// A store that can take none of its blocks would drop all of them, with one warning in the log.
Result<void> FitStore(LockedState& cache) {
  const RecordShapes& shapes = cache.shapes();
  const uint64_t bytes = std::max(shapes.sealed().record_bytes(),
                                  shapes.has_twins() ? shapes.twins().record_bytes() : 0);
  const uint64_t most = cache.transfers()->FitRecords(bytes);
  if (bytes <= most) {
    cache.FitRuns(FitSplits(cache, most));
    return {};
  }
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("cache options: store: a block of {} tokens takes {} bytes there, and "
                          "the store takes {} at most; use smaller blocks, or a new directory with "
                          "room for two such blocks in its cap and staging_bytes of {} or more: a "
                          "store that has something keeps the segments it has",
                          cache.block_tokens(), bytes, most, 2 * bytes));
}

}  // namespace

Result<std::unique_ptr<Core>> Core::Make(CacheOptions options) {
  QUIRE_TRY(CheckOptions(options));
  const uint32_t fallbacks = options.fallback_kernels != nullptr ? ApplyFallback(options) : 0;
  options.fallback_kernels = nullptr;  // need not outlive this
  QUIRE_ASSIGN(SlotClasses classes, SlotClasses::Create(options));
  if (options.hot_bytes_max != 0 && options.hot_bytes_max < options.hot_bytes) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("cache options: hot_bytes_max {} is below hot_bytes {}",
                            options.hot_bytes_max, options.hot_bytes));
  }
  SharedBudget* const budget = options.shared_budget;
  quota::Ledger* const shared = budget == nullptr ? nullptr : &budget->state_->ledger;
  StoreState* const store = options.store == nullptr ? nullptr : options.store->state_.get();
  QUIRE_ASSIGN(auto state,
               LockedState::Create(std::move(options), std::move(classes), shared, store));
  if (store != nullptr) QUIRE_TRY(FitStore(*state));
  state->With([&](State& made) { made.counters.codec_fallbacks = fallbacks; });
  return std::unique_ptr<Core>(new Core(std::move(state)));
}

Core::Core(std::unique_ptr<LockedState> state)
    : state_(std::move(state)),
      holds_(*state_),
      search_(*state_),
      publishing_(*state_),
      verbs_{.cache = *state_, .holds = holds_, .publishing = publishing_, .sequences = sequences_},
      admission_(search_, verbs_),
      loading_(search_, admission_, verbs_),
      pinning_(*state_, search_),
      tenants_(*state_),
      resizing_(*state_, sequences_) {
  if (state_->store() != nullptr) write_back_.emplace(*state_);
  if (state_->options().announce) changes_.emplace(*state_);
}

Result<uint64_t> Core::Prefetch(const AcquireRequest& request) {
  QUIRE_ASSIGN(Plan plan, admission_.Acquire(request));
  admission_.Count(PlanState::Of(plan), -1);
  return loading_.Prefetch(std::move(plan));
}

uint64_t Core::block_bytes() const {
  const SlotClasses& classes = state_->classes();
  uint64_t bytes = 0;
  for (uint32_t group = 0; group < classes.group_count(); ++group)
    bytes += classes.slot_bytes(group);
  return bytes;
}

CacheStats Core::stats() const {
  CacheStats stats = state_->Look(StatsOf);
  stats.sequences = sequences_.count();
  return stats;
}

void Core::CheckDirectory() const {
  state_->Look([](const State& state) { state.directory.CheckInvariants(); });
}

}  // namespace cache
}  // namespace quire
