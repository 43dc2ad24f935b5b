#include "serve/spill.h"

#include <algorithm>

#include "base/bits.h"
#include "cache/planned_bytes.h"

namespace quire::serve {

namespace {

// Each step of a prompt reads all before it, so the more rows the better, while half of the budget
// stays for others; where chunk_tokens_min have no room for their lane states, fewer.
uint64_t StreamedStep(const EngineState& state, uint64_t tokens, SequenceOptions options) {
  constexpr uint64_t kStepMin = 16;
  const uint64_t limit_bytes = state.cache.stats().hot_bytes_limit;
  const auto takes_more = [&](uint64_t step, uint64_t bytes) {
    options.step_tokens = step;
    const auto planned = cache::PlanStream(state.cache.options(), tokens, options);
    return planned && planned->bytes > bytes;
  };
  uint64_t step = state.options.chunk_tokens_min;
  while (2 * step <= state.options.chunk_tokens_max && !takes_more(2 * step, limit_bytes / 2)) {
    step *= 2;
  }
  while (step > kStepMin && takes_more(step, limit_bytes)) step /= 2;
  return step;
}

}  // namespace

// Layers without a window need a slot for each block.
uint64_t TokensThatMayFit(const Cache& cache) {
  const CacheOptions& options = cache.options();
  const bool all_windowed = std::ranges::none_of(
      options.geometry.groups, [](const LayerGroup& group) { return group.window_tokens == 0; });
  if (all_windowed) return UINT64_MAX;
  const CacheStats stats = cache.stats();
  return std::max(stats.sealed.slots_max, stats.sealed_second.slots_max) *
         options.profile.block_tokens;
}

bool MayFit(const Cache& cache, uint64_t tokens) { return tokens <= TokensThatMayFit(cache); }

bool CanStream(const EngineState& state) {
  return state.options.resident_tokens > 0 && state.cache.options().store != nullptr;
}

bool CanStream(const EngineState& state, const Task& task) {
  return CanStream(state) && task.request().publishes();
}

bool Streams(const EngineState& state, const Task& task) {
  return CanStream(state, task) &&
         (task.spilled_us() || !MayFit(state.cache, task.text().tokens_at_most()));
}

SequenceOptions AsStream(const EngineState& state, const Task& task, SequenceOptions options) {
  options.resident_tokens = state.options.resident_tokens;
  options.query_heads = state.query_heads;
  options.step_tokens = StreamedStep(state, task.text().tokens_at_most(), options);
  return options;
}

uint64_t StreamBytes(const EngineState& state, const Task& task) {
  const auto planned = cache::PlanStream(state.cache.options(), task.text().tokens_at_most(),
                                         AsStream(state, task, {}));
  return planned ? planned->bytes : UINT64_MAX;
}

bool MaySpill(const EngineState& state, const Task& task) {
  if (!task.request().spills || task.spilled_us() || !CanStream(state, task)) return false;
  const uint64_t blocks =
      DivUp<uint64_t>(task.text().tokens().size(), state.cache.options().profile.block_tokens);
  return StreamBytes(state, task) < blocks * state.cache.block_bytes();
}

void Spill(EngineState& state, Task& task) {
  task.Spill(state.clock.NowMicros());
  ++state.stats.spilled;
}

}  // namespace quire::serve
