// Everything a C caller can get wrong is a code with a message that names it, and changes nothing.
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "embed/test_util.h"

namespace quire::embed {
namespace {

constexpr uint32_t kBlock = CWorld::kBlock;

struct Misuse : testing::Test {
  Misuse() : prompt(cache::SomeTokens(kBlock + 3, 1)), sequence(world.Run(prompt)) {}

  // Refused as `code`, with a message that has `words`, and with the cache as it was.
  void Refused(quire_code code, const std::string& words,
               const std::function<quire_code(quire_error*)>& call) {
    const std::string before = Snapshot();
    quire_error error{};
    EXPECT_EQ(call(&error), code) << words << " - " << Show(error);
    EXPECT_EQ(error.code, code);
    EXPECT_NE(std::string(error.message).find(words), std::string::npos)
        << "\"" << words << "\" is not in \"" << error.message << "\"";
    EXPECT_EQ(call(nullptr), code);
    EXPECT_EQ(Snapshot(), before);
  }
  void Invalid(const std::string& words, const std::function<quire_code(quire_error*)>& call) {
    Refused(QUIRE_INVALID_ARGUMENT, words, call);
  }

  std::string Snapshot() const {
    char text[4096];
    size_t length = 0;
    EXPECT_EQ(quire_cache_stats_json(world.cache.get(), text, sizeof(text), &length, nullptr),
              QUIRE_OK);
    return std::string(text) + std::to_string(quire_sequence_length(sequence.get()));
  }

  quire_acquire_request Request() const {
    auto request = Sized<quire_acquire_request>();
    request.identity = &world.identity;
    request.tokens = prompt.data();
    request.token_count = prompt.size();
    return request;
  }

  CWorld world;
  std::vector<TokenId> prompt;
  Owned<quire_sequence> sequence;
  uint64_t number = 0;
};

TEST_F(Misuse, NullIsNamed) {
  quire_cache* c = world.cache.get();
  quire_sequence* s = sequence.get();
  auto options = SmallOptions();
  auto request = Request();
  const auto view = world.View(*s, 0, QUIRE_KEY);
  const auto attention = MustMake<quire_attention>([](quire_attention** out, quire_error* error) {
    return quire_attention_create(nullptr, out, error);
  });
  quire_cache* cache_out = nullptr;
  quire_plan* plan_out = nullptr;
  quire_sequence* sequence_out = nullptr;
  quire_view* view_out = nullptr;
  DLManagedTensorVersioned* tensor_out = nullptr;
  DLManagedTensor* legacy_out = nullptr;
  auto cache_stats = Sized<quire_cache_stats>();
  auto sequence_stats = Sized<quire_sequence_stats>();
  auto blocks = Sized<quire_layer_blocks>();
  auto tensor = Sized<quire_tensor>();
  auto attend = Sized<quire_attend_request>();
  const std::vector<float> rows(8);
  const quire_rows row = {
      .data = rows.data(), .dtype = QUIRE_F32, .token_stride = 8, .head_stride = 4};
  quire_rows no_data = row;
  no_data.data = nullptr;
  float out[8];

  using E = quire_error*;
  const std::vector<std::pair<std::string, std::function<quire_code(E)>>> calls = {
      {"options is NULL", [&](E e) { return quire_cache_create(nullptr, &cache_out, e); }},
      {"cache is NULL", [&](E e) { return quire_cache_create(&options, nullptr, e); }},
      {"cache is NULL", [&](E e) { return quire_cache_get_stats(nullptr, &cache_stats, e); }},
      {"stats is NULL", [&](E e) { return quire_cache_get_stats(c, nullptr, e); }},
      {"cache is NULL",
       [&](E e) { return quire_cache_stats_json(nullptr, nullptr, 0, &request.token_count, e); }},
      {"length is NULL", [&](E e) { return quire_cache_stats_json(c, nullptr, 0, nullptr, e); }},
      {"text is NULL",
       [&](E e) { return quire_cache_stats_json(c, nullptr, 9, &request.token_count, e); }},
      {"cache is NULL", [&](E e) { return quire_cache_verify(nullptr, &number, &number, e); }},
      {"blocks is NULL", [&](E e) { return quire_cache_verify(c, nullptr, &number, e); }},
      {"damaged is NULL", [&](E e) { return quire_cache_verify(c, &number, nullptr, e); }},
      {"cache is NULL", [&](E e) { return quire_cache_evict(nullptr, 1, &number, e); }},
      {"evicted is NULL", [&](E e) { return quire_cache_evict(c, 1, nullptr, e); }},
      {"cache is NULL", [&](E e) { return quire_cache_trim(nullptr, &number, e); }},
      {"bytes is NULL", [&](E e) { return quire_cache_trim(c, nullptr, e); }},
      {"cache is NULL", [&](E e) { return quire_cache_resize(nullptr, 1, e); }},
      {"cache is NULL", [&](E e) { return quire_acquire(nullptr, &request, &plan_out, e); }},
      {"request is NULL", [&](E e) { return quire_acquire(c, nullptr, &plan_out, e); }},
      {"plan is NULL", [&](E e) { return quire_acquire(c, &request, nullptr, e); }},
      {"plan is NULL", [&](E e) { return quire_open(nullptr, nullptr, &sequence_out, e); }},
      {"sequence is NULL", [&](E e) { return quire_sequence_cursor(nullptr, 0, &number, e); }},
      {"tokens is NULL", [&](E e) { return quire_sequence_cursor(s, 0, nullptr, e); }},
      {"sequence is NULL",
       [&](E e) { return quire_sequence_get_stats(nullptr, &sequence_stats, e); }},
      {"stats is NULL", [&](E e) { return quire_sequence_get_stats(s, nullptr, e); }},
      {"sequence is NULL", [&](E e) { return quire_sequence_reserve(nullptr, 1, e); }},
      {"sequence is NULL",
       [&](E e) { return quire_sequence_append(nullptr, 0, &row, &row, 1, e); }},
      {"key is NULL", [&](E e) { return quire_sequence_append(s, 0, nullptr, &row, 1, e); }},
      {"value has no data", [&](E e) { return quire_sequence_append(s, 0, &row, nullptr, 1, e); }},
      {"key has no data", [&](E e) { return quire_sequence_append(s, 0, &no_data, &row, 1, e); }},
      {"sequence is NULL", [&](E e) { return quire_sequence_commit(nullptr, nullptr, 0, e); }},
      {"tokens is NULL", [&](E e) { return quire_sequence_commit(s, nullptr, 1, e); }},
      {"sequence is NULL", [&](E e) { return quire_sequence_rollback(nullptr, 0, e); }},
      {"sequence is NULL", [&](E e) { return quire_sequence_fork(nullptr, &sequence_out, e); }},
      {"fork is NULL", [&](E e) { return quire_sequence_fork(s, nullptr, e); }},
      {"sequence is NULL", [&](E e) { return quire_sequence_reset(nullptr, e); }},
      {"sequence is NULL",
       [&](E e) { return quire_sequence_gather(nullptr, 0, QUIRE_KEY, 0, 1, out, 8, e); }},
      {"out is NULL",
       [&](E e) { return quire_sequence_gather(s, 0, QUIRE_KEY, 0, 1, nullptr, 8, e); }},
      {"sequence is NULL", [&](E e) { return quire_sequence_blocks(nullptr, 0, &blocks, e); }},
      {"blocks is NULL", [&](E e) { return quire_sequence_blocks(s, 0, nullptr, e); }},
      {"sequence is NULL",
       [&](E e) { return quire_view_open(nullptr, 0, QUIRE_KEY, &view_out, e); }},
      {"view is NULL", [&](E e) { return quire_view_open(s, 0, QUIRE_KEY, nullptr, e); }},
      {"view is NULL", [&](E e) { return quire_view_tensor(nullptr, 0, &tensor, e); }},
      {"tensor is NULL", [&](E e) { return quire_view_tensor(view.get(), 0, nullptr, e); }},
      {"view is NULL", [&](E e) { return quire_view_dlpack(nullptr, 0, &tensor_out, e); }},
      {"tensor is NULL", [&](E e) { return quire_view_dlpack(view.get(), 0, nullptr, e); }},
      {"view is NULL", [&](E e) { return quire_view_dlpack_legacy(nullptr, 0, &legacy_out, e); }},
      {"tensor is NULL", [&](E e) { return quire_view_dlpack_legacy(view.get(), 0, nullptr, e); }},
      {"attention is NULL", [&](E e) { return quire_attention_create(nullptr, nullptr, e); }},
      {"attention is NULL", [&](E e) { return quire_attend(nullptr, &attend, e); }},
      {"request is NULL", [&](E e) { return quire_attend(attention.get(), nullptr, e); }},
  };
  for (const auto& [words, call] : calls) Invalid(words, call);
  EXPECT_EQ(cache_out, nullptr);
  EXPECT_EQ(plan_out, nullptr);
  EXPECT_EQ(sequence_out, nullptr);
  EXPECT_EQ(view_out, nullptr);
  EXPECT_EQ(tensor_out, nullptr);
  EXPECT_EQ(legacy_out, nullptr);
}

TEST_F(Misuse, NullHandlesCountNothingAndAreFreedForNothing) {
  EXPECT_EQ(quire_plan_resident_tokens(nullptr), 0u);
  EXPECT_EQ(quire_plan_missing_tokens(nullptr), 0u);
  EXPECT_EQ(quire_plan_reason(nullptr), 0);
  EXPECT_EQ(quire_sequence_length(nullptr), 0u);
  EXPECT_EQ(quire_view_tokens(nullptr), 0u);
  EXPECT_EQ(quire_view_block_count(nullptr), 0u);
  quire_cache_free(nullptr);
  quire_plan_free(nullptr);
  quire_sequence_free(nullptr);
  quire_view_free(nullptr);
  quire_attention_free(nullptr);
}

TEST_F(Misuse, CacheOptions) {
  quire_cache* out = nullptr;
  const auto with = [&](const std::function<void(quire_cache_options&)>& change) {
    return [&out, change](quire_error* error) {
      quire_cache_options options = SmallOptions();
      change(options);
      return quire_cache_create(&options, &out, error);
    };
  };
  const uint32_t layer = 0;
  const quire_stream streams[] = {{.role = QUIRE_KEY, .heads = 1, .dim = 4},
                                  {.role = QUIRE_VALUE, .heads = 1, .dim = 4},
                                  {.role = 259, .heads = 1, .dim = 4}};
  quire_layer_group group = {.kind = QUIRE_FULL,
                             .window_tokens = 0,
                             .sink_tokens = 0,
                             .layer_count = 1,
                             .layers = &layer,
                             .stream_count = 2,
                             .streams = streams};
  using O = quire_cache_options;
  const auto with_group = [&](const std::function<void(quire_layer_group&)>& change) {
    return [&, change](quire_error* error) {
      quire_layer_group changed = group;
      change(changed);
      return with([&](O& o) {
        o.layers = o.kv_heads = o.head_dim = 0;
        o.group_count = 1;
        o.groups = &changed;
      })(error);
    };
  };
  Invalid("options->size is 0", with([](O& o) { o.size = 0; }));
  Invalid("options->size", with([](O& o) { o.size = offsetof(O, hot_bytes_max) - 1; }));
  Invalid("policy \"mru\"", with([](O& o) { o.policy = "mru"; }));
  Invalid("options->eviction_batch is -1", with([](O& o) { o.eviction_batch = -1; }));
  Invalid("eviction_batch 3", with([](O& o) { o.eviction_batch = 3; }));
  Invalid("either layers", with([](O& o) { o.layers = o.kv_heads = o.head_dim = 0; }));
  Invalid("either layers", with([&](O& o) { o.group_count = 1, o.groups = &group; }));
  Invalid("options->groups is NULL", with([&](O& o) {
            o.layers = o.kv_heads = o.head_dim = 0;
            o.group_count = 1;
          }));
  Invalid("options->groups has 4294967295", with([&](O& o) {
            o.layers = o.kv_heads = o.head_dim = 0;
            o.group_count = UINT32_MAX;
            o.groups = &group;
          }));
  Invalid("options->layers has 4294967295", with([](O& o) { o.layers = UINT32_MAX; }));
  Invalid("heads is 0", with([](O& o) { o.kv_heads = 0; }));
  Invalid("dim is 0", with([](O& o) { o.head_dim = 0; }));
  Invalid("options->codec is 257", with([](O& o) { o.codec = 257; }));
  Refused(QUIRE_UNSUPPORTED, "codec 200", with([](O& o) { o.codec = 200; }));
  Invalid("options->value_codec is -1", with([](O& o) { o.value_codec = -1; }));
  Invalid("options->compute is 4", with([](O& o) { o.compute = 4; }));
  Invalid("options->layout is 300", with([](O& o) { o.layout = 300; }));
  Refused(QUIRE_UNSUPPORTED, "layout 200", with([](O& o) { o.layout = 200; }));
  Invalid("options->placement is 257", with([](O& o) { o.placement = 257; }));
  Invalid("options->placement is -1", with([](O& o) { o.placement = -1; }));
  Refused(QUIRE_UNSUPPORTED, "placement 4", with([](O& o) { o.placement = 4; }));
  Invalid("block_tokens is 17", with([](O& o) { o.block_tokens = 17; }));
  Refused(QUIRE_NO_SPACE, "hot_bytes", with([](O& o) { o.hot_bytes = 0; }));
  Invalid("hot_bytes_max 1 is below", with([](O& o) { o.hot_bytes_max = 1; }));
  Invalid("groups[0].layers is NULL", with_group([](auto& g) { g.layers = nullptr; }));
  Invalid("groups[0].layers has", with_group([](auto& g) { g.layer_count = UINT32_MAX; }));
  Invalid("groups[0].streams is NULL", with_group([](auto& g) { g.streams = nullptr; }));
  Invalid("groups[0].streams has", with_group([](auto& g) { g.stream_count = UINT32_MAX; }));
  Invalid("groups[0].kind is 0", with_group([](auto& g) { g.kind = 0; }));
  Invalid("kind is 9", with_group([](auto& g) { g.kind = 9; }));
  Invalid("streams.role is 259", with_group([&](auto& g) { g.streams = streams + 1; }));
  Invalid("0 layers", with_group([](auto& g) { g.layer_count = 0; }));
  EXPECT_EQ(out, nullptr);
}

TEST_F(Misuse, Prompts) {
  quire_plan* out = nullptr;
  const auto with = [&](const std::function<void(quire_acquire_request&)>& change) {
    return [this, &out, change](quire_error* error) {
      quire_acquire_request request = Request();
      change(request);
      return quire_acquire(world.cache.get(), &request, &out, error);
    };
  };
  using R = quire_acquire_request;
  quire_identity bad = world.identity;
  bad.size = 8;
  Invalid("request->size", with([](R& r) { r.size = 1; }));
  Invalid("request->identity is NULL", with([](R& r) { r.identity = nullptr; }));
  Invalid("request->identity->size is 8", with([&](R& r) { r.identity = &bad; }));
  Invalid("request->tokens is NULL", with([](R& r) { r.tokens = nullptr; }));
  Invalid("no tokens", with([](R& r) { r.token_count = 0; }));
  Invalid("request->tokens has", with([](R& r) { r.token_count = SIZE_MAX; }));
  Invalid("request->tokens has 1048577", with([](R& r) { r.token_count = (1 << 20) + 1; }));
  EXPECT_EQ(out, nullptr);
}

TEST_F(Misuse, APlanIsUsedUpAlsoWhenOpeningFails) {
  quire_sequence* out = nullptr;
  auto options = Sized<quire_sequence_options>();
  const auto fresh = cache::SomeTokens(kBlock, 9);
  const auto open = [&](quire_sequence** sequence_out, quire_error* error) {
    return quire_open(world.Acquire(fresh).release(), &options, sequence_out, error);
  };
  quire_error error{};
  EXPECT_EQ(open(nullptr, &error), QUIRE_INVALID_ARGUMENT);
  options.size = 1;
  EXPECT_EQ(open(&out, &error), QUIRE_INVALID_ARGUMENT);
  options = Sized<quire_sequence_options>();
  options.on_full = 6;
  EXPECT_EQ(open(&out, &error), QUIRE_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "options->on_full is 6");
  options.on_full = QUIRE_HALT;
  options.reserve_tokens = UINT64_MAX;
  EXPECT_EQ(open(&out, &error), QUIRE_INVALID_ARGUMENT);
  options = Sized<quire_sequence_options>();
  options.contiguous = 1;
  EXPECT_EQ(open(&out, &error), QUIRE_UNSUPPORTED);
  options.contiguous = 0;
  options.reserve_tokens = 1 << 20;
  EXPECT_EQ(open(&out, &error), QUIRE_TOO_LARGE);
  EXPECT_EQ(out, nullptr);
  EXPECT_EQ(world.Stats().sequences, 1u);
}

TEST_F(Misuse, Sequences) {
  quire_sequence* s = sequence.get();
  const std::vector<float> data(64);
  const quire_rows rows = {
      .data = data.data(), .dtype = QUIRE_F32, .token_stride = 8, .head_stride = 4};
  const auto append = [&](uint32_t layer, quire_rows key, quire_rows value, uint32_t tokens) {
    return [=](quire_error* error) {
      return quire_sequence_append(s, layer, &key, &value, tokens, error);
    };
  };
  const auto changed = [&](const std::function<void(quire_rows&)>& change) {
    quire_rows made = rows;
    change(made);
    return made;
  };
  using R = quire_rows;
  Invalid("layer 2", append(2, rows, rows, 1));
  Invalid("layer 4294967295", append(UINT32_MAX, rows, rows, 1));
  Invalid("key->dtype is 0", append(0, changed([](R& r) { r.dtype = 0; }), rows, 1));
  Invalid("value->dtype is 257", append(0, rows, changed([](R& r) { r.dtype = 257; }), 1));
  Invalid("dtype 99", append(0, changed([](R& r) { r.dtype = 99; }), rows, 1));
  Invalid("strides", append(0, changed([](R& r) { r.token_stride = 3; }), rows, 2));
  Invalid("strides", append(0, rows, changed([](R& r) { r.head_stride = -4; }), 1));
  Invalid("over the limit", append(0, rows, rows, UINT32_MAX));
  Refused(QUIRE_INVALID_ARGUMENT, "over the limit",
          [&](quire_error* e) { return quire_sequence_reserve(s, UINT64_MAX, e); });
  Invalid("layer 0", [&](quire_error* e) { return quire_sequence_commit(s, prompt.data(), 1, e); });
  Invalid("tokens has", [&](quire_error* e) {
    return quire_sequence_commit(s, prompt.data(), SIZE_MAX - kBlock + 1, e);
  });
  Invalid("rollback", [&](quire_error* e) { return quire_sequence_rollback(s, UINT64_MAX, e); });
  Invalid("layer 2", [&](quire_error* e) { return quire_sequence_cursor(s, 2, &number, e); });

  float out[kBlock * 8];
  const auto gather = [&](uint32_t layer, quire_role role, uint64_t begin, uint64_t end,
                          size_t values) {
    return [=, &out](quire_error* e) {
      return quire_sequence_gather(s, layer, role, begin, end, out, values, e);
    };
  };
  Invalid("layer 2", gather(2, QUIRE_KEY, 0, 1, 8));
  Invalid("role is 0", gather(0, 0, 0, 1, 8));
  Invalid("role is 257", gather(0, 257, 0, 1, 8));
  Invalid("role 3", gather(0, QUIRE_LATENT, 0, 1, 8));
  Invalid("tokens [0, 20)", gather(0, QUIRE_KEY, 0, 20, 160));
  Invalid("tokens [5, 4)", gather(0, QUIRE_KEY, 5, 4, 8));
  Invalid("tokens [0, 18446744073709551615)", gather(0, QUIRE_KEY, 0, UINT64_MAX, 8));
  Invalid("do not fit into 7", gather(0, QUIRE_KEY, 0, 1, 7));

  auto blocks = Sized<quire_layer_blocks>();
  Invalid("layer 2", [&](quire_error* e) { return quire_sequence_blocks(s, 2, &blocks, e); });
  blocks.size = 8;
  Invalid("blocks->size is 8",
          [&](quire_error* e) { return quire_sequence_blocks(s, 0, &blocks, e); });
  auto stats = Sized<quire_sequence_stats>();
  stats.size = 0;
  Invalid("stats->size is 0",
          [&](quire_error* e) { return quire_sequence_get_stats(s, &stats, e); });
}

TEST_F(Misuse, Views) {
  quire_view* out = nullptr;
  const auto open = [&](uint32_t layer, quire_role role) {
    return [=, this, &out](quire_error* e) {
      return quire_view_open(sequence.get(), layer, role, &out, e);
    };
  };
  Invalid("layer 2", open(2, QUIRE_KEY));
  Invalid("role is 0", open(0, 0));
  Invalid("role 3", open(0, QUIRE_LATENT));
  EXPECT_EQ(out, nullptr);

  const auto view = world.View(*sequence, 0, QUIRE_KEY);
  auto tensor = Sized<quire_tensor>();
  for (const uint64_t index : {uint64_t{2}, uint64_t{1} << 32, UINT64_MAX - 1}) {
    Invalid("block " + std::to_string(index) + " of 2",
            [&](quire_error* e) { return quire_view_tensor(view.get(), index, &tensor, e); });
  }
  EXPECT_EQ(tensor.data, nullptr);
  tensor.size -= 1;
  Invalid("tensor->size",
          [&](quire_error* e) { return quire_view_tensor(view.get(), 0, &tensor, e); });
  DLManagedTensorVersioned* shared = nullptr;
  Invalid("block 2 of 2",
          [&](quire_error* e) { return quire_view_dlpack(view.get(), 2, &shared, e); });
  DLManagedTensor* legacy = nullptr;
  Invalid("block 2 of 2",
          [&](quire_error* e) { return quire_view_dlpack_legacy(view.get(), 2, &legacy, e); });
  EXPECT_EQ(shared, nullptr);
  EXPECT_EQ(legacy, nullptr);
}

}  // namespace
}  // namespace quire::embed
