// The oracle of the engine's simulator: the answer of every request and of every turn of a session
// when the engine serves nothing else.
#ifndef QUIRE_SIM_ENGINE_ORACLE_H_
#define QUIRE_SIM_ENGINE_ORACLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "env/clock.h"
#include "model/model.h"
#include "quire/attention.h"
#include "quire/cache.h"
#include "quire/env.h"
#include "serve/engine.h"
#include "sim/engine_setup.h"

namespace quire::sim {

/// A session of the oracle's own after a whole turn; no later turn continues it.
struct Moment {
  serve::SessionId session{};
  uint64_t tokens = 0;
};

struct TurnAnswer {
  serve::Response response{};
  Moment after{};
};

/// What a request outside sessions says.
struct Answer {
  serve::Response response{};
  std::vector<float> logits{};  // [positions, vocab], where it asks for all
};

/// An engine without a store on a budget that holds everything, for one caller at a time.
class EngineOracle {
 public:
  /// The model must outlive it, and is not used elsewhere during a call.
  EngineOracle(const EngineSetup& setup, model::Model& model);

  /// What a request outside sessions answers alone. Valid as long as the oracle.
  const Answer& Alone(const serve::Request& request);

  Moment Begin(const model::SamplingOptions& sampling);
  /// What a session answers at `before`, which stays as it is.
  TurnAnswer Turn(const Moment& before, const std::vector<TokenId>& fed, uint32_t max_tokens,
                  const std::vector<TokenId>& stop_tokens);
  void Forget(const Moment& moment);

  /// Whether an empty cache with so much memory has room for a request of the party.
  bool Fits(uint32_t party, uint64_t budget_bytes, uint64_t tokens, uint64_t tokens_at_most,
            uint64_t step_tokens) const;

 private:
  using Question = std::tuple<std::vector<TokenId>, uint32_t, std::vector<TokenId>, float, uint64_t,
                              double, serve::KeepBy, uint32_t, bool>;

  Answer Run(serve::Request request);

  const EngineSetup& setup_;
  ManualClock clock_;
  const Identity identity_;
  const std::unique_ptr<Cache> cache_;
  const std::unique_ptr<Executor> executor_;
  const std::unique_ptr<AttentionBackend> attention_;
  const std::unique_ptr<serve::Engine> engine_;
  std::map<Question, Answer> alone_;
};

}  // namespace quire::sim

#endif  // QUIRE_SIM_ENGINE_ORACLE_H_
