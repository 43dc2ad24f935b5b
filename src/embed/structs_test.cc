// Every struct of quire.h that begins with `size`, at every size a caller can write there: read or
// filled as the growth rule says, or refused with nothing written.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "embed/handles.h"
#include "embed/test_struct_sizes.h"
#include "embed/test_util.h"

namespace quire::embed {
namespace {

struct StructSizes : testing::Test {
  StructSizes() : prompt(cache::SomeTokens(CWorld::kBlock + 3, 1)), sequence(world.Run(prompt)) {}

  quire_acquire_request Request() const {
    auto request = Sized<quire_acquire_request>();
    request.identity = &world.identity;
    request.tokens = prompt.data();
    request.token_count = prompt.size();
    return request;
  }
  Code Acquire(const quire_acquire_request* request, Error error) const {
    quire_plan* made = nullptr;
    const Code code = quire_acquire(world.cache.get(), request, &made, error);
    EXPECT_EQ(made != nullptr, code == QUIRE_OK);
    quire_plan_free(made);
    return code;
  }

  CWorld world;
  std::vector<TokenId> prompt;
  Owned<quire_sequence> sequence;
};

// The first sizes are frozen: a caller that was compiled then works today.
TEST_F(StructSizes, CacheOptions) {
  auto options = SmallOptions();
  options.policy = "quire";
  options.hot_bytes_max = 2 << 20;
  std::set<std::string> policies;
  ReadsAtEverySize<quire_cache_options>(options, 88, [&](const auto* asked, Error error) {
    quire_cache* made = nullptr;
    const Code code = quire_cache_create(asked, &made, error);
    EXPECT_EQ(made != nullptr, code == QUIRE_OK);
    if (made != nullptr) policies.insert(made->cache->options().policy);
    quire_cache_free(made);
    return code;
  });
  EXPECT_EQ(policies, (std::set<std::string>{"lru", "quire"}));
}

TEST_F(StructSizes, Identity) {
  ReadsAtEverySize<quire_identity>(world.identity, 112, [&](const auto* identity, Error error) {
    auto request = Request();
    request.identity = identity;
    return Acquire(&request, error);
  });
}

TEST_F(StructSizes, AcquireRequest) {
  ReadsAtEverySize<quire_acquire_request>(
      Request(), 40, [&](const auto* request, Error error) { return Acquire(request, error); });
}

TEST_F(StructSizes, SequenceOptions) {
  auto options = Sized<quire_sequence_options>();
  options.on_full = QUIRE_FEWER;
  options.reserve_tokens = 64;
  ReadsAtEverySize<quire_sequence_options>(options, 32, [&](const auto* asked, Error error) {
    quire_sequence* made = nullptr;
    const Code code = quire_open(world.Acquire(prompt).release(), asked, &made, error);
    EXPECT_EQ(made != nullptr, code == QUIRE_OK);
    quire_sequence_free(made);
    return code;
  });
}

TEST_F(StructSizes, TenantOptions) {
  auto options = Sized<quire_tenant_options>();
  std::string name = "tenant 0";
  options.name = name.data();
  options.ttl_us = 5;
  ReadsAtEverySize<quire_tenant_options>(options, 56, [&](const auto* asked, Error error) {
    ++name.back();  // its place does not move: one byte is written
    uint32_t tenant = UINT32_MAX;
    const Code code = quire_cache_add_tenant(world.cache.get(), asked, &tenant, error);
    EXPECT_EQ(tenant != UINT32_MAX, code == QUIRE_OK);
    return code;
  });
}

TEST_F(StructSizes, Retention) {
  auto priorities = SmallOptions();
  priorities.policy = "priority";
  const CWorld by_priority(priorities);
  const auto kept = by_priority.Run(prompt);
  auto retention = Sized<quire_retention>();
  retention.end_token = 5;
  retention.priority = 70;
  retention.ttl_us = 1000;
  ReadsAtEverySize<quire_retention>(retention, 40, [&](const auto* asked, Error error) {
    return quire_sequence_retain(kept.get(), asked, error);
  });
}

TEST_F(StructSizes, AttentionOptions) {
  auto options = Sized<quire_attention_options>();
  options.threads = 1;
  ReadsAtEverySize<quire_attention_options>(options, 16, [&](const auto* asked, Error error) {
    quire_attention* made = nullptr;
    const Code code = quire_attention_create(asked, &made, error);
    EXPECT_EQ(made != nullptr, code == QUIRE_OK);
    quire_attention_free(made);
    return code;
  });
}

TEST_F(StructSizes, AttendRequest) {
  const auto attention = MustMake<quire_attention>([](quire_attention** out, Error error) {
    return quire_attention_create(nullptr, out, error);
  });
  const std::vector<float> queries(8);
  std::vector<float> out(8);
  const quire_attend_task task = {.sequence = sequence.get(),
                                  .queries = queries.data(),
                                  .out = out.data(),
                                  .rows = 1,
                                  .first_position = 3};
  auto request = Sized<quire_attend_request>();
  request.query_heads = 2;
  request.task_count = 1;
  request.tasks = &task;
  ReadsAtEverySize<quire_attend_request>(request, 32, [&](const auto* asked, Error error) {
    std::ranges::fill(out, -1.0f);
    const Code code = quire_attend(attention.get(), asked, error);
    EXPECT_EQ(out[0] != -1.0f, code == QUIRE_OK);
    return code;
  });
}

TEST_F(StructSizes, CacheStats) {
  FillsAtEverySize<quire_cache_stats>(232, [&](auto* stats, Error error) {
    return quire_cache_get_stats(world.cache.get(), stats, error);
  });
}

TEST_F(StructSizes, CacheCodecs) {
  FillsAtEverySize<quire_cache_codecs>(32, [&](auto* codecs, Error error) {
    return quire_cache_get_codecs(world.cache.get(), codecs, error);
  });
}

TEST_F(StructSizes, SequenceStats) {
  FillsAtEverySize<quire_sequence_stats>(32, [&](auto* stats, Error error) {
    return quire_sequence_get_stats(sequence.get(), stats, error);
  });
}

TEST_F(StructSizes, LayerBlocks) {
  FillsAtEverySize<quire_layer_blocks>(120, [&](auto* blocks, Error error) {
    return quire_sequence_blocks(sequence.get(), 0, blocks, error);
  });
}

TEST_F(StructSizes, Tensor) {
  const auto view = world.View(*sequence, 0, QUIRE_KEY);
  FillsAtEverySize<quire_tensor>(104, [&](auto* tensor, Error error) {
    return quire_view_tensor(view.get(), 0, tensor, error);
  });
}

}  // namespace
}  // namespace quire::embed
