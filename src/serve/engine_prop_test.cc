// Whatever comes, in whatever order and however little room there is: every answer has the bits of
// the request alone, every request ends once, and the budget holds at each step.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/prng.h"
#include "serve/test_client.h"
#include "serve/test_util.h"

namespace quire::serve {
namespace {

constexpr uint64_t kRequests = 14;
constexpr uint64_t kSessions = 2;
constexpr uint64_t kTicksMax = 30'000;

/// What decides an answer: text, max_tokens, temperature, seed, codec, residual_tokens.
using Question = std::tuple<std::vector<TokenId>, uint32_t, float, uint64_t, Codec, uint32_t>;

/// One cache, one engine and callers that do anything, all from one seed.
class World {
 public:
  World(uint64_t seed, model::Model& model, std::map<Question, Response>& alone)
      : prng_(seed), model_(model), alone_(alone) {
    executor_ = MakeThreadPool(1 + static_cast<uint32_t>(prng_.NextBelow(2)));
    static constexpr Codec kCodecs[] = {Codec::kF32, Codec::kF32, Codec::kInt8, Codec::kNf4};
    codec_ = kCodecs[prng_.NextBelow(std::size(kCodecs))];
    residual_tokens_ = IsIdentity(codec_) ? 0 : static_cast<uint32_t>(prng_.NextBelow(2)) * 32;
    // From what holds one request to what holds all.
    blocks_ = prng_.NextChance(3) ? 200 : 10 + prng_.NextBelow(20);
    cache_ = MakeCache(blocks_);
    tenants_ = {kDefaultTenant, cache_->AddTenant({.name = "a"}).value()};
    const TenantId domain = cache_->AddTenant({.name = "team", .shared = true}).value();
    for (const char* const name : {"b", "c"}) {
      tenants_.push_back(cache_->AddTenant({.name = name, .domain = "team"}).value());
    }
    const uint32_t chunk = 8u << prng_.NextBelow(4);
    options_ = {.chunk_tokens_min = chunk,
                .chunk_tokens_max = chunk << prng_.NextBelow(3),
                .admission = prng_.NextChance(2) ? Admission::kGrow : Admission::kWhole,
                .running_max = 1 + static_cast<uint32_t>(prng_.NextBelow(8)),
                .events_max = 8 + static_cast<uint32_t>(prng_.NextBelow(20)),
                .stall_us = 5000,
                .aging_us = 20'000};
    engine_ = MakeEngine(*cache_, options_);
    for (const TenantId member : {tenants_[2], tenants_[3]}) {
      engine_->SetTenant({.tenant = member,
                          .weight = 1.0 + static_cast<double>(prng_.NextBelow(3)),
                          .domain = domain});
    }
    client_.emplace(*engine_);
    for (uint64_t i = 0; i < kSessions; ++i) {
      sessions_.push_back({.id = engine_->OpenSession({.tenant = AnyTenant()}).value()});
    }
  }

  void Run() {
    uint64_t submitted = 0;
    for (uint64_t tick = 0; submitted < kRequests || !client_->AllEnded(); ++tick) {
      ASSERT_LT(tick, kTicksMax) << "starved";
      if (submitted < kRequests && prng_.NextChance(arrival_)) submitted += Submit();
      engine_->Tick();
      clock_.Advance(prng_.NextBelow(2000));
      const CacheStats stats = cache_->stats();
      ASSERT_LE(stats.hot_bytes_used, stats.hot_bytes_limit);
      ASSERT_LE(stats.hot_bytes_peak, stats.hot_bytes_limit);
      ASSERT_LE(engine_->stats().running, options_.running_max);
      Read();
      if (prng_.NextChance(60)) Cancel();
    }
    for (const auto& [id, request] : requests_) Check(id, request);
    EndSessions();
  }

  uint64_t preemptions() const { return engine_->stats().preemptions; }
  uint64_t cancelled() const { return cancelled_; }
  uint64_t prefix_waits() const { return engine_->stats().prefix_waits; }
  uint64_t sessions_released() const { return engine_->stats().sessions_released; }

 private:
  struct Talk {
    SessionId id;
    std::vector<TokenId> text{};  // fed and generated
    RequestId turn{};             // none: it is idle
  };
  struct Asked {
    Request request;
    std::vector<TokenId> text;  // all that comes before the answer
    bool slow = false;          // its reader
  };

  TenantId AnyTenant() { return tenants_[prng_.NextBelow(tenants_.size())]; }

  std::unique_ptr<Cache> MakeCache(uint64_t blocks) {
    NumericProfile profile = NumericProfile::Uniform(Codec::kF32, kBlockTokens);
    for (CodecRule& rule : profile.codecs) rule.codec = codec_;
    profile.residual_tokens = residual_tokens_;
    CacheOptions options{.geometry = model::GeometryOf(model_.config()),
                         .profile = profile,
                         .hot_bytes = uint64_t{1} << 30,
                         .tokens_max = 4096,
                         .clock = &clock_};
    const CacheStats stats = Cache::Create(options).value()->stats();
    // Room for so many sealed blocks; where the codec encodes, and as much again for open ones.
    options.hot_bytes = options.hot_bytes / stats.sealed.slots_max * (blocks + 1);
    if (!IsIdentity(codec_)) options.hot_bytes += (4 + blocks) * 4 * stats.open.slot_bytes;
    return Cache::Create(options).value();
  }

  std::unique_ptr<Engine> MakeEngine(Cache& cache, const EngineOptions& options) {
    return Engine::Create({.model = model_,
                           .cache = cache,
                           .attention = *attention_,
                           .executor = *executor_,
                           .clock = clock_},
                          Identity{.weights = model_.fingerprint(), .domain = {.name = "test"}},
                          options)
        .value();
  }

  bool Submit() {
    Request request{.max_tokens = static_cast<uint32_t>(prng_.NextBelow(30)),
                    .priority = static_cast<uint8_t>(45 + prng_.NextBelow(10))};
    if (prng_.NextChance(3)) request.sampling = {.temperature = 1.0f, .seed = prng_.NextBelow(3)};
    // One of a few beginnings, cut anywhere, and an end of its own or none.
    const std::vector<TokenId> beginning = SomeTokens(80, 1 + prng_.NextBelow(3));
    request.prompt.assign(beginning.begin(),
                          beginning.begin() + static_cast<int64_t>(1 + prng_.NextBelow(80)));
    if (prng_.NextChance(2)) {
      const auto end = SomeTokens(prng_.NextBelow(30), 50 + prng_.NextBelow(50));
      request.prompt.insert(request.prompt.end(), end.begin(), end.end());
    }
    request.reuse = !prng_.NextChance(8);
    request.tenant = AnyTenant();
    Asked asked{.request = request, .text = request.prompt, .slow = prng_.NextChance(5)};
    Talk& talk = sessions_[prng_.NextBelow(kSessions)];
    const bool in_session = prng_.NextChance(3);
    if (in_session) {
      if (!talk.turn.is_none() || talk.text.size() > 120) return false;
      asked.request.session = talk.id;
      asked.request.sampling = {};
      asked.text.insert(asked.text.begin(), talk.text.begin(), talk.text.end());
    }
    const RequestId id = client_->Submit(asked.request);
    if (in_session) talk.turn = id;
    requests_.emplace(id, std::move(asked));
    return true;
  }

  void Read() {
    for (const auto& [id, asked] : requests_) {
      if (!asked.slow || prng_.NextChance(30)) client_->Take(id);
    }
    for (Talk& talk : sessions_) {
      if (talk.turn.is_none() || !client_->Of(talk.turn).response) continue;
      // A turn that failed is undone.
      if (client_->Of(talk.turn).response->finish == Finish::kFailed) {
        talk.turn = RequestId::None();
        continue;
      }
      talk.text = requests_.at(talk.turn).text;
      const std::vector<TokenId>& said = client_->Of(talk.turn).tokens;
      talk.text.insert(talk.text.end(), said.begin(), said.end());
      talk.turn = RequestId::None();
    }
  }

  void Cancel() {
    const auto any =
        std::next(requests_.begin(), static_cast<int64_t>(prng_.NextBelow(requests_.size() + 1)));
    if (any != requests_.end()) engine_->Cancel(any->first);
  }

  /// The answer of a request with this text in an empty cache that holds anything.
  const Response& Alone(const Asked& asked) {
    Request request{.prompt = asked.text,
                    .max_tokens = asked.request.max_tokens,
                    .sampling = asked.request.sampling};
    const Question key(request.prompt, request.max_tokens, request.sampling.temperature,
                       request.sampling.seed, codec_, residual_tokens_);
    const auto [place, added] = alone_.try_emplace(key);
    if (added) {
      const auto cache = MakeCache(200);
      const auto engine = MakeEngine(*cache, {});
      place->second = RunAll(*engine, {request})[0];
    }
    return place->second;
  }

  void Check(RequestId id, const Asked& asked) {
    const Heard& heard = client_->Of(id);
    ASSERT_EQ(heard.responses, 1u);
    const Response& response = *heard.response;
    const Response& alone = Alone(asked);
    SCOPED_TRACE(testing::Message() << "request " << id.number());
    if (response.finish == Finish::kFailed) {  // a turn whose text has become too long
      ASSERT_EQ(response.error.code, ErrorCode::kTooLarge) << response.error.message;
      ASSERT_GT(asked.text.size() + asked.request.max_tokens, blocks_ * kBlockTokens);
      return;
    }
    ASSERT_TRUE(response.finish == Finish::kLength || response.finish == Finish::kCancelled)
        << response.error.message;
    ASSERT_LE(heard.tokens.size(), alone.tokens.size());
    EXPECT_TRUE(
        std::ranges::equal(heard.tokens, std::span(alone.tokens).first(heard.tokens.size())));
    if (response.finish == Finish::kLength) {
      EXPECT_EQ(response.logits_digest, alone.logits_digest);
    } else {
      ++cancelled_;
    }
  }

  void EndSessions() {
    for (const Talk& talk : sessions_) ASSERT_TRUE(engine_->EndSession(talk.id).has_value());
    engine_->Tick();
    EXPECT_EQ(cache_->stats().sequences, 0u);
    cache_->Evict(UINT32_MAX);
    EXPECT_EQ(cache_->stats().hot_bytes_used, 0u);
  }

  Prng prng_;
  ManualClock clock_;
  model::Model& model_;
  std::map<Question, Response>& alone_;
  const std::unique_ptr<AttentionBackend> attention_ = MakeCpuAttention().value();
  std::unique_ptr<Executor> executor_;
  Codec codec_;
  uint32_t residual_tokens_;
  uint64_t blocks_;
  std::unique_ptr<Cache> cache_;
  std::vector<TenantId> tenants_;
  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
  std::optional<TestClient> client_;
  std::vector<Talk> sessions_;
  std::map<RequestId, Asked> requests_;
  const uint64_t arrival_ = 1 + prng_.NextBelow(6);  // one comes in so many ticks
  uint64_t cancelled_ = 0;
};

TEST(EngineProperty, EveryAnswerIsThatOfTheRequestAlone) {
  const model::ModelConfig config = model::SmallConfig();
  const auto model =
      model::Model::Create(config, model::RandomTensors(config, ComputeType::kF32, 7), {}).value();
  const char* const seeds = std::getenv("QUIRE_ENGINE_SEEDS");
  const uint64_t count = seeds == nullptr ? 60 : std::strtoull(seeds, nullptr, 10);
  std::map<Question, Response> alone;
  uint64_t preemptions = 0;
  uint64_t cancelled = 0;
  uint64_t prefix_waits = 0;
  uint64_t sessions_released = 0;
  for (uint64_t seed = 1; seed <= count; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    World world(seed, *model, alone);
    world.Run();
    if (testing::Test::HasFatalFailure() || testing::Test::HasNonfatalFailure()) return;
    preemptions += world.preemptions();
    cancelled += world.cancelled();
    prefix_waits += world.prefix_waits();
    sessions_released += world.sessions_released();
  }
  // All of it was met.
  EXPECT_GT(preemptions, count / 2);
  EXPECT_GT(cancelled, count / 4);
  EXPECT_GT(prefix_waits, count / 10);
  EXPECT_GT(sessions_released, 0u);
}

}  // namespace
}  // namespace quire::serve
