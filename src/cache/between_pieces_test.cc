// What other threads do between two pieces of a verb on a long path: the verb does all of it or
// nothing, and does nothing to blocks that took the place of evicted ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "cache/core.h"
#include "cache/meanwhile_test_util.h"
#include "cache/test_util.h"
#include "env/clock.h"
#include "quire/sequence.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kPathBlocks = 400;  // more than one hold goes over
constexpr uint64_t kBetweenPiecesSlots = 1000;

class BetweenPieces : public testing::Test {
 protected:
  AcquireRequest Request(std::span<const TokenId> tokens, TenantId tenant = kDefaultTenant) const {
    return {.tenant = tenant, .identity = &cache_.identity, .tokens = tokens};
  }
  void Run(std::span<const TokenId> tokens, TenantId tenant) {
    const auto sequence =
        Must(cache_.cache->Open(Must(cache_.cache->Acquire(Request(tokens, tenant))), {}));
    Must(cache_.model.Feed(*sequence, tokens));
  }
  uint64_t EvictAll() { return cache_.cache->Evict(UINT64_MAX); }
  CacheStats stats() const { return cache_.cache->stats(); }
  uint64_t pinned_bytes(TenantId tenant = kDefaultTenant) const {
    return Must(cache_.cache->tenant_stats(tenant)).pinned_bytes;
  }
  /// Caches blocks of another prompt without leases, in any free slots.
  void CacheOthers(uint64_t blocks = kPathBlocks) {
    cache_.Run(SomeTokens(blocks * kBlock, 2)).reset();
  }
  void ExpectOthers(uint64_t blocks = kPathBlocks) {
    EXPECT_EQ(cache_.Resident(Join(SomeTokens(blocks * kBlock, 2), SomeTokens(1, 3))),
              blocks * kBlock);
  }
  /// Everything can be evicted: nothing is held or pinned, and nothing is lost.
  void ExpectAllCanGo() {
    EXPECT_EQ(stats().pinned_blocks, 0u);
    static_cast<const Core&>(*cache_.cache).CheckDirectory();
    EvictAll();
    EXPECT_EQ(stats().published_blocks, 0u);
    EXPECT_EQ(stats().hot_bytes_used, 0u);
  }
  /// Damages one block of the path, which has no lease.
  void Damage(uint64_t block) {
    const auto hit = cache_.Open(longer_);
    ASSERT_GT(hit->length(), block * kBlock);
    FlipBit(*hit, block);
  }
  void ExpectNotFound(const auto& result, const std::string& what = "") {
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code, ErrorCode::kNotFound);
    EXPECT_THAT(result.error().message, HasSubstr(what));
  }

  ManualClock clock_{1000};
  TestCache cache_{kBetweenPiecesSlots,
                   SmallGeometry(),
                   NumericProfile::Uniform(Codec::kF16),
                   0,
                   {.clock = &clock_}};
  const std::vector<TokenId> path_ = SomeTokens(kPathBlocks * kBlock, 1);
  const std::vector<TokenId> longer_ = Join(path_, SomeTokens(1, 4));
};

TEST_F(BetweenPieces, APinIsUndoneIfTheRestOfItsPathIsEvicted) {
  cache_.Run(path_).reset();
  {
    const Meanwhile evicted("pin: before blocks are pinned", [&] { EvictAll(); }, 3);
    ExpectNotFound(cache_.cache->Pin(Request(path_), 0), "48 of 400 blocks");
  }
  EXPECT_EQ(stats().published_blocks, 48u) << "what was pinned by then";
  EXPECT_EQ(pinned_bytes(), 0u);
  ExpectAllCanGo();
}

// Their ids are those of the path's last blocks.
TEST_F(BetweenPieces, APinPinsNothingThatCameInThePlaceOfItsBlocks) {
  cache_.Run(path_).reset();
  {
    const Meanwhile reused(
        "pin: before blocks are pinned",
        [&] {
          EvictAll();
          CacheOthers();
        },
        2);
    ExpectNotFound(cache_.cache->Pin(Request(path_), 0), "24 of 400 blocks");
  }
  ExpectOthers();
  EXPECT_EQ(pinned_bytes(), 0u);
  ExpectAllCanGo();
}

TEST_F(BetweenPieces, APinStandsThoughItsBlocksGoAndComeBack) {
  cache_.Run(path_).reset();
  {
    const Meanwhile back(
        "pin: before blocks are pinned",
        [&] {
          EvictAll();
          CacheOthers();
          cache_.Run(path_).reset();
        },
        2);
    EXPECT_EQ(Must(cache_.cache->Pin(Request(path_), 0)), kPathBlocks);
  }
  EXPECT_EQ(stats().pinned_blocks, kPathBlocks);
  EXPECT_EQ(pinned_bytes(), kPathBlocks * cache_.charge_bytes);
  EvictAll();
  EXPECT_EQ(cache_.Resident(longer_), kPathBlocks * kBlock);
  Must(cache_.cache->Unpin(Request(path_)));
  ExpectAllCanGo();
}

TEST_F(BetweenPieces, APinIsUndoneIfItsTenantIsErased) {
  const TenantId tenant = Must(cache_.cache->AddTenant({.name = "a"}));
  for (const std::string_view point :
       {"pin: before blocks are pinned", "pin: all blocks are pinned"}) {
    SCOPED_TRACE(point);
    Run(path_, tenant);
    {
      const Meanwhile erased(std::string(point), [&] {
        EXPECT_EQ(Must(cache_.cache->Erase(tenant)).blocks, kPathBlocks);
      });
      ExpectNotFound(cache_.cache->Pin(Request(path_, tenant), 0));
    }
    EXPECT_EQ(pinned_bytes(tenant), 0u);
    EXPECT_EQ(stats().published_blocks, 0u);
    EXPECT_EQ(Must(cache_.cache->tenant_stats(tenant)).erase_pending_slots, 0u);
  }
  ExpectAllCanGo();
}

TEST_F(BetweenPieces, ATenantThatIsRemovedWhileItPins) {
  const TenantId tenant = Must(cache_.cache->AddTenant({.name = "a"}));
  Run(path_, tenant);
  {
    const Meanwhile busy(
        "pin: before blocks are pinned",
        [&] {
          const auto removed = cache_.cache->RemoveTenant(tenant);
          ASSERT_FALSE(removed.has_value()) << "the pin has its first blocks";
          EXPECT_EQ(removed.error().code, ErrorCode::kBusy);
        },
        2);
    ExpectNotFound(cache_.cache->Pin(Request(path_, tenant), 0));
  }
  EXPECT_EQ(Must(cache_.cache->tenant_stats(tenant)).bytes_used, 0u);
  Run(path_, tenant);
  {
    const Meanwhile removed("pin: before blocks are pinned",
                            [&] { Must(cache_.cache->RemoveTenant(tenant)); });
    ExpectNotFound(cache_.cache->Pin(Request(path_, tenant), 0));
  }
  EXPECT_FALSE(cache_.cache->FindTenant("a").has_value());
  ExpectAllCanGo();
}

TEST_F(BetweenPieces, APinIsUndoneIfItsPathIsFoundDamaged) {
  for (const std::string_view point :
       {"pin: before blocks are pinned", "pin: all blocks are pinned"}) {
    SCOPED_TRACE(point);
    cache_.Run(path_).reset();
    Damage(5);
    {
      const Meanwhile found(std::string(point),
                            [&] { EXPECT_EQ(cache_.cache->Verify().damaged, 1u); });
      ExpectNotFound(cache_.cache->Pin(Request(path_), 0), "5 of 400 blocks");
    }
    EXPECT_EQ(stats().published_blocks, 5u);
    EXPECT_EQ(pinned_bytes(), 0u);
  }
  ExpectAllCanGo();
}

// Pins of other calls on the path stay, and are paid for once.
TEST_F(BetweenPieces, APinThatIsUndoneInTheMiddleOfAPieceLeavesOthersPins) {
  cache_.Run(path_).reset();
  const auto stem = std::span(path_).first(20 * kBlock);
  Must(cache_.cache->Pin(Request(stem), 0));
  {
    const Meanwhile evicted("pin: before blocks are pinned", [&] { EvictAll(); });
    ExpectNotFound(cache_.cache->Pin(Request(path_), 0), "20 of 400 blocks");
  }
  EXPECT_EQ(stats().pinned_blocks, 20u);
  EXPECT_EQ(pinned_bytes(), 20 * cache_.charge_bytes);
  EvictAll();
  EXPECT_EQ(cache_.Resident(longer_), 20u * kBlock);
  Must(cache_.cache->Unpin(Request(stem)));
  ExpectAllCanGo();
}

TEST_F(BetweenPieces, AnUnpinLooksAgainForItsPin) {
  cache_.Run(path_).reset();
  Must(cache_.cache->Pin(Request(path_), 0));
  {
    const Meanwhile reused("unpin: its path was found", [&] {
      Must(cache_.cache->Unpin(Request(path_)));
      EvictAll();
      CacheOthers();
      Must(cache_.cache->Pin(Request(SomeTokens(kPathBlocks * kBlock, 2)), 0));
    });
    ExpectNotFound(cache_.cache->Unpin(Request(path_)), "no pin");
  }
  EXPECT_EQ(stats().pinned_blocks, kPathBlocks) << "the others'";
  Must(cache_.cache->Unpin(Request(SomeTokens(kPathBlocks * kBlock, 2))));
  ExpectAllCanGo();
}

// Blocks that were unpinned are evicted at once, the others stay; and a new pin of the same path is
// kept.
TEST_F(BetweenPieces, APathThatIsUnpinnedIsEvictedOrPinnedAgain) {
  for (const bool again : {false, true}) {
    cache_.Run(path_).reset();
    Must(cache_.cache->Pin(Request(path_), 0));
    {
      const Meanwhile half(
          "settle: before more is done",
          [&] {
            const uint64_t pinned = stats().pinned_blocks;
            EXPECT_GT(pinned, 0u);
            EXPECT_LT(pinned, kPathBlocks);
            if (again) {
              Must(cache_.cache->Pin(Request(path_), 0));
              EXPECT_EQ(EvictAll(), 0u);
            } else {
              EXPECT_EQ(EvictAll(), kPathBlocks);
            }
          },
          3);
      Must(cache_.cache->Unpin(Request(path_)));
    }
    EXPECT_EQ(stats().pinned_blocks, again ? kPathBlocks : 0);
    EXPECT_EQ(pinned_bytes(), stats().pinned_blocks * cache_.charge_bytes);
  }
  Must(cache_.cache->Unpin(Request(path_)));
  ExpectAllCanGo();
}

// While the descendants of a damaged block are being marked, none of them is found, and nothing is
// published after it.
TEST_F(BetweenPieces, NothingAfterADamagedBlockIsFoundOrPublishedWhileItIsMarked) {
  for (const bool publish : {false, true}) {
    cache_.Run(path_).reset();
    Damage(5);
    const auto more = Join(path_, SomeTokens(2 * kBlock, 5));
    auto writer = cache_.Open(Join(path_, SomeTokens(1, 5)));
    ASSERT_EQ(writer->length(), kPathBlocks * kBlock);
    for (const uint32_t layer : {0, 1}) Must(cache_.model.AppendLayer(*writer, layer, more));
    {
      const Meanwhile marking(
          "settle: before more is done",
          [&] {
            if (publish) {
              Must(writer->Commit(SomeTokens(2 * kBlock, 5)));
            } else {
              EXPECT_EQ(cache_.Resident(longer_), 5u * kBlock);
            }
          },
          2);
      EXPECT_EQ(cache_.cache->Verify().damaged, 1u);
    }
    EXPECT_EQ(stats().published_blocks, kPathBlocks) << "they are held";
    EXPECT_EQ(cache_.Resident(Join(more, SomeTokens(1, 6))), 5u * kBlock);
    writer.reset();
    EXPECT_EQ(stats().published_blocks, 5u);
  }
  ExpectAllCanGo();
}

// The block to be marked next is evicted, and another block takes its slot and its id.
TEST_F(BetweenPieces, ABlockTakenOutOfUseMayGoMeanwhile) {
  constexpr uint64_t kFew = 150;
  const TenantId tenant = Must(cache_.cache->AddTenant({.name = "a"}));
  for (const bool erase : {false, true}) {
    Run(std::span(path_).first(kFew * kBlock), erase ? tenant : kDefaultTenant);
    if (!erase) Damage(0);
    {
      const Meanwhile gone("settle: before more is done", [&] {
        EXPECT_EQ(stats().published_blocks, kFew);
        EvictAll();
        CacheOthers(kFew);
      });
      if (erase) {
        Must(cache_.cache->Erase(tenant));
      } else {
        EXPECT_EQ(cache_.cache->Verify().damaged, 1u);
      }
    }
    ExpectOthers(kFew);
    EvictAll();
    EXPECT_EQ(stats().published_blocks, 0u);
  }
  ExpectAllCanGo();
}

TEST_F(BetweenPieces, AViewHoldsAllOfItsSlotsOrNone) {
  auto sequence = cache_.Run(path_);
  const UnleasedView view = Must(sequence->View(0, StreamRole::kKey)).Unleased();
  sequence.reset();
  {
    const Meanwhile evicted("view: some slots are held", [&] { EvictAll(); }, 2);
    ExpectNotFound(view.Pin());
  }
  EXPECT_EQ(stats().published_blocks, 2u * kBlocksPerHold) << "what was held by then";
  ExpectAllCanGo();
}

// It has the last two blocks; those before them are leased first.
TEST_F(BetweenPieces, AViewWhoseBlocksGoWhileItsPathIsLeased) {
  auto sequence = cache_.Run(path_);
  const UnleasedView view =
      Must(sequence->View(0, StreamRole::kKey,
                          {.begin = (kPathBlocks - 2) * kBlock, .end = kPathBlocks * kBlock}))
          .Unleased();
  sequence.reset();
  {
    const Meanwhile reused(
        "view: some slots are held",
        [&] {
          EXPECT_EQ(EvictAll(), kPathBlocks - 3 * kBlocksPerHold);
          CacheOthers();
        },
        3);
    ExpectNotFound(view.Pin());
  }
  ExpectOthers();
  ExpectAllCanGo();
}

TEST_F(BetweenPieces, AShrinkIsRefusedIfItsBlocksAreUsedMeanwhile) {
  cache_.Run(path_).reset();
  CacheOthers();
  std::unique_ptr<Sequence> used;
  {
    const Meanwhile opened(
        "resize: before more is evicted",
        [&] {
          EXPECT_EQ(stats().published_blocks, 2 * kPathBlocks - 2 * kBlocksPerHold);
          used = cache_.Open(Join(SomeTokens(kPathBlocks * kBlock, 2), SomeTokens(1, 3)));
          ASSERT_EQ(used->length(), kPathBlocks * kBlock);
        },
        2);
    const auto shrunk = cache_.cache->Resize(cache_.BytesFor(kPathBlocks / 2));
    ASSERT_FALSE(shrunk.has_value());
    EXPECT_EQ(shrunk.error().code, ErrorCode::kBusy);
  }
  EXPECT_EQ(stats().sealed.slots_max, kBetweenPiecesSlots);
  EXPECT_EQ(cache_.model.Differs(*used, SomeTokens(kPathBlocks * kBlock, 2)), "");
  used.reset();
  Must(cache_.cache->Resize(cache_.BytesFor(kPathBlocks / 2)));
  ExpectAllCanGo();
}

// A request takes room that the shrink has freed: the shrink checks again how much must be evicted.
TEST_F(BetweenPieces, AShrinkGoesOnIfOthersTakeSomeOfItsRoom) {
  cache_.Run(path_).reset();
  CacheOthers();
  {
    const Meanwhile taken(
        "resize: before more is evicted", [&] { cache_.Run(SomeTokens(300 * kBlock, 8)).reset(); },
        5);
    Must(cache_.cache->Resize(cache_.BytesFor(kPathBlocks / 2)));
  }
  EXPECT_LE(stats().sealed.slots_used, kPathBlocks / 2);
  EXPECT_EQ(stats().sealed.slots_max, kPathBlocks / 2);
  EXPECT_EQ(cache_.cache->Verify().damaged, 0u);
  ExpectAllCanGo();
}

// A slot beyond the new end that a request took meanwhile is given back when it is free.
TEST_F(BetweenPieces, AShrinkLeavesSlotsTakenBeyondItsEndMeanwhile) {
  cache_.Run(path_).reset();
  std::unique_ptr<Sequence> taken;
  {
    const Meanwhile opened("resize: before more is evicted", [&] {
      taken = cache_.Run(SomeTokens(20 * kBlock, 8), {.publish = false});
    });
    Must(cache_.cache->Resize(cache_.BytesFor(kPathBlocks / 2)));
  }
  EXPECT_EQ(stats().sealed.slots_max, kPathBlocks / 2);
  EXPECT_EQ(cache_.model.Differs(*taken, SomeTokens(20 * kBlock, 8)), "");
  taken.reset();
  cache_.cache->Trim();
  Must(cache_.cache->Resize(cache_.BytesFor(kBetweenPiecesSlots)));
  ExpectAllCanGo();
}

TEST_F(BetweenPieces, TheSearchUnderOtherRootsToleratesEvictions) {
  for (const bool reused : {false, true}) {
    cache_.identity.adapter_version = 1;
    cache_.Run(path_).reset();
    cache_.identity.adapter_version = 2;
    const Meanwhile gone("acquire: before other roots are searched", [&] {
      EvictAll();
      if (reused) CacheOthers();
    });
    const Plan plan = cache_.Acquire(longer_);
    EXPECT_EQ(plan.reason(), MissReason::kOtherProfile) << "as far as it was found";
    EXPECT_GT(plan.missing().front().tokens, 48u * kBlock);
    EXPECT_LT(plan.missing().front().tokens, kPathBlocks * kBlock);
  }
  ExpectAllCanGo();
}

// The other members of a domain must not learn of a member's blocks as soon as its erasure has
// begun.
TEST_F(BetweenPieces, ErasedBlocksAreNotFoundUnderOtherRoots) {
  Must(cache_.cache->AddTenant({.name = "house", .shared = true}));
  const TenantId stays = Must(cache_.cache->AddTenant({.name = "a", .domain = "house"}));
  const TenantId goes = Must(cache_.cache->AddTenant({.name = "b", .domain = "house"}));
  Run(SomeTokens(kPathBlocks * kBlock, 2), stays);  // searched before the blocks that are erased
  Run(path_, goes);
  cache_.identity.adapter_version = 2;
  EXPECT_EQ(Must(cache_.cache->Acquire(Request(longer_, stays))).reason(),
            MissReason::kOtherProfile);
  const Meanwhile erasing("erase: before more is marked", [&] {
    EXPECT_EQ(stats().published_blocks, 2 * kPathBlocks);
    EXPECT_EQ(Must(cache_.cache->Acquire(Request(longer_, stays))).reason(),
              MissReason::kNeverSeen);
  });
  EXPECT_EQ(Must(cache_.cache->Erase(goes)).blocks, kPathBlocks);
}

}  // namespace
}  // namespace quire::cache
