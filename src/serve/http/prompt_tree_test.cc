#include "serve/http/prompt_tree.h"

#include <gtest/gtest.h>

#include <numeric>

namespace quire::serve::http {
namespace {

constexpr uint32_t kTreeBlock = 4;

std::vector<TokenId> Tokens(size_t count, TokenId first) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<TokenId> Join(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(PromptTree, BlocksOfTheSameRequestsAreOneEntry) {
  PromptTree tree(kTreeBlock);
  tree.Add(TenantId(1), Join(Tokens(12, 0), Tokens(9, 100)));
  tree.Add(TenantId(1), Join(Tokens(12, 0), Tokens(4, 200)));
  const OrderedJson json = tree.Json(std::nullopt);
  ASSERT_EQ(json.size(), 3u);
  EXPECT_EQ(json[0]["parent"], -1);
  EXPECT_EQ(json[0]["first_token"], 0);
  EXPECT_EQ(json[0]["tokens"], 12);
  EXPECT_EQ(json[0]["requests"], 2);
  uint64_t tails = 0;
  for (size_t i = 1; i < 3; ++i) {
    EXPECT_EQ(json[i]["parent"], 0);
    EXPECT_EQ(json[i]["first_token"], 12);
    EXPECT_EQ(json[i]["requests"], 1);
    tails += json[i]["tokens"].get<uint64_t>();
  }
  EXPECT_EQ(tails, 8u + 4u);
}

TEST(PromptTree, ATenantSeesItsOwn) {
  PromptTree tree(kTreeBlock);
  tree.Add(TenantId(1), Tokens(8, 0));
  tree.Add(TenantId(2), Tokens(8, 0));
  tree.Add(TenantId(2), Tokens(8, 0));
  EXPECT_EQ(tree.Json(std::nullopt).size(), 2u);
  ASSERT_EQ(tree.Json(TenantId(1)).size(), 1u);
  EXPECT_EQ(tree.Json(TenantId(1))[0]["requests"], 1);
  EXPECT_TRUE(tree.Json(TenantId(3)).empty());
}

TEST(PromptTree, TheOldestPromptsAreForgotten) {
  PromptTree tree(kTreeBlock);
  for (size_t i = 0; i < 3 * PromptTree::kPromptsMax; ++i) {
    tree.Add(TenantId(1), Tokens(8, static_cast<TokenId>(i * 100)));
    tree.Add(TenantId(2), Tokens(kTreeBlock - 1, 0));  // no whole block: nothing to remember
  }
  EXPECT_EQ(tree.Json(std::nullopt).size(), PromptTree::kPromptsMax);
  EXPECT_TRUE(tree.Json(TenantId(2)).empty());
}

}  // namespace
}  // namespace quire::serve::http
