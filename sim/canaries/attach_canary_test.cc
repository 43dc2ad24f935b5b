// A load that is attached though its tokens were erased meanwhile. The simulators rarely reach this
// case: a load from the end has brought some blocks, another member of the domain is erased, and
// then the beginning of the prompt is computed.
#include <gtest/gtest.h>

#include "base/canary.h"
#include "cache/below/test_store.h"

namespace quire::cache {
namespace {

class AttachCanary : public testing::Test {
 protected:
  void TearDown() override { planted_canary = Canary::kNone; }

  /// How many erased blocks are in use again.
  uint64_t LoadedAfterAnErasure() {
    constexpr uint64_t kBlocks = 12;
    const std::vector<TokenId> prompt = SomeTokens(kBlocks * kBlock + 5, 1);
    TestStore store;
    CacheOptions more;
    more.store = store.store.get();
    more.clock = &store.clock;
    TestCache test(64, SmallGeometry(), NumericProfile::Uniform(Codec::kF16), 0, more);
    Must(test.cache->AddTenant({.name = "team", .shared = true}));
    const TenantId a = Must(test.cache->AddTenant({.name = "a", .domain = "team"}));
    const TenantId b = Must(test.cache->AddTenant({.name = "b", .domain = "team"}));
    const auto acquire = [&](TenantId tenant) {
      return Must(
          test.cache->Acquire({.tenant = tenant, .identity = &test.identity, .tokens = prompt}));
    };
    Must(test.model.Feed(*Must(test.cache->Open(acquire(a), {})), prompt));
    store.Turn();
    while (test.cache->Evict(100) > 0) {
    }
    Ticket ticket = Must(test.cache->Load(acquire(b), {.order = LoadOrder::kFromEnd}));
    auto front = Must(test.cache->Open(ticket.Front(1), {.on_full = OnFull::kHalt}));
    while (ticket.progress().meet_tokens == kBlocks * kBlock) {
      store.transfers->Tick(0);
      store.clock.Advance(1);
    }
    const uint64_t meet = ticket.progress().meet_tokens;
    Must(test.cache->Erase(a));
    Must(test.model.Feed(*front, std::span(prompt).first(meet)));
    ticket.Meet(meet);
    store.Turn();
    static_cast<void>(ticket.Take());
    return test.cache->stats().loaded_total;
  }
};

TEST_F(AttachCanary, NothingIsAttachedAfterAnErasure) { EXPECT_EQ(LoadedAfterAnErasure(), 0); }

TEST_F(AttachCanary, IsFound) {
  planted_canary = Canary::kAttachErased;
  EXPECT_GT(LoadedAfterAnErasure(), 0);
}

}  // namespace
}  // namespace quire::cache
