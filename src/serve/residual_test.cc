// Requests whose last tokens are read open: turns, common beginnings and batches get the bits that
// each gets alone in an empty cache, and reuse what the twins allow.
#include <gtest/gtest.h>

#include "env/clock.h"
#include "model/random_model.h"
#include "serve/engine.h"
#include "serve/test_util.h"

namespace quire::serve {
namespace {

/// A cache and an engine on a small random model.
class Server {
 public:
  Server(Codec codec, uint32_t residual_tokens, uint32_t chunk_tokens) {
    const model::ModelConfig config = model::SmallConfig();
    model_ = model::Model::Create(config, model::RandomTensors(config, ComputeType::kF32, 7), {})
                 .value();
    NumericProfile profile = NumericProfile::Uniform(Codec::kF32);
    for (CodecRule& rule : profile.codecs) rule.codec = codec;
    profile.residual_tokens = residual_tokens;
    cache_ = Cache::Create({.geometry = model::GeometryOf(config),
                            .profile = profile,
                            .hot_bytes = uint64_t{1} << 26,
                            .tokens_max = 4096})
                 .value();
    engine_ = Engine::Create({.model = *model_,
                              .cache = *cache_,
                              .attention = *attention_,
                              .executor = *executor_,
                              .clock = clock_},
                             Identity{.weights = model_->fingerprint(), .domain = {.name = "test"}},
                             {.chunk_tokens_min = chunk_tokens, .chunk_tokens_max = chunk_tokens})
                  .value();
  }

  std::vector<Response> Run(const std::vector<std::vector<TokenId>>& prompts, bool reuse = true) {
    std::vector<Request> requests;
    for (const auto& prompt : prompts) {
      requests.push_back({.prompt = prompt, .max_tokens = 20, .reuse = reuse});
    }
    return RunAll(*engine_, requests);
  }

 private:
  ManualClock clock_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<Executor> executor_ = MakeThreadPool(2);
  std::unique_ptr<AttentionBackend> attention_ = MakeCpuAttention().value();
  std::unique_ptr<Engine> engine_;
};

TEST(Residual, TurnsAndCommonBeginningsGiveTheBitsOfAMiss) {
  for (const Codec codec :
       {Codec::kFp8E4m3, Codec::kInt8, Codec::kInt4, Codec::kNf4, Codec::kQ25}) {
    for (const uint32_t residual : {16u, 128u}) {
      SCOPED_TRACE(std::string(CodecName(codec)) + " " + std::to_string(residual));
      Server server(codec, residual, 50);
      Server empty(codec, residual, 33);
      const auto expect = [&](const std::vector<std::vector<TokenId>>& prompts,
                              const std::vector<uint64_t>& reused, MissReason reason) {
        const std::vector<Response> got = server.Run(prompts);
        for (size_t i = 0; i < prompts.size(); ++i) {
          ASSERT_EQ(got[i].finish, Finish::kLength) << got[i].error.message;
          EXPECT_EQ(got[i].reused_tokens, reused[i]) << i;
          EXPECT_EQ(got[i].miss_reason, reason) << i;
          const Response alone = empty.Run({prompts[i]}, /*reuse=*/false)[0];
          EXPECT_EQ(got[i].logits_digest, alone.logits_digest) << i;
        }
      };
      const std::vector<TokenId> prompt = SomeTokens(300, 1);
      expect({prompt}, {0}, MissReason::kNeverSeen);
      expect({prompt}, {288}, MissReason::kPartialBlock);
      // The next turn goes on where this one ended: 319 tokens were fed.
      const auto turn = Join(prompt, Join(empty.Run({prompt}, false)[0].tokens, SomeTokens(40, 2)));
      expect({turn}, {304}, MissReason::kNeverSeen);
      // A common beginning is known, but nothing was kept to go on from there.
      const auto common = std::vector<TokenId>(prompt.begin(), prompt.begin() + 200);
      expect({Join(common, SomeTokens(30, 3))}, {0}, MissReason::kNoTwin);
      expect({Join(common, SomeTokens(30, 4)), Join(common, SomeTokens(77, 5))}, {0, 0},
             MissReason::kNoTwin);
      // Once it was a prompt of its own, it is a place to go on from.
      expect({common}, {0}, MissReason::kNoTwin);
      expect({Join(common, SomeTokens(30, 6)), Join(common, SomeTokens(77, 7)),
              Join(common, SomeTokens(19, 8))},
             {192, 192, 192}, MissReason::kNeverSeen);
    }
  }
}

// Twins are where a prompt ends, also one of whole blocks: a request that asks the same waits for
// them.
TEST(Residual, OfTwoEqualPromptsOneIsComputed) {
  for (const uint64_t tokens : {319, 320, 321}) {
    Server server(Codec::kInt8, 16, 50);
    Server empty(Codec::kInt8, 16, 33);
    const std::vector<TokenId> prompt = SomeTokens(tokens, 1);
    const std::vector<Response> got = server.Run({prompt, prompt});
    EXPECT_EQ(got[0].reused_tokens, 0u);
    EXPECT_EQ(got[1].reused_tokens, (tokens - 1) / 16 * 16) << tokens;
    EXPECT_EQ(got[1].logits_digest, empty.Run({prompt}, /*reuse=*/false)[0].logits_digest);
  }
}

}  // namespace
}  // namespace quire::serve
