#include "sim/engine_oracle.h"

#include <utility>
#include <variant>

#include "cache/test_util.h"

namespace quire::sim {
namespace {

std::unique_ptr<Cache> AmpleCache(const EngineSetup& setup, const Clock& clock) {
  CacheOptions options = setup.cache;
  options.hot_bytes = uint64_t{4} << 20;
  options.hot_bytes_max = 0;
  options.policy = "lru";
  options.clock = &clock;
  return cache::MakeCache(std::move(options));
}

}  // namespace

EngineOracle::EngineOracle(const EngineSetup& setup, model::Model& model)
    : setup_(setup),
      identity_(IdentityOf(model)),
      cache_(AmpleCache(setup, clock_)),
      executor_(MakeThreadPool(1)),
      attention_(cache::Must(MakeCpuAttention())),
      engine_(cache::Must(serve::Engine::Create({.model = model,
                                                 .cache = *cache_,
                                                 .attention = *attention_,
                                                 .executor = *executor_,
                                                 .clock = clock_},
                                                identity_, {.sessions_max = 1 << 30}))) {}

Answer EngineOracle::Run(serve::Request request) {
  const serve::RequestId id = cache::Must(engine_->Submit(std::move(request)));
  Answer answer;
  while (true) {
    engine_->Tick();
    while (auto event = engine_->Next(id)) {
      if (const auto* logits = std::get_if<serve::Logits>(&*event)) {
        answer.logits.insert(answer.logits.end(), logits->rows.begin(), logits->rows.end());
      } else if (auto* response = std::get_if<serve::Response>(&*event)) {
        answer.response = std::move(*response);
        return answer;
      }
    }
  }
}

const Answer& EngineOracle::Alone(const serve::Request& request) {
  const model::SamplingOptions& sampling = request.sampling;
  const serve::KeepOptions& keep = request.keep;
  const auto [place, added] = alone_.try_emplace(
      Question(request.prompt, request.max_tokens, request.stop_tokens, sampling.temperature,
               sampling.temperature > 0 ? sampling.seed : 0, keep.share, keep.by,
               keep.observe_tokens, request.all_logits));
  if (added) {
    place->second = Run({.prompt = request.prompt,
                         .max_tokens = request.max_tokens,
                         .stop_tokens = request.stop_tokens,
                         .sampling = sampling,
                         .reuse = false,
                         .keep = keep,
                         .all_logits = request.all_logits});
  }
  return place->second;
}

Moment EngineOracle::Begin(const model::SamplingOptions& sampling) {
  return {.session = cache::Must(engine_->OpenSession({.sampling = sampling}))};
}

TurnAnswer EngineOracle::Turn(const Moment& before, const std::vector<TokenId>& fed,
                              uint32_t max_tokens, const std::vector<TokenId>& stop_tokens) {
  const serve::SessionId fork = cache::Must(engine_->ForkSession(before.session));
  TurnAnswer answer;
  answer.response =
      Run({.prompt = fed, .max_tokens = max_tokens, .stop_tokens = stop_tokens, .session = fork})
          .response;
  answer.after = {.session = fork,
                  .tokens = before.tokens + fed.size() + answer.response.tokens.size()};
  return answer;
}

void EngineOracle::Forget(const Moment& moment) {
  cache::Must(engine_->EndSession(moment.session));
}

// Counts bytes as taken that the floors of others may keep, up to the size of the next victim.
bool EngineOracle::Fits(uint32_t party, uint64_t budget_bytes, uint64_t tokens,
                        uint64_t tokens_at_most, uint64_t step_tokens) const {
  CacheOptions options = setup_.cache;
  options.clock = &clock_;
  const auto empty = cache::MakeCache(std::move(options));
  const auto tenants = AddParties(*empty, {.quotas_of = setup_.cache.hot_bytes});
  uint64_t kept_bytes = 0;
  for (uint32_t other = 0; other < kEngineParties.size(); ++other) {
    if (other == party || kEngineParties[other].floor_eighths == 0) continue;
    kept_bytes += setup_.cache.hot_bytes * kEngineParties[other].floor_eighths / 8;
    kept_bytes += setup_.charge_bytes;
  }
  if (budget_bytes <= kept_bytes || !empty->Resize(budget_bytes - kept_bytes)) return false;
  const std::vector<TokenId> text(tokens);
  auto plan = empty->Acquire({.tenant = tenants[party], .identity = &identity_, .tokens = text});
  const SequenceOptions whole = {.reserve_tokens = tokens_at_most, .step_tokens = step_tokens};
  return plan && empty->Open(*std::move(plan), whole).has_value();
}

}  // namespace quire::sim
