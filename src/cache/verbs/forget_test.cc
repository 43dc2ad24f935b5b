// Prompts do not stay on the heap: memory that the cache frees was overwritten where tokens were.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>

#include "base/wiped_vector.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

constexpr TokenId kPlanted = 0x5EC2E7;  // nothing else holds four of these in a row
std::atomic<uint64_t> forgotten_found = 0;

// Looks at the whole block of memory that is freed.
void LookAt(const void* memory) {
  if (memory == nullptr) return;
  const auto* words = static_cast<const TokenId*>(memory);
  const size_t count = malloc_usable_size(const_cast<void*>(memory)) / sizeof(*words);
  uint64_t in_a_row = 0;
  for (size_t i = 0; i < count; ++i) {
    in_a_row = words[i] == kPlanted ? in_a_row + 1 : 0;
    if (in_a_row < 4) continue;
    ++forgotten_found;
    return;
  }
}

// Sanitizers have an allocator of their own that does not show freed memory.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QUIRE_SKIP_FORGET_TEST GTEST_SKIP() << "under a sanitizer freed memory is not shown"
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define QUIRE_SKIP_FORGET_TEST GTEST_SKIP() << "under a sanitizer freed memory is not shown"
#endif
#endif
#ifndef QUIRE_SKIP_FORGET_TEST
#define QUIRE_SKIP_FORGET_TEST
#endif

TEST(Forget, FreedMemoryHoldsNoPrompt) {
  QUIRE_SKIP_FORGET_TEST;
  TestCache cache(60);
  // Kept to the end: these tokens belong to the caller.
  const std::vector<TokenId> secret(20 * kBlock + 5, kPlanted);
  const std::vector<TokenId> longer(30 * kBlock, kPlanted);
  const auto other = Join(std::vector<TokenId>(3 * kBlock, kPlanted), SomeTokens(4 * kBlock, 7));
  forgotten_found = 0;
  look_at_freed_memory = &LookAt;
  {
    const auto sequence = cache.Open(secret, {.reserve_tokens = longer.size()});
    for (uint64_t end = 7; end < longer.size(); end += 37) {
      Must(cache.model.Feed(*sequence, std::span(longer).first(end)));
    }
    const auto fork = Must(sequence->Fork());
    Must(fork->Rollback(10 * kBlock + 3));
    Must(cache.model.Feed(*fork, std::span(longer).first(12 * kBlock)));
    cache.Run(other).reset();  // parts from the path: its node is split
    cache.Acquire(longer);     // a plan that is never opened
    sequence->Reset();
  }
  while (cache.cache->Evict(1) > 0) {
  }
  EXPECT_EQ(cache.cache->stats().published_blocks, 0u);
  look_at_freed_memory = nullptr;
  EXPECT_EQ(forgotten_found, 0u);
}

TEST(Forget, TheTestFindsWhatIsLeft) {
  QUIRE_SKIP_FORGET_TEST;
  look_at_freed_memory = &LookAt;
  forgotten_found = 0;
  {
    const std::vector<TokenId> left(100, kPlanted);
  }
  look_at_freed_memory = nullptr;
  EXPECT_EQ(forgotten_found, 1u);
}

}  // namespace
}  // namespace quire::cache
