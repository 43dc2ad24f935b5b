#include "apps/quire/runtime.h"

#include <gtest/gtest.h>

#include <numeric>

namespace quire::app {
namespace {

// What the program's engine opens is an owner until it ends, so a training run beside it would
// share its budget.
TEST(Runtime, WhatRunsIsAnInferenceOwner) {
  RuntimeFlags flags;
  flags.model = QUIRE_SOURCE_DIR "/models/tiny";
  flags.hot_bytes = "64MB";
  flags.threads = 1;
  const auto runtime = Runtime::Load(flags);
  ASSERT_TRUE(runtime.has_value()) << runtime.error().message;
  Registry& registry = (*runtime)->registry();
  EXPECT_EQ(registry.owner_count(), 0u);

  std::vector<TokenId> prompt(40);
  std::iota(prompt.begin(), prompt.end(), 1);
  const auto finish = [&](const serve::Response& response) {
    EXPECT_EQ(response.finish, serve::Finish::kLength) << response.error.message;
    EXPECT_EQ(response.tokens.size(), 3u);
  };
  uint64_t seen = 0;
  const serve::Request request{.prompt = prompt, .max_tokens = 3};
  const auto on_event = [&](size_t, const serve::Event& event) {
    if (std::holds_alternative<serve::NewToken>(event)) ++seen;
    if (seen > 0 && seen < 3) {
      EXPECT_EQ(registry.owner_count(), 1u);
      const auto owner = registry.Find(InferenceOwner{InferenceOwner::kFirstRequest});
      EXPECT_TRUE(owner != nullptr && owner->length() >= prompt.size());
    }
    return true;
  };
  finish(serve::RunAll((*runtime)->engine(), {request}, on_event)[0]);
  EXPECT_EQ(seen, 3u);
  EXPECT_EQ(registry.owner_count(), 0u);
  EXPECT_GT(registry.bytes_used(), 0u) << "what it published stays";
}

}  // namespace
}  // namespace quire::app
