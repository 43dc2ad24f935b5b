// Requests whose text a store has: loaded, or computed where that is faster, or both at once. From
// the two ends: attention is causal, so the front can be computed while the end is read. Or layer
// by layer: what is behind it is computed in the layers that have come.
#ifndef QUIRE_SERVE_PROMPT_LOADS_H_
#define QUIRE_SERVE_PROMPT_LOADS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "serve/preemption.h"
#include "serve/state.h"
#include "serve/waiting.h"

namespace quire::serve {

/// How a request comes by what the store has of its text.
enum class Bring : uint8_t { kCompute = 1, kLoad = 2, kBoth = 3 };

/// Time that bringing some tokens takes, each way alone.
struct Costs {
  double load_us = 0;
  double compute_us = 0;
};
/// As far as the engine has seen lately. None: not both were measured.
std::optional<Costs> CostsOf(const EngineState& state, uint64_t tokens, uint64_t bytes);
/// The faster way; where not both were measured both at once, or else loading.
Bring HowToBring(LoadPolicy policy, const std::optional<Costs>& costs, bool can_both);
/// In how many slices the layers of blocks are loaded, of so many bytes each, where something is
/// computed behind them; 1: block after block. The costs are those of both.
uint32_t SlicesToLoad(const Costs& costs, uint64_t block_bytes, uint64_t slice_bytes_min);
/// Tokens of a front's next step: to where it is likely to meet what is loaded. At least one.
uint64_t FrontTokens(const std::optional<Costs>& costs, uint64_t unread_tokens);

/// Threads:  one; the state's mailbox is woken when a load is done
/// Lifetime: all it is made with must outlive it
class PromptLoads {
 public:
  PromptLoads(EngineState& state, Waiting& waiting, Preemption& preemption)
      : state_(state), waiting_(waiting), preemption_(preemption) {}

  /// Starts a request with its plan: at once, or when what the store has of it has come.
  ///
  /// Errors: as Cache::Load, Cache::Open and Cache::BeginOpen
  Result<void> Start(Task& task, Plan plan, const SequenceOptions& options);
  /// The same for one that has streamed: what the store has is not computed.
  Result<void> Resume(Task& task, Plan plan, const SequenceOptions& options);
  /// Loads that are done, and sequences that stream from now on: their requests start, or go on.
  /// Where there is no room any more they wait like any other; what was loaded is in the cache as
  /// long as there is room for it.
  void TakeDone();
  /// Loads by layer that are done, whose requests may have ended meanwhile.
  void TakeArrived();

 private:
  bool CanComputeBeside(const Task& task) const;
  uint32_t SlicesOf(const Task& task, const Plan& plan) const;
  Result<void> Open(Task& task, Plan plan, const SequenceOptions& options, uint64_t loaded_tokens);
  Result<void> Stream(Task& task, Plan plan, const SequenceOptions& options);
  Result<void> Load(Task& task, Plan plan, const SequenceOptions& options, LoadOrder order);
  void StartArriving(Task& task, Loading& load);
  void StartFront(Task& task, Loading& load, std::vector<MissRun> missing);
  void Meet(Task& task, Loading& load) const;
  void Take(Task& task, Loading load);
  void Join(Task& task, const Loading& load, Plan plan);
  void TakeOpened();
  Result<void> StartStream(Task& task, StreamStart start);

  EngineState& state_;
  Waiting& waiting_;
  Preemption& preemption_;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_PROMPT_LOADS_H_
