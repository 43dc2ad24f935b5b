// Training runs and requests on one budget: SPEC O3.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "registry/registry.h"
#include "serve/test_client.h"
#include "serve/test_util.h"

namespace quire::serve {
namespace {

constexpr uint64_t kRunTokens = 320;
constexpr uint64_t kStepTokens = 16;

/// A training run that appends rows of its own, some at a time.
class TrainingRun {
 public:
  TrainingRun(Registry& registry, const Geometry& geometry, const std::string& adapter, float value)
      : stream_(geometry.groups[0].streams[0]),
        layers_(geometry.layer_count()),
        value_(value),
        cache_(registry.GetOrCreate(TrainingOwner{.adapter = adapter, .run = 1}, {}).value()) {}

  const OwnerCache& cache() const { return *cache_; }
  bool done() const { return cache_->length() == kRunTokens; }

  /// The next tokens, from the layer on where the last try ended.
  Result<void> Step() {
    const std::vector<float> rows(kStepTokens * stream_.heads * stream_.dim,
                                  value_ + static_cast<float>(cache_->length()));
    const RowsView view{.data = rows.data(),
                        .dtype = Codec::kF32,
                        .token_stride = int64_t{stream_.heads} * stream_.dim,
                        .head_stride = stream_.dim};
    for (; layer_ < layers_; ++layer_) {
      QUIRE_TRY(cache_->Append(layer_, {.key = view, .value = view, .tokens = kStepTokens}));
    }
    const std::vector<TokenId> text = SomeTokens(kRunTokens, 1);  // also a prompt of requests
    QUIRE_TRY(cache_->Commit(std::span(text).subspan(cache_->length(), kStepTokens)));
    layer_ = 0;
    return {};
  }

  void ExpectItsOwnRows() const {
    const uint64_t tokens = cache_->length();
    std::vector<float> out(tokens * stream_.heads * stream_.dim);
    for (uint32_t layer = 0; layer < layers_; ++layer) {
      ASSERT_TRUE(cache_->Gather(layer, StreamRole::kValue, 0, tokens, out).has_value());
      for (uint64_t i = 0; i < out.size(); ++i) {
        const uint64_t token = i / stream_.dim % tokens;
        ASSERT_EQ(out[i], value_ + static_cast<float>(token - token % kStepTokens)) << i;
      }
    }
  }

 private:
  const Stream stream_;
  const uint32_t layers_;
  const float value_;
  const std::shared_ptr<OwnerCache> cache_;
  uint32_t layer_ = 0;
};

TEST_F(EngineTest, TrainingRunsAndRequestsShareABudgetAndNothingElse) {
  engine_options_.outside_retry_us = 1000;
  for (const Admission admission : {Admission::kWhole, Admission::kGrow}) {
    engine_options_.admission = admission;
    Make(200);
    std::vector<Request> requests;
    for (uint64_t i = 0; i < 8; ++i) {
      // The text of the runs among them.
      requests.push_back({.prompt = SomeTokens(100 + 10 * i, 1 + i % 3), .max_tokens = 40});
    }
    const std::vector<Response> alone = RunAll(*engine_, requests);

    const Geometry geometry = model::GeometryOf(model_->config());
    const auto owners = Registry::Create({.geometry = geometry,
                                          .profile = cache_->options().profile,
                                          .hot_bytes = cache_->stats().hot_bytes_limit * 60 / 200,
                                          .tokens_max = 4096,
                                          .clock = &clock_})
                            .value();
    Cache& shared = *owners->CacheOf({}).value();
    engine_ = MakeEngine(shared);
    TestClient client(*engine_);
    std::vector<RequestId> ids;
    for (const Request& request : requests) ids.push_back(client.Submit(request));
    std::optional<TrainingRun> first(std::in_place, *owners, geometry, "a", 1.0f);
    std::optional<TrainingRun> second(std::in_place, *owners, geometry, "b", 100'000.0f);
    uint64_t gave_way = 0;
    uint64_t ticks = 0;
    // The runs take 40 of 60 blocks in the end, and no longer than if they were alone.
    for (; !first->done() || !second->done(); ++ticks) {
      for (TrainingRun* const run : {&*first, &*second}) {
        if (run->done()) continue;
        if (auto done = run->Step(); !done) {
          ASSERT_EQ(done.error().code, ErrorCode::kNoSpace) << done.error().message;
          engine_->GiveWay();
          ++gave_way;
        }
      }
      engine_->Tick();
      clock_.Advance(100);
      client.TakeAll();
      ASSERT_LE(owners->bytes_used(), owners->budget_bytes());
      ASSERT_LT(ticks, 200u);
    }
    EXPECT_GT(gave_way, 0u);
    for (int i = 0; i < 1000 && !client.AllEnded(); ++i) {
      engine_->Tick();
      clock_.Advance(1000);
      client.TakeAll();
      ASSERT_LE(owners->bytes_used(), owners->budget_bytes());
    }
    first->ExpectItsOwnRows();
    second->ExpectItsOwnRows();
    for (uint64_t i = 0; i < requests.size(); ++i) {
      const auto& response = client.Of(ids[i]).response;
      ASSERT_TRUE(response.has_value()) << i;
      EXPECT_EQ(response->finish, Finish::kLength) << response->error.message;
      EXPECT_EQ(response->logits_digest, alone[i].logits_digest) << i;
    }
    // What is published is the requests' alone: all of it goes when the runs are asked to keep
    // theirs.
    EXPECT_EQ(shared.stats().sequences, 2u);
    owners->EvictToBudget(0);
    EXPECT_EQ(shared.stats().published_blocks, 0u);
    EXPECT_TRUE(first->done() && second->done());
    first->ExpectItsOwnRows();
    first.reset();
    second.reset();
    for (const char* const adapter : {"a", "b"}) {
      EXPECT_TRUE(owners->Release(TrainingOwner{.adapter = adapter, .run = 1}));
    }
    EXPECT_EQ(owners->bytes_used(), 0u);
    engine_.reset();  // before the registry
  }
}

TEST_F(EngineTest, ARequestThatGaveWayGoesOnThoughNobodyElseWasExpectedOnTheBudget) {
  Make(64);
  TestClient client(*engine_);
  const RequestId id = client.Submit({.prompt = SomeTokens(40, 1), .max_tokens = 8});
  engine_->Tick();
  engine_->GiveWay();
  for (int i = 0; i < 100 && !client.AllEnded(); ++i) {
    engine_->Tick();
    clock_.Advance(10'000);
    client.TakeAll();
  }
  ASSERT_TRUE(client.AllEnded());
  EXPECT_EQ(client.Of(id).response->finish, Finish::kLength);
  EXPECT_EQ(engine_->stats().preemptions, 1u);
}

}  // namespace
}  // namespace quire::serve
