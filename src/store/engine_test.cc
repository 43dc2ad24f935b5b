// The store's requests on a machine in memory, cranked by hand: restarts, damage, full disks.
#include "store/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <map>
#include <string>
#include <variant>

#include "base/prng.h"
#include "env/clock.h"
#include "env/faulty_files.h"
#include "tier/tools.h"

namespace quire::store {
namespace {

using enum BlockOutcome;
using Bytes = std::vector<std::byte>;

Bytes Block(uint64_t number, uint64_t bytes) {
  Prng prng(number);
  Bytes block(bytes);
  for (std::byte& byte : block) byte = static_cast<std::byte>(prng.NextBelow(256));
  return block;
}

class EngineTest : public testing::Test {
 protected:
  EngineTest() { sqlite3_test_control(SQLITE_TESTCTRL_PRNG_SEED, 1, nullptr); }
  ~EngineTest() override { engine_.reset(); }

  BlockEngine& Open() {
    auto opened = BlockEngine::Open(options_, *files_, clock_);
    EXPECT_TRUE(opened) << opened.error().message;
    engine_ = std::move(*opened);
    return *engine_;
  }
  void Reopen() {
    engine_.reset();
    Open();
  }
  void Crash(bool power) {
    power ? files_->LosePower() : files_->KillProcess();
    engine_.reset();
    files_->Restart();
    Open();
  }

  Request Make(RequestKind kind, std::string_view key, std::string_view name_space) {
    Request request;
    request.kind = kind;
    request.identity = IdentityOf(name_space, engine_->EpochOf(PublisherOf(name_space)), key);
    return request;
  }
  Request MakePut(std::string_view key, const Bytes& data, std::string_view name_space = {}) {
    Request request = Make(RequestKind::kPut, key, name_space);
    request.data = data;
    return request;
  }
  void Turn(std::vector<Request*>& ended) {
    const size_t before = ended.size();
    engine_->Turn(ended);
    engine_->transfers().Tick(ended.size() == before ? 1000 : 0);
    engine_->Turn(ended);
    if (ended.size() == before) clock_.Advance(1000);
  }
  BlockResult Run(Request& request) {
    engine_->Begin(request);
    std::vector<Request*> ended;
    while (ended.empty()) Turn(ended);
    EXPECT_THAT(ended, testing::ElementsAre(&request));
    return request.result;
  }
  BlockOutcome Put(std::string_view key, const Bytes& data, std::string_view name_space = {}) {
    Request request = MakePut(key, data, name_space);
    return Run(request).outcome;
  }
  BlockResult GetInto(std::string_view key, std::span<std::byte> out,
                      std::string_view name_space = {}) {
    Request request = Make(RequestKind::kGet, key, name_space);
    request.out = out;
    request.last_page = std::make_unique<LastPage>();
    return Run(request);
  }
  /// The block, or why there is none.
  std::variant<Bytes, BlockOutcome> Get(std::string_view key, std::string_view name_space = {}) {
    Bytes out(kBlockMax);
    const BlockResult result = GetInto(key, out, name_space);
    if (result.outcome != kOk) return result.outcome;
    out.resize(result.bytes);
    return out;
  }
  void AcceptPuts() {
    options_.memory_bytes = 1 << 20;
    options_.accepts_puts = true;
    Open();
  }
  void Flush() {
    Request request;
    Run(request);
  }
  BlockOutcome Remove(std::string_view key, std::string_view name_space = {}) {
    Request request = Make(RequestKind::kRemove, key, name_space);
    return Run(request).outcome;
  }
  bool Has(std::string_view key) { return engine_->Find(IdentityOf("", 0, key).key).has_value(); }

  static constexpr uint64_t kBlockMax = 512 << 10;

  ManualClock clock_;
  std::unique_ptr<FaultyFiles> files_ =
      std::make_unique<FaultyFiles>(FaultyFilesOptions{.seed = 5, .latency_us_max = 100}, clock_);
  BlockStoreOptions options_ = {.directory = "store",
                                .bytes_cap = 16 << 20,
                                .block_bytes_max = kBlockMax,
                                .scrub_bytes_per_s = 0,
                                .memory_bytes = 0};
  std::unique_ptr<BlockEngine> engine_;
};

TEST_F(EngineTest, BlocksOfEveryLengthComeBackAlsoAfterRestarts) {
  Open();
  const std::vector<uint64_t> lengths = {0,    1,     4095,  4096,  4097,     8191,
                                         8192, 12345, 65536, 99999, kBlockMax};
  for (const uint64_t bytes : lengths) {
    EXPECT_EQ(Put(std::to_string(bytes), Block(bytes, bytes)), kOk) << bytes;
  }
  for (int round = 0; round < 4; ++round) {
    SCOPED_TRACE(round);
    for (const uint64_t bytes : lengths) {
      EXPECT_EQ(Get(std::to_string(bytes)),
                (std::variant<Bytes, BlockOutcome>(Block(bytes, bytes))))
          << bytes;
    }
    EXPECT_EQ(Get("never"), (std::variant<Bytes, BlockOutcome>(kAbsent)));
    round == 0 ? Reopen() : Crash(/*power=*/round == 1);
  }
}

TEST_F(EngineTest, AKeyIsOneBlockInEachNamespace) {
  Open();
  const std::vector<std::string> names = {"", "a", "b", std::string("a\0b", 3)};
  for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(Put("key", Block(i, 5000), names[i]), kOk);
  EXPECT_EQ(Remove("key", "b"), kOk);
  for (const bool reopened : {false, true}) {
    if (reopened) Reopen();
    for (size_t i = 0; i < names.size(); ++i) {
      const auto expected = i == 2 ? std::variant<Bytes, BlockOutcome>(kAbsent) : Block(i, 5000);
      EXPECT_EQ(Get("key", names[i]), expected) << i;
    }
  }
}

TEST_F(EngineTest, WhatIsThereStaysAsItIsUntilItIsRemoved) {
  Open();
  EXPECT_EQ(Put("key", Block(1, 5000)), kOk);
  EXPECT_EQ(Put("key", Block(2, 7000)), kPresent);
  EXPECT_EQ(Get("key"), (std::variant<Bytes, BlockOutcome>(Block(1, 5000))));
  EXPECT_EQ(Remove("key"), kOk);
  EXPECT_EQ(Remove("key"), kAbsent);
  EXPECT_EQ(Get("key"), (std::variant<Bytes, BlockOutcome>(kAbsent)));
  EXPECT_EQ(Put("key", Block(2, 7000)), kOk);
  Crash(/*power=*/true);
  EXPECT_EQ(Get("key"), (std::variant<Bytes, BlockOutcome>(Block(2, 7000))));
}

TEST_F(EngineTest, ABufferThatIsTooSmallIsToldTheLength) {
  Open();
  EXPECT_EQ(Put("key", Block(1, 10'000)), kOk);
  Bytes out(10'000);
  EXPECT_EQ(GetInto("key", out), (BlockResult{kOk, 10'000}));
  // Found out from the last page ...
  EXPECT_EQ(GetInto("key", std::span(out).first(9999)), (BlockResult{kTooSmall, 10'000}));
  // ... and, without reading, from the number of pages: most that it can have.
  EXPECT_EQ(GetInto("key", std::span(out).first(100)), (BlockResult{kTooSmall, 3 * 4096 - 1}));
  EXPECT_EQ(engine_->Find(IdentityOf("", 0, "key").key), 3 * 4096 - 1);
}

TEST_F(EngineTest, LengthsBeyondTheLimitAreRefused) {
  Open();
  EXPECT_EQ(Put("at", Block(1, kBlockMax)), kOk);
  EXPECT_EQ(Put("beyond", Block(1, kBlockMax + 1)), kTooLarge);
  EXPECT_EQ(Get("beyond"), (std::variant<Bytes, BlockOutcome>(kAbsent)));
  // A store keeps the segments it was made with.
  engine_.reset();
  options_.block_bytes_max = 4 << 20;
  Open();
  EXPECT_GE(engine_->block_bytes_max(), kBlockMax);
  EXPECT_LT(engine_->block_bytes_max(), 4 << 20);
  const uint64_t limit = engine_->block_bytes_max();
  EXPECT_EQ(Put("limit", Block(2, limit)), kOk);
  EXPECT_EQ(Put("over", Block(2, limit + 1)), kTooLarge);
}

TEST_F(EngineTest, WhatAProcessPutWithLongerBlocksIsNoHarm) {
  options_.bytes_cap = 256 << 20;
  options_.block_bytes_max = 60 << 20;
  Open();
  EXPECT_EQ(Put("long", Block(1, 60 << 20)), kOk);
  engine_.reset();
  options_.block_bytes_max = 1 << 20;
  Open();
  Bytes out(60 << 20);
  EXPECT_EQ(GetInto("long", out).outcome, kTooLarge);
  EXPECT_EQ(Put("short", Block(2, 1 << 20)), kOk);
}

TEST_F(EngineTest, DamageIsAMissAndNeverOtherBytes) {
  Open();
  constexpr uint64_t kBlocks = 24;
  for (uint64_t i = 0; i < kBlocks; ++i) {
    EXPECT_EQ(Put(std::to_string(i), Block(i, 3000 + 997 * i)), kOk);
  }
  Prng prng(7);
  uint64_t damaged = 0;
  for (int round = 0; round < 60; ++round) {
    for (const std::string& path : files_->Paths()) {
      if (path.find("segment-") == std::string::npos) continue;
      Bytes& file = *files_->Contents(path);
      file[prng.NextBelow(600'000)] ^= static_cast<std::byte>(1 << prng.NextBelow(8));
    }
    if (round % 20 == 19) Crash(/*power=*/false);
    for (uint64_t i = 0; i < kBlocks; ++i) {
      const auto got = Get(std::to_string(i));
      if (std::holds_alternative<Bytes>(got)) {
        ASSERT_EQ(std::get<Bytes>(got), Block(i, 3000 + 997 * i));
      } else {
        ASSERT_THAT(std::get<BlockOutcome>(got), testing::AnyOf(kDamaged, kAbsent));
        ++damaged;
        // It can be put again at once.
        ASSERT_EQ(Put(std::to_string(i), Block(i, 3000 + 997 * i)), kOk);
      }
    }
  }
  EXPECT_GT(damaged, 20);
}

TEST_F(EngineTest, BitsThatFlipWhileTheyAreReadAreAMiss) {
  Open();
  for (uint64_t i = 0; i < 20; ++i) Put(std::to_string(i), Block(i, 9000));
  files_->set_rates({.flip_on_read = 2});
  uint64_t misses = 0;
  for (uint64_t i = 0; i < 20; ++i) {
    const auto got = Get(std::to_string(i));
    if (std::holds_alternative<Bytes>(got)) {
      EXPECT_EQ(std::get<Bytes>(got), Block(i, 9000));
    } else {
      EXPECT_EQ(std::get<BlockOutcome>(got), kDamaged);
      ++misses;
    }
  }
  EXPECT_GT(misses, 0);
  EXPECT_LT(misses, 20);
}

TEST_F(EngineTest, TheCapHoldsAndTheLeastRecentGo) {
  Open();
  constexpr uint64_t kBlocks = 200;
  for (uint64_t i = 0; i < kBlocks; ++i) {
    ASSERT_EQ(Put(std::to_string(i), Block(i, 200'000)), kOk);
    ASSERT_LE(files_->bytes_used(), options_.bytes_cap);
  }
  EXPECT_GT(engine_->stats().evicted, 100);
  EXPECT_FALSE(Has("1"));
  for (uint64_t i = kBlocks - 40; i < kBlocks; ++i) {
    EXPECT_EQ(Get(std::to_string(i)), (std::variant<Bytes, BlockOutcome>(Block(i, 200'000))));
  }
}

TEST_F(EngineTest, AFullDiskRefusesAndGoesOnWithTheRoomItHas) {
  files_->set_disk_bytes(3 << 20);  // one segment and the small files
  Open();
  for (uint64_t i = 0; i < 30; ++i) ASSERT_EQ(Put(std::to_string(i), Block(i, 200'000)), kOk) << i;
  EXPECT_TRUE(engine_->stats().disk_full);
  EXPECT_EQ(Get("29"), (std::variant<Bytes, BlockOutcome>(Block(29, 200'000))));
}

TEST_F(EngineTest, ADiskWithoutAnyRoomRefusesEveryPut) {
  files_->set_disk_bytes(1 << 20);
  Open();
  EXPECT_EQ(Put("key", Block(1, 1000)), kNoSpace);
  EXPECT_EQ(Get("key"), (std::variant<Bytes, BlockOutcome>(kAbsent)));
}

TEST_F(EngineTest, ADiskThatFailsIsToldAndRecovers) {
  Open();
  EXPECT_EQ(Put("before", Block(1, 1000)), kOk);
  files_->set_rates({.write_error = 1});
  EXPECT_EQ(Put("key", Block(2, 1000)), kIo);
  files_->set_rates({.sync_error = 1});
  EXPECT_EQ(Put("key", Block(2, 1000)), kIo);
  files_->set_rates({.read_error = 1});
  EXPECT_EQ(Get("before"), (std::variant<Bytes, BlockOutcome>(kIo)));
  files_->set_rates({});
  EXPECT_EQ(Put("key", Block(2, 1000)), kOk);
  EXPECT_EQ(Get("before"), (std::variant<Bytes, BlockOutcome>(Block(1, 1000))));
}

// The second Put is told how the first one ends.
TEST_F(EngineTest, TwoPutsOfOneKeyThatFailAreBothToldSo) {
  Open();
  for (const FaultRates& rates : {FaultRates{.write_error = 1}, FaultRates{.sync_error = 1}}) {
    files_->set_rates(rates);
    const Bytes block = Block(1, 1000);
    std::array<Request, 2> requests = {MakePut("key", block), MakePut("key", block)};
    for (Request& request : requests) engine_->Begin(request);
    std::vector<Request*> ended;
    while (ended.size() < 2) Turn(ended);
    for (const Request& request : requests) EXPECT_EQ(request.result.outcome, kIo);
    EXPECT_FALSE(Has("key"));
  }
}

// More than staging holds, all handed in at once.
TEST_F(EngineTest, APutThatFindsTheStoreBusyWaitsForItsTurn) {
  options_.bytes_cap = 512 << 20;
  options_.block_bytes_max = 20 << 20;
  Open();
  const Bytes block = Block(1, 20 << 20);
  std::deque<Request> requests;
  for (uint64_t i = 0; i < 10; ++i) requests.push_back(MakePut(std::to_string(i), block));
  Request& flush = requests.emplace_back();
  for (Request& request : requests) engine_->Begin(request);
  EXPECT_EQ(engine_->under_way(), 11);
  std::vector<Request*> ended;
  while (engine_->under_way() > 0) Turn(ended);
  EXPECT_EQ(ended.back(), &flush);
  for (const Request& request : requests) EXPECT_EQ(request.result.outcome, kOk);
}

TEST_F(EngineTest, FlushDoesNotWaitForTheCommitInterval) {
  options_.commit_interval_us = 60'000'000;
  Open();
  const Bytes block = Block(1, 1000);
  Request put = MakePut("key", block);
  Request flush;
  engine_->Begin(put);
  engine_->Begin(flush);
  const uint64_t begin_us = clock_.NowMicros();
  std::vector<Request*> ended;
  while (engine_->under_way() > 0) Turn(ended);
  EXPECT_LT(clock_.NowMicros() - begin_us, 1'000'000);
  Crash(/*power=*/true);
  EXPECT_EQ(Get("key"), (std::variant<Bytes, BlockOutcome>(Block(1, 1000))));
}

// `quire store` works on these directories as on any.
TEST_F(EngineTest, TheToolsReadAndMendIt) {
  Open();
  for (uint64_t i = 0; i < 20; ++i) Put(std::to_string(i), Block(i, 9000), i % 2 == 0 ? "" : "ns");
  EXPECT_EQ(Remove("4"), kOk);
  EXPECT_EQ(Remove("5", "ns"), kOk);
  engine_.reset();
  auto report = tier::VerifyStore(*files_, "store");
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->records, 18);
  EXPECT_EQ(report->damaged, 0);
  // Behind the header of the first block: its payload.
  (*files_->Contents("store/segment-000000"))[5000] ^= std::byte{1};
  report = tier::RepairStore(*files_, "store");
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->repaired, 1);
  EXPECT_EQ(report->records, 17);
  Open();
  EXPECT_EQ(Get("0"), (std::variant<Bytes, BlockOutcome>(kAbsent)));
  EXPECT_EQ(Get("4"), (std::variant<Bytes, BlockOutcome>(kAbsent)));
  EXPECT_EQ(Get("5", "ns"), (std::variant<Bytes, BlockOutcome>(kAbsent)));
  for (const uint64_t i : {2, 6, 18}) {
    EXPECT_EQ(Get(std::to_string(i)), (std::variant<Bytes, BlockOutcome>(Block(i, 9000))));
  }
  EXPECT_EQ(Get("19", "ns"), (std::variant<Bytes, BlockOutcome>(Block(19, 9000))));
}

TEST_F(EngineTest, SizesThatNoStoreCanHaveAreRefused) {
  const auto refused = [&](const BlockStoreOptions& options) {
    const auto opened = BlockEngine::Open(options, *files_, clock_);
    return !opened && opened.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused({.directory = "s", .bytes_cap = 0}));
  EXPECT_TRUE(refused({.directory = "s", .bytes_cap = 512 << 10}));
  EXPECT_TRUE(refused({.directory = "s", .commit_interval_us = 0}));
  EXPECT_TRUE(refused({.directory = "s", .disk_requests_max = 0}));
  EXPECT_TRUE(refused({.directory = "s", .disk_requests_max = ~uint32_t{0}}));
  EXPECT_TRUE(refused({.directory = "s", .bytes_cap = 64 << 20, .block_bytes_max = 40 << 20}));
  EXPECT_TRUE(refused({.directory = "s", .block_bytes_max = uint64_t{2} << 30}));
  EXPECT_TRUE(refused({.directory = "s", .block_bytes_max = ~uint64_t{0}}));
  EXPECT_TRUE(refused({.directory = "s", .memory_bytes = 0, .accepts_puts = true}));
  EXPECT_TRUE(files_->Paths().empty());
}

TEST_F(EngineTest, WhatWasPutOrReadIsFoundInMemory) {
  Open();
  EXPECT_EQ(Put("before", Block(1, 9000)), kOk);
  engine_.reset();
  options_.memory_bytes = 1 << 20;
  Open();
  EXPECT_EQ(Put("key", Block(2, 10'000)), kOk);
  EXPECT_EQ(Get("before"), (std::variant<Bytes, BlockOutcome>(Block(1, 9000))));
  EXPECT_EQ(engine_->memory_hits(), 0);
  files_->set_rates({.read_error = 1});
  EXPECT_EQ(Get("before"), (std::variant<Bytes, BlockOutcome>(Block(1, 9000))));
  EXPECT_EQ(Get("key"), (std::variant<Bytes, BlockOutcome>(Block(2, 10'000))));
  EXPECT_EQ(engine_->memory_hits(), 2);
  for (uint64_t i = 0; i < 9; ++i) EXPECT_EQ(Put(std::to_string(i), Block(i, 120'000)), kOk);
  EXPECT_EQ(Get("key"), (std::variant<Bytes, BlockOutcome>(kIo)));  // memory made room
}

TEST_F(EngineTest, APutIsAcceptedAtOnceAndDurableAfterAFlush) {
  options_.commit_interval_us = 60'000'000;
  AcceptPuts();
  for (const bool flushed : {false, true}) {
    const uint64_t begin_us = clock_.NowMicros();
    EXPECT_EQ(Put("key", Block(1, 5000)), kOk);
    EXPECT_EQ(clock_.NowMicros(), begin_us);
    EXPECT_TRUE(Has("key"));
    EXPECT_EQ(Put("key", Block(1, 5000)), kPresent);
    EXPECT_EQ(Get("key"), (std::variant<Bytes, BlockOutcome>(Block(1, 5000))));
    if (flushed) Flush();
    Crash(/*power=*/true);
    const auto expected = flushed ? std::variant<Bytes, BlockOutcome>(Block(1, 5000)) : kAbsent;
    EXPECT_EQ(Get("key"), expected);
  }
}

TEST_F(EngineTest, WhatIsRemovedBeforeItIsDurableStaysAway) {
  AcceptPuts();
  EXPECT_EQ(Put("key", Block(1, 5000)), kOk);
  EXPECT_EQ(Remove("key"), kOk);
  Flush();
  for (const bool crashed : {false, true}) {
    if (crashed) Crash(/*power=*/true);
    EXPECT_FALSE(Has("key"));
    EXPECT_EQ(Get("key"), (std::variant<Bytes, BlockOutcome>(kAbsent)));
    EXPECT_EQ(Remove("key"), kAbsent);
  }
}

TEST_F(EngineTest, WhatIsRemovedWhileItIsReadDoesNotComeBackInMemory) {
  Open();
  EXPECT_EQ(Put("key", Block(1, 100'000)), kOk);
  engine_.reset();
  AcceptPuts();
  Bytes out(kBlockMax);
  Request get = Make(RequestKind::kGet, "key", "");
  get.out = out;
  get.last_page = std::make_unique<LastPage>();
  Request remove = Make(RequestKind::kRemove, "key", "");
  engine_->Begin(get);
  engine_->Begin(remove);
  std::vector<Request*> ended;
  while (ended.size() < 2) Turn(ended);
  EXPECT_EQ(remove.result.outcome, kOk);
  EXPECT_EQ(Get("key"), (std::variant<Bytes, BlockOutcome>(kAbsent)));
}

TEST_F(EngineTest, AcceptedBlocksThatTheDiskDoesNotTakeAreCounted) {
  AcceptPuts();
  files_->set_rates({.write_error = 1});
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(Put(std::to_string(i), Block(i, 5000)), kOk);
  Flush();
  EXPECT_EQ(engine_->puts_lost(), 3);
  EXPECT_EQ(Get("1"), (std::variant<Bytes, BlockOutcome>(Block(1, 5000))));  // as long as it lives
  files_->set_rates({});
  EXPECT_EQ(Put("1", Block(1, 5000)), kOk);
  Flush();
  Crash(/*power=*/true);
  EXPECT_EQ(Get("1"), (std::variant<Bytes, BlockOutcome>(Block(1, 5000))));
  EXPECT_EQ(Get("2"), (std::variant<Bytes, BlockOutcome>(kAbsent)));
}

TEST_F(EngineTest, ABlockForWhichMemoryHasNoRoomIsAcceptedWhenItIsDurable) {
  options_.memory_bytes = 64 << 10;
  options_.accepts_puts = true;
  Open();
  EXPECT_EQ(Put("key", Block(1, 100'000)), kOk);
  Crash(/*power=*/true);
  EXPECT_EQ(Get("key"), (std::variant<Bytes, BlockOutcome>(Block(1, 100'000))));
}

// Every kind of fault, at random: a block is what was put, or there is none.
class EngineFaultsTest : public EngineTest, public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Puts, EngineFaultsTest, testing::Bool());

TEST_P(EngineFaultsTest, NoFaultBringsOtherBytes) {
  options_.bytes_cap = 12 << 20;
  options_.block_bytes_max = 100'000;
  options_.memory_bytes = GetParam() ? 1 << 20 : 0;
  options_.accepts_puts = GetParam();
  Open();
  Prng prng(11);
  std::map<uint64_t, uint64_t> version;  // of a key, as it was put last
  uint64_t hits = 0;
  for (uint64_t step = 0; step < 3000; ++step) {
    const uint64_t key = prng.NextBelow(40);
    const auto bytes_of = [&](uint64_t put) { return Block(put, 1 + put * 7919 % 100'000); };
    switch (prng.NextBelow(8)) {
      case 0:
      case 1: {
        // A key names its bytes for good: a new version has a new key.
        const uint64_t next = version.contains(key) ? version[key] : key;
        const BlockOutcome put = Put(std::to_string(next), bytes_of(next));
        ASSERT_THAT(put, testing::AnyOf(kOk, kPresent, kIo)) << BlockOutcomeName(put);
        version[key] = next;
        break;
      }
      case 2:
        if (version.contains(key)) {
          ASSERT_THAT(Remove(std::to_string(version[key])), testing::AnyOf(kOk, kAbsent, kIo));
          version[key] += 1000;
        }
        break;
      case 3:
        files_->set_rates(prng.NextBelow(2) == 0 ? FaultRates{}
                                                 : FaultRates{.read_error = 20,
                                                              .write_error = 30,
                                                              .sync_error = 30,
                                                              .short_read = 20,
                                                              .torn_write = 10,
                                                              .lost_write = 10,
                                                              .misdirected_write = 10,
                                                              .flip_on_read = 20,
                                                              .flip_at_rest = 20});
        break;
      case 4:
        if (prng.NextBelow(20) == 0) {
          files_->set_rates({});
          Crash(prng.NextBelow(2) == 0);
        }
        break;
      default: {
        if (!version.contains(key)) break;
        const auto got = Get(std::to_string(version[key]));
        if (std::holds_alternative<Bytes>(got)) {
          ++hits;
          ASSERT_EQ(std::get<Bytes>(got), bytes_of(version[key])) << step;
        }
      }
    }
    ASSERT_LE(files_->bytes_used(), options_.bytes_cap);
  }
  EXPECT_GT(files_->faults(), 50);
  EXPECT_GT(hits, 200);
}

}  // namespace
}  // namespace quire::store
