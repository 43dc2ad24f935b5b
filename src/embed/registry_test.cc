// Registries and owners through C: training runs keep what they hold, inference gives way.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "embed/test_util.h"

namespace quire::embed {
namespace {

struct FreeOwners {
  void operator()(quire_registry* handle) const { quire_registry_free(handle); }
  void operator()(quire_owner* handle) const { quire_owner_free(handle); }
};
using OwnedRegistry = std::unique_ptr<quire_registry, FreeOwners>;
using OwnedOwner = std::unique_ptr<quire_owner, FreeOwners>;

class RegistryCTest : public testing::Test {
 protected:
  RegistryCTest() {
    quire_registry* made = nullptr;
    const quire_cache_options options = SmallOptions();
    QUIRE_CHECK_MSG(quire_registry_create(&options, &made, &error_) == QUIRE_OK, Show(error_));
    registry_.reset(made);
  }

  static quire_owner_options Named(const char* adapter, uint64_t id) {
    auto options = Sized<quire_owner_options>();
    options.adapter = adapter;
    options.id = id;
    return options;
  }

  OwnedOwner Make(const quire_owner_options& options, const std::vector<TokenId>& prompt = {}) {
    quire_owner* made = nullptr;
    EXPECT_EQ(quire_registry_owner(registry_.get(), &options, prompt.data(), prompt.size(), &made,
                                   &error_),
              QUIRE_OK)
        << Show(error_);
    return OwnedOwner(made);
  }

  quire_code Append(quire_owner& owner, uint32_t layer, const std::vector<TokenId>& tokens) {
    const std::vector<Stream>& streams = model_.GroupOf(layer).streams;
    const auto key = model_.Rows(tokens, 0, layer, streams[0]);
    const auto value = model_.Rows(tokens, 0, layer, streams[1]);
    const quire_rows key_rows = CWorld::Packed(key, streams[0]);
    const quire_rows value_rows = CWorld::Packed(value, streams[1]);
    return quire_owner_append(&owner, layer, &key_rows, &value_rows,
                              static_cast<uint32_t>(tokens.size()), &error_);
  }

  void Feed(quire_owner& owner, const std::vector<TokenId>& tokens) {
    for (uint32_t layer = 0; layer < 2; ++layer) {
      ASSERT_EQ(Append(owner, layer, tokens), QUIRE_OK) << Show(error_);
    }
    ASSERT_EQ(quire_owner_commit(&owner, tokens.data(), tokens.size(), &error_), QUIRE_OK)
        << Show(error_);
  }

  std::string Stats() {
    std::string text(1 << 16, ' ');
    size_t length = 0;
    EXPECT_EQ(
        quire_registry_stats_json(registry_.get(), text.data(), text.size(), &length, &error_),
        QUIRE_OK);
    text.resize(length);
    return text;
  }

  quire_error error_{};
  OwnedRegistry registry_;
  cache::FakeModel model_{cache::SmallGeometry()};
};

TEST_F(RegistryCTest, ATrainingRunKeepsItsValuesWhileInferenceGivesWay) {
  const auto tokens = cache::SomeTokens(40, 1);
  const OwnedOwner run = Make(Named("lora", 3));
  Feed(*run, tokens);
  const OwnedOwner asked = Make(Named(nullptr, 5));
  Feed(*asked, tokens);
  EXPECT_EQ(quire_owner_length(asked.get()), 40u);

  uint64_t used = 0;
  ASSERT_EQ(quire_registry_evict_to(registry_.get(), 0, &used, &error_), QUIRE_OK);
  EXPECT_GT(used, 0u);
  EXPECT_EQ(quire_owner_length(asked.get()), 0u);
  EXPECT_EQ(Append(*asked, 0, tokens), QUIRE_NOT_FOUND);
  EXPECT_NE(std::string(error_.message).find("inference 5"), std::string::npos) << error_.message;

  std::vector<float> out(40 * 2 * 4);
  ASSERT_EQ(quire_owner_gather(run.get(), 1, QUIRE_VALUE, 0, 40, out.data(), out.size(), &error_),
            QUIRE_OK)
      << Show(error_);
  const Stream& value = model_.GroupOf(1).streams[1];
  EXPECT_EQ(out, cache::FakeModel::HeadsFirst(model_.Rows(tokens, 0, 1, value), value));
  EXPECT_NE(Stats().find("training lora/3"), std::string::npos) << Stats();

  EXPECT_EQ(quire_registry_resize(registry_.get(), 2 << 20, &error_), QUIRE_TOO_LARGE);
  ASSERT_EQ(quire_owner_clear(run.get(), &error_), QUIRE_OK);
  EXPECT_EQ(quire_owner_length(run.get()), 0u);
  const quire_owner_options name = Named("lora", 3);
  int32_t released = 0;
  ASSERT_EQ(quire_registry_release(registry_.get(), &name, &released, &error_), QUIRE_OK);
  EXPECT_EQ(released, 1);
  ASSERT_EQ(quire_registry_release(registry_.get(), &name, &released, &error_), QUIRE_OK);
  EXPECT_EQ(released, 0);
  EXPECT_EQ(Stats().find("training"), std::string::npos) << Stats();
}

TEST_F(RegistryCTest, AnOwnerChoosesItsCodecAndItsCheckpointLayers) {
  const auto tokens = cache::SomeTokens(16, 1);
  const uint32_t checkpoint = 0;
  auto options = Named("lora", 1);
  options.checkpoint_layers = &checkpoint;
  options.checkpoint_count = 1;
  options.codec = QUIRE_F32;
  const OwnedOwner half = Make(options);
  EXPECT_EQ(Append(*half, 0, tokens), QUIRE_INVALID_ARGUMENT);
  ASSERT_EQ(Append(*half, 1, tokens), QUIRE_OK) << Show(error_);
  ASSERT_EQ(quire_owner_commit(half.get(), tokens.data(), tokens.size(), &error_), QUIRE_OK);
  quire_owner* made = nullptr;
  options.id = 2;
  options.codec = static_cast<quire_codec>(99);  // perhaps of a newer library
  EXPECT_EQ(quire_registry_owner(registry_.get(), &options, nullptr, 0, &made, &error_),
            QUIRE_UNSUPPORTED);
  options.codec = static_cast<quire_codec>(-1);
  EXPECT_EQ(quire_registry_owner(registry_.get(), &options, nullptr, 0, &made, &error_),
            QUIRE_INVALID_ARGUMENT);
  options = Named("lora", 2);
  options.checkpoint_count = 1;
  EXPECT_EQ(quire_registry_owner(registry_.get(), &options, nullptr, 0, &made, &error_),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(made, nullptr);
}

TEST_F(RegistryCTest, AnInferenceOwnerStartsWithWhatAnotherPublished) {
  const auto prompt = cache::SomeTokens(50, 1);
  const quire_identity identity = SomeIdentityC();
  auto options = Named(nullptr, 1);
  options.identity = &identity;
  {
    const OwnedOwner first = Make(options);
    Feed(*first, prompt);
  }
  options.id = 2;
  EXPECT_EQ(quire_owner_length(Make(options, prompt).get()), 48u);
}

TEST_F(RegistryCTest, AViewOutlivesItsOwner) {
  const auto tokens = cache::SomeTokens(40, 1);
  OwnedOwner run = Make(Named("lora", 1));
  Feed(*run, tokens);
  quire_view* made = nullptr;
  ASSERT_EQ(quire_owner_view_open(run.get(), 1, QUIRE_VALUE, &made, &error_), QUIRE_OK)
      << Show(error_);
  const Owned<quire_view> view(made);
  run.reset();
  registry_.reset();
  EXPECT_EQ(quire_view_tokens(view.get()), 40u);
  auto tensor = Sized<quire_tensor>();
  ASSERT_EQ(quire_view_tensor(view.get(), 1, &tensor, &error_), QUIRE_OK) << Show(error_);
  EXPECT_EQ(tensor.shape[1], 16);
}

TEST_F(RegistryCTest, AttentionReadsAnOwnerAsItReadsASequence) {
  constexpr uint32_t kRows = 20, kHeads = 6;
  const auto tokens = cache::SomeTokens(600 + kRows, 1);
  const CWorld world;
  const auto sequence = world.Run(tokens);
  const OwnedOwner run = Make(Named("lora", 1));
  Feed(*run, tokens);
  auto options = Sized<quire_attention_options>();
  const auto attention = MustMake<quire_attention>([&](quire_attention** out, quire_error* error) {
    return quire_attention_create(&options, out, error);
  });
  std::vector<float> queries(kRows * kHeads * 4), expected(queries.size());
  for (size_t i = 0; i < queries.size(); ++i) queries[i] = static_cast<float>(i % 17) / 8 - 1;
  std::vector<float> out(queries.size(), -1.0f);
  quire_attend_task task{.sequence = sequence.get(),
                         .queries = queries.data(),
                         .out = expected.data(),
                         .rows = kRows,
                         .first_position = 600};
  auto request = Sized<quire_attend_request>();
  request.layer = 1;
  request.query_heads = kHeads;
  request.tasks = &task;
  request.task_count = 1;
  ASSERT_EQ(quire_attend(attention.get(), &request, &error_), QUIRE_OK) << Show(error_);

  const auto attend = [&] {
    return quire_owner_attend(attention.get(), run.get(), &request, &error_);
  };
  EXPECT_EQ(attend(), QUIRE_INVALID_ARGUMENT);  // a sequence is named
  task.sequence = nullptr;
  task.out = out.data();
  ASSERT_EQ(attend(), QUIRE_OK) << Show(error_);
  EXPECT_EQ(out, expected);
  task.first_position = 601;
  EXPECT_EQ(attend(), QUIRE_INVALID_ARGUMENT);
  task.first_position = 600;
  request.layer = 2;
  EXPECT_EQ(attend(), QUIRE_INVALID_ARGUMENT);
  request.layer = 1;
  const quire_owner_options name = Named("lora", 1);
  int32_t released = 0;
  ASSERT_EQ(quire_registry_release(registry_.get(), &name, &released, &error_), QUIRE_OK);
  EXPECT_EQ(attend(), QUIRE_NOT_FOUND);
  EXPECT_EQ(quire_owner_attend(nullptr, run.get(), &request, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_owner_attend(attention.get(), nullptr, &request, &error_),
            QUIRE_INVALID_ARGUMENT);
}

TEST_F(RegistryCTest, TheRegistryEndsWithItsLastOwnersHandle) {
  const OwnedOwner run = Make(Named("lora", 1));
  registry_.reset();
  Feed(*run, cache::SomeTokens(8, 1));
  EXPECT_EQ(quire_owner_length(run.get()), 8u);
}

TEST_F(RegistryCTest, WhatIsNoRegistryIsRefused) {
  quire_registry* made = nullptr;
  quire_owner* owner = nullptr;
  quire_cache_options options = SmallOptions();
  options.codec_fallback = 1;
  EXPECT_EQ(quire_registry_create(&options, &made, &error_), QUIRE_UNSUPPORTED);
  options = SmallOptions();
  EXPECT_EQ(quire_registry_create(&options, nullptr, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_registry_create(nullptr, &made, &error_), QUIRE_INVALID_ARGUMENT);
  const quire_owner_options name = Named("lora", 1);
  EXPECT_EQ(quire_registry_owner(nullptr, &name, nullptr, 0, &owner, &error_),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_registry_owner(registry_.get(), nullptr, nullptr, 0, &owner, &error_),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_registry_owner(registry_.get(), &name, nullptr, 5, &owner, &error_),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_owner_length(nullptr), 0u);
  EXPECT_EQ(quire_owner_clear(nullptr, &error_), QUIRE_INVALID_ARGUMENT);
  quire_view* view = nullptr;
  EXPECT_EQ(quire_owner_view_open(nullptr, 0, QUIRE_KEY, &view, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_owner_commit(nullptr, nullptr, 0, &error_), QUIRE_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace quire::embed
