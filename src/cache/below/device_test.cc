// Blocks of a device that is late, on their way to the store and back; and a device that fails on
// the way: what waits for it is told its name, nothing damaged is published, nothing leaks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/sync_point.h"
#include "cache/below/store_state.h"
#include "cache/test_util.h"
#include "env/clock.h"
#include "env/faulty_files.h"
#include "env/pinned_memory.h"
#include "quire/disk_store.h"
#include "tier/cold.h"
#include "tier/warm.h"

namespace quire::cache {
namespace {

using ::testing::HasSubstr;

/// The operations of a device that has pinned memory.
class PinnedOps final : public BlockOps {
 public:
  PinnedOps(BlockOps& ops, PinnedMemory& allocator) : ops_(ops), allocator_(allocator) {}

  void WriteRows(const StreamLayout& stream, const RowsView& rows, uint32_t row_begin,
                 TokensInBlock at, std::byte* slot) override {
    ops_.WriteRows(stream, rows, row_begin, at, slot);
  }
  void Encode(const StreamLayout& open, const std::byte* open_slot, const StreamLayout& sealed,
              std::byte* sealed_slot) override {
    ops_.Encode(open, open_slot, sealed, sealed_slot);
  }
  void Checksum(const std::byte* slot, const SlotPieces& pieces, uint32_t* crc) override {
    ops_.Checksum(slot, pieces, crc);
  }
  void Zero(std::byte* slot, const SlotPieces& pieces) override { ops_.Zero(slot, pieces); }
  void Copy(const std::byte* from, std::byte* to, const SlotPieces& pieces) override {
    ops_.Copy(from, to, pieces);
  }
  void CopyOut(const std::byte* slot, const SlotPieces& pieces,
               std::span<const SlotSection> sections) override {
    ++copies_out;
    for (const SlotSection& section : sections) unpinned += allocator_.Has(section.host) ? 0 : 1;
    ops_.CopyOut(slot, pieces, sections);
  }
  void CopyIn(std::span<const SlotSection> sections, const SlotPieces& pieces,
              std::byte* slot) override {
    if (copies_in_++ != bad_copy) return ops_.CopyIn(sections, pieces, slot);
    std::vector<SlotSection> bad(sections.begin(), sections.end());
    wrong.assign(sections[0].host, sections[0].host + sections[0].bytes);
    wrong.back() ^= std::byte{64};
    bad[0].host = wrong.data();
    ops_.CopyIn(bad, pieces, slot);
  }
  void ReadRows(const StreamLayout& stream, const std::byte* slot, TokensInBlock at, float* out,
                int64_t out_head_stride) override {
    ops_.ReadRows(stream, slot, at, out, out_head_stride);
  }
  std::unique_ptr<Fence> Record() override { return ops_.Record(); }
  std::unique_ptr<Fence> RecordCopies(CopyWay way) override { return ops_.RecordCopies(way); }
  Result<void> outcome() const override { return ops_.outcome(); }
  HostAllocator* host_allocator() override { return &allocator_; }

  // Bytes change on their way into a slot, with this copy of all.
  uint64_t bad_copy = UINT64_MAX;
  std::vector<std::byte> wrong{};
  uint64_t copies_out = 0;  // that were asked for
  uint64_t unpinned = 0;    // sections of them that go to ordinary memory

 private:
  BlockOps& ops_;
  PinnedMemory& allocator_;
  uint64_t copies_in_ = 0;
};

/// A cache on a device of its own, with a warm tier that the test turns.
struct OnDevice {
  explicit OnDevice(uint64_t seed, Codec codec = Codec::kF16,
                    std::unique_ptr<tier::Store> disk = nullptr, const Clock& clock = SystemClock(),
                    uint64_t warm_bytes = 8 << 20)
      : ops(memory, seed), pinned(ops, host) {
    auto below = std::make_unique<tier::WarmStore>(
        tier::WarmOptions{.bytes_cap = warm_bytes, .allocator = &host}, clock, std::move(disk));
    warm = below.get();
    store = StoreState::Wrap(std::make_unique<transfer::Transfers>(std::move(below), clock));
    NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
    for (CodecRule& rule : profile.codecs) rule.codec = codec;
    cache = Must(Cache::Create({.geometry = model.geometry(),
                                .profile = profile,
                                .hot_bytes = 2 << 20,
                                .memory = &memory,
                                .ops = &pinned,
                                .store = store.get()}));
  }

  Plan Acquire(std::span<const TokenId> prompt) {
    return Must(cache->Acquire({.identity = &identity, .tokens = prompt}));
  }
  void EvictAll() {
    while (cache->Evict(100) > 0) {
    }
  }
  /// Of a block of a prompt.
  Digest KeyOf(std::span<const TokenId> prompt, uint64_t block) const {
    Digest key = RootKey(identity, cache->options().geometry, cache->options().profile);
    for (uint64_t i = 0; i <= block; ++i) {
      key = ChildKey(identity.domain, key, prompt.subspan(i * kBlock).data(), kBlock);
    }
    return key;
  }

  ProtectedMemory memory;
  DelayedOps ops;
  PinnedMemory host;
  PinnedOps pinned;
  const FakeModel model{Geometry::Uniform(2, 2, 32)};
  const Identity identity = SomeIdentity();
  tier::WarmStore* warm = nullptr;  // of the store
  std::unique_ptr<DiskStore> store;
  std::unique_ptr<Cache> cache;
};

TEST(CacheOnDevice, BlocksComeBackFromTheWarmTierWhateverTheOrder) {
  for (const Codec codec : {Codec::kF16, Codec::kInt8}) {
    for (uint64_t seed = 0; seed < 25; ++seed) {
      OnDevice on(seed, codec);
      const auto prompt = SomeTokens(30 * kBlock + 3, seed);
      const auto read = [&](const Sequence& sequence) {
        std::vector<float> out(prompt.size() * 2 * 32);
        Must(sequence.Gather(1, StreamRole::kValue, 0, prompt.size(), out));
        return out;
      };
      auto sequence = Must(on.cache->Open(on.Acquire(prompt), {}));
      Must(on.model.Feed(*sequence, prompt));
      const std::vector<float> written = read(*sequence);
      sequence.reset();
      Must(on.store->Flush());
      on.EvictAll();
      ASSERT_EQ(on.cache->stats().sealed.slots_used, 0u);
      Plan plan = on.Acquire(prompt);
      ASSERT_EQ(plan.loadable_tokens(), 30u * kBlock);
      plan = Must(on.cache->Load(std::move(plan), {})).Take();
      ASSERT_EQ(plan.resident_tokens(), 30u * kBlock);
      sequence = Must(on.cache->Open(std::move(plan), {}));
      Must(on.model.Feed(*sequence, prompt));
      ASSERT_EQ(read(*sequence), written) << CodecName(codec) << " seed " << seed;
      if (codec == Codec::kF16) {
        ASSERT_EQ(on.model.Differs(*sequence, prompt), "");
      }
      ASSERT_EQ(on.cache->Verify().damaged, 0u);
    }
  }
}

// Eight blocks are on their way out as long as there are as many, however many have come. A
// caller that evicts one of them waits for those, and not for more.
TEST(CacheOnDevice, SomeAreAlwaysOnTheirWayOutUnlessSomebodyWantsTheirRoom) {
  constexpr uint64_t kBlocks = 40;
  for (const bool evict : {false, true}) {
    ManualClock clock;
    OnDevice on(1, Codec::kF16, nullptr, clock);
    for (uint64_t i = 0; i < kBlocks; ++i) {
      const auto prompt = SomeTokens(kBlock, i);
      Must(on.model.Feed(*Must(on.cache->Open(on.Acquire(prompt), {})), prompt));
    }
    std::vector<uint64_t> asked;  // when each had come
    {
      const SyncPointHandler come([&](std::string_view point) {
        if (point != "write: a block was read") return;
        asked.push_back(on.pinned.copies_out);
        if (evict && asked.size() == 4) std::thread([&] { on.cache->Evict(6); }).join();
      });
      Must(on.store->Flush());
    }
    std::vector<uint64_t> expected(kBlocks);
    for (uint64_t i = 0; i < kBlocks; ++i) {
      expected[i] = std::min(i + 8, kBlocks);
      if (evict && i > 3) expected[i] = i < 11 ? 11 : std::min(i + 8, kBlocks);
    }
    EXPECT_EQ(asked, expected);
    EXPECT_EQ(on.cache->stats().sealed.slots_used, evict ? kBlocks - 6 : kBlocks);
    EXPECT_EQ(on.warm->warm_stats().records, kBlocks);
  }
}

// What a context that streams writes goes the same ways, through a warm tier and without one.
TEST(CacheOnDevice, AStreamedContextIsWrittenThroughPinnedMemory) {
  for (const uint64_t warm_bytes : {512, 8 << 20}) {  // the first has no room for a record
    ManualClock clock;
    FaultyFiles files{{.seed = 1}, clock};
    auto cold = Must(tier::ColdStore::Open({.directory = "store",
                                            .bytes_cap = 16 << 20,
                                            .staging_bytes = 2 << 20,
                                            .chunk_bytes = 64 << 10},
                                           files, clock));
    OnDevice on(1, Codec::kF16, std::move(cold), clock, warm_bytes);
    const auto prompt = SomeTokens(30 * kBlock, 1);
    const auto sequence = Must(
        on.cache->Open(on.Acquire(prompt),
                       {.step_tokens = kBlock, .resident_tokens = 8 * kBlock, .query_heads = 1}));
    for (uint64_t end = kBlock; end <= prompt.size(); end += kBlock) {
      Must(on.model.Feed(*sequence, std::span(prompt).first(end)));
    }
    EXPECT_GT(on.pinned.copies_out, 10u);
    EXPECT_EQ(on.pinned.unpinned, 0u);
  }
}

TEST(CacheOnDevice, StagingIsPinnedOnceAndForAll) {
  OnDevice on(1);
  const uint64_t asked = on.host.asked;
  EXPECT_EQ(asked, 3u) << "the warm tier, and what is staged for writes and for loads";
  const auto prompt = SomeTokens(40 * kBlock + 1, 1);
  Must(on.model.Feed(*Must(on.cache->Open(on.Acquire(prompt), {})), prompt));
  Must(on.store->Flush());
  on.EvictAll();
  EXPECT_EQ(Must(on.cache->Load(on.Acquire(prompt), {})).Take().resident_tokens(), 40u * kBlock);
  EXPECT_EQ(on.host.asked, asked);
}

// The host looks at no byte that comes from the warm tier: the device does, when they are in their
// slots. Blocks before the one that is wrong are used.
TEST(CacheOnDevice, DamageInTheWarmTierOrOnTheWayIsAMiss) {
  for (const bool on_the_way : {false, true}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      OnDevice on(seed);
      const auto prompt = SomeTokens(12 * kBlock + 3, seed);
      Must(on.model.Feed(*Must(on.cache->Open(on.Acquire(prompt), {})), prompt));
      Must(on.store->Flush());
      on.EvictAll();
      const uint64_t bad = seed % 12;
      if (on_the_way) {
        on.pinned.bad_copy = bad;
      } else {
        const std::span<std::byte> bytes = on.warm->BytesOfForTest(on.KeyOf(prompt, bad));
        ASSERT_FALSE(bytes.empty());
        bytes[bytes.size() - 1 - seed * 100] ^= std::byte{1};
      }
      Plan plan = Must(on.cache->Load(on.Acquire(prompt), {})).Take();
      EXPECT_EQ(plan.resident_tokens(), bad * kBlock) << "seed " << seed;
      EXPECT_EQ(plan.reason(), MissReason::kLoadFailed);
      EXPECT_EQ(on.warm->warm_stats().damaged, 1u);
      EXPECT_EQ(on.warm->warm_stats().records, 11u);
      auto sequence = Must(on.cache->Open(std::move(plan), {}));
      Must(on.model.Feed(*sequence, prompt));
      EXPECT_EQ(on.model.Differs(*sequence, prompt), "");
      EXPECT_EQ(on.cache->Verify().damaged, 0u);
      sequence.reset();
      Must(on.store->Flush());
      EXPECT_EQ(on.warm->warm_stats().records, 12u) << "it is written again";
      on.EvictAll();
      on.pinned.bad_copy = UINT64_MAX;
      EXPECT_EQ(Must(on.cache->Load(on.Acquire(prompt), {})).Take().resident_tokens(),
                12u * kBlock);
    }
  }
}

// A record that is damaged in memory is read from the disk instead, and the load is whole.
TEST(CacheOnDevice, DamageInTheWarmTierIsMendedFromTheDisk) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    ManualClock clock;
    FaultyFiles files{{.seed = seed}, clock};
    auto cold = Must(tier::ColdStore::Open({.directory = "store",
                                            .bytes_cap = 16 << 20,
                                            .staging_bytes = 2 << 20,
                                            .chunk_bytes = 64 << 10},
                                           files, clock));
    OnDevice on(seed, Codec::kF16, std::move(cold), clock);
    const auto prompt = SomeTokens(12 * kBlock + 3, seed);
    Must(on.model.Feed(*Must(on.cache->Open(on.Acquire(prompt), {})), prompt));
    Must(on.store->Flush());
    on.EvictAll();
    on.warm->BytesOfForTest(on.KeyOf(prompt, seed)).back() ^= std::byte{1};
    Plan plan = Must(on.cache->Load(on.Acquire(prompt), {})).Take();
    EXPECT_EQ(plan.resident_tokens(), 12u * kBlock);
    EXPECT_EQ(on.warm->warm_stats().damaged, 1u);
    EXPECT_EQ(on.warm->warm_stats().promoted, 1u);
    EXPECT_EQ(on.warm->warm_stats().loads, 12u) << "one of them did not count";
    const auto sequence = Must(on.cache->Open(std::move(plan), {}));
    Must(on.model.Feed(*sequence, prompt));
    EXPECT_EQ(on.model.Differs(*sequence, prompt), "");
  }
}

// The disk refused what the warm tier has: when it comes back into memory it is written again.
TEST(CacheOnDevice, WhatOnlyTheWarmTierHasIsWrittenWhenItIsLoaded) {
  for (const bool on_host : {false, true}) {
    ManualClock clock;
    FaultyFiles files{{.seed = 1}, clock};
    const tier::ColdOptions options{.directory = "store",
                                    .bytes_cap = 16 << 20,
                                    .staging_bytes = 2 << 20,
                                    .chunk_bytes = 64 << 10};
    const auto prompt = SomeTokens(12 * kBlock + 3, 1);
    {
      OnDevice on(1, Codec::kF16, Must(tier::ColdStore::Open(options, files, clock)), clock);
      CacheOptions at_host = on.cache->options();
      at_host.memory = nullptr;
      at_host.ops = nullptr;
      if (on_host) on.cache = Must(Cache::Create(at_host));
      files.set_rates({.write_error = 1});
      Must(on.model.Feed(*Must(on.cache->Open(on.Acquire(prompt), {})), prompt));
      EXPECT_FALSE(on.store->Flush().has_value());
      EXPECT_EQ(on.warm->warm_stats().records, 12u);
      on.EvictAll();
      EXPECT_EQ(Must(on.cache->Load(on.Acquire(prompt), {})).Take().resident_tokens(),
                12u * kBlock);
      EXPECT_EQ(on.cache->stats().stored_blocks, 0u) << "the disk has none of them";
      files.set_rates({});
      clock.Advance(60'000'000);
      on.EvictAll();
      EXPECT_EQ(Must(on.cache->Load(on.Acquire(prompt), {})).Take().resident_tokens(),
                12u * kBlock);
      Must(on.store->Flush());
    }
    OnDevice after(1, Codec::kF16, Must(tier::ColdStore::Open(options, files, clock)), clock);
    EXPECT_EQ(after.Acquire(prompt).loadable_tokens(), 12u * kBlock);
  }
}

// The device fails at each of its operations in turn.
TEST(CacheOnDevice, AFailedDeviceIsHeard) {
  uint64_t publications = 0;
  uint64_t writes = 0;
  uint64_t loads = 0;
  uint64_t reads = 0;
  bool failed = true;
  for (uint64_t at = 0; failed; at += 3) {
    ASSERT_LT(at, 5000u);
    OnDevice on(at);
    const auto prompt = SomeTokens(12 * kBlock + 3, 1);
    on.ops.streams().FailAfter(at);
    bool told = false;
    const auto check = [&](const Result<void>& result, uint64_t& count) {
      if (result) return;
      EXPECT_EQ(result.error().code, ErrorCode::kIo);
      EXPECT_THAT(result.error().message, HasSubstr("protected: the device failed"));
      told = true;
      ++count;
    };
    {
      const auto sequence = Must(on.cache->Open(on.Acquire(prompt), {}));
      check(on.model.Feed(*sequence, prompt), publications);
      EXPECT_EQ(sequence->length(), prompt.size()) << "what is computed is committed";
    }
    check(on.store->Flush(), writes);
    on.EvictAll();
    {
      Plan plan = on.Acquire(prompt);
      const uint64_t wanted = plan.loadable_tokens();
      if (wanted > 0) plan = Must(on.cache->Load(std::move(plan), {})).Take();
      if (plan.resident_tokens() < wanted) {
        EXPECT_EQ(plan.reason(), MissReason::kLoadFailed);
        EXPECT_GT(on.store->stats().loads_failed, 0u);
        told = true;
        ++loads;
      }
      const auto sequence = Must(on.cache->Open(std::move(plan), {}));
      std::vector<float> out(sequence->length() * 2 * 32);
      check(sequence->Gather(1, StreamRole::kKey, 0, sequence->length(), out), reads);
    }
    failed = !on.ops.streams().outcome().has_value();
    EXPECT_EQ(failed, told) << "at operation " << at;
    const tier::PublisherUsage usage = on.warm->UsageOf({});
    EXPECT_EQ(usage.bytes, usage.bytes_live + 512 * usage.records) << "places that nobody has";
    EXPECT_EQ(on.warm->warm_stats().bytes, usage.bytes);
    on.ops.streams().Repair();
    EXPECT_EQ(on.cache->Verify().damaged, 0u) << "at operation " << at;
    on.EvictAll();
    EXPECT_EQ(on.cache->stats().sealed.slots_used, 0u) << "at operation " << at;
  }
  EXPECT_GT(publications, 0u);
  EXPECT_GT(writes, 0u);
  EXPECT_GT(loads, 0u);
  EXPECT_GT(reads, 0u);
}

// Whether blocks that a device does not read are damaged is unknown: they stay, and so do those
// that are not looked at.
TEST(CacheOnDevice, AFailedDeviceDamagesNothingThatIsVerified) {
  OnDevice on(1);
  const auto prompt = SomeTokens(3 * kBlock + 1, 1);
  Must(on.model.Feed(*Must(on.cache->Open(on.Acquire(prompt), {})), prompt));
  on.ops.streams().FailAfter(0);
  testing::internal::CaptureStderr();
  const VerifyReport report = on.cache->Verify();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("protected: the device failed"));
  EXPECT_EQ(report.damaged, 0u);
  EXPECT_EQ(report.blocks, 0u);
  on.ops.streams().Repair();
  EXPECT_EQ(on.cache->Verify().blocks, 3u);
  EXPECT_EQ(on.Acquire(prompt).resident_tokens(), 3u * kBlock);
}

}  // namespace
}  // namespace quire::cache
