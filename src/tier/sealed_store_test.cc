#include "tier/sealed_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/thorough.h"
#include "keys/cipher.h"
#include "tier/cold_test_util.h"
#include "tier/tools.h"

namespace quire::tier {
namespace {

using enum StoreOutcome;
using testing::HasSubstr;

StoreKeys KeyOf(uint8_t number) { return {.key = std::vector<uint8_t>(keys::kKeyBytes, number)}; }

/// All files of a directory, by path.
using Image = std::map<std::string, std::vector<std::byte>>;

class SealedStoreTest : public StoreTest<SealedStore> {
 protected:
  SealedStoreTest() {
    keys_ = KeyOf(7);
    options_.bytes_cap += keys::KeyFileBytesMax(keys::KeysMax(options_.bytes_cap));
  }
  ~SealedStoreTest() override { SetLogLevel(LogLevel::kWarn); }

  std::string Refusal(const StoreKeys& keys) {
    store_.reset();
    if (keys.empty()) {
      const auto opened = ColdStore::Open(options_, *files_, clock_);
      return opened ? "" : opened.error().message;
    }
    const auto opened = SealedStore::Open(options_, *files_, clock_, keys);
    return opened ? "" : opened.error().message;
  }
  Image Copy() const {
    Image image;
    for (const std::string& path : files_->Paths()) image[path] = *files_->Contents(path);
    return image;
  }
  void PutBack(const Image& image, const std::function<bool(const std::string&)>& which) {
    for (const auto& [path, bytes] : image) {
      if (!which(path)) continue;
      const auto file = files_->Open(path, {.create = true});
      ASSERT_TRUE(file);
      ASSERT_TRUE(files_->Resize(*file, bytes.size()));
      ASSERT_TRUE(files_->WriteAt(*file, 0, bytes));
      ASSERT_TRUE(files_->Sync(*file));
      files_->Close(*file);
    }
  }
  bool OnDisk(std::span<const std::byte> wanted) const {
    for (const std::string& path : files_->Paths()) {
      const std::vector<std::byte>& bytes = *files_->Contents(path);
      const auto found = std::ranges::search(bytes, wanted);
      if (!found.empty()) return true;
    }
    return false;
  }
  bool OnDisk(std::span<const uint8_t> wanted) const { return OnDisk(std::as_bytes(wanted)); }
  StoreOutcome Erase(std::string_view domain, uint64_t epoch) {
    store_->Erase(PublisherOf(domain), epoch, 55);
    return WaitOne().outcome;
  }
  void WriteNumbers(std::vector<std::byte>& file, uint64_t at, uint32_t number) {
    std::memcpy(&file[at], &number, sizeof(number));
  }
};

TEST_F(SealedStoreTest, WhatIsWrittenIsFoundAndReadAgain) {
  Open();
  PutAll(0, 5);
  PutAll(10, 5, "anna");
  EXPECT_EQ(Flush(), kOk);
  for (const bool restarted : {false, true}) {
    if (restarted) Reopen();
    for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(Load(Record(i)).outcome, kOk);
    for (uint64_t i = 10; i < 15; ++i) EXPECT_EQ(Load(Record(i, "anna")).outcome, kOk);
    EXPECT_EQ(Load(Record(99)).outcome, kAbsent);
    // One section alone.
    Get(Record(2), 3, 0, 1, 2);
    EXPECT_EQ(WaitOne().outcome, kOk);
    EXPECT_TRUE(Same(Record(2), 3, 1));
    EXPECT_EQ(store_->RootsOf({}),
              (std::vector<RecordRoot>{{.key = Record(0).identity().parent, .block_tokens = 16}}));
    EXPECT_EQ(store_->UsageOf(PublisherOf("anna")).records, 5);
  }
  // Also without a catalogue.
  store_.reset();
  ASSERT_TRUE(files_->Remove("store/catalogue.db"));
  Open();
  for (uint64_t i = 10; i < 15; ++i) EXPECT_EQ(Load(Record(i, "anna")).outcome, kOk);
}

TEST_F(SealedStoreTest, EveryTagIsTheCallers) {
  Open();
  for (const uint64_t tag : {uint64_t{0}, ~uint64_t{0}}) {
    Put(Record(tag % 3), tag);
    EXPECT_EQ(WaitOne().tag, tag);
    store_->Flush(tag);
    EXPECT_EQ(WaitOne().tag, tag);
  }
}

TEST_F(SealedStoreTest, NothingOnTheDiskSaysWhatItIsOrOpensIt) {
  Open();
  PutAll(0, 3);
  PutAll(7, 3, "anna");
  EXPECT_EQ(Erase("berta", 1), kOk);
  EXPECT_EQ(Flush(), kOk);
  const keys::KeyRing& ring = store_->keys();
  std::vector<std::vector<uint8_t>> secrets = {keys_.key};
  for (const PublisherId& name : ring.owners()) {
    for (uint32_t number = 1; number < 5; ++number) {
      const auto key = ring.Find(name, number);
      if (key != nullptr) secrets.emplace_back(key->bytes().begin(), key->bytes().end());
    }
  }
  EXPECT_EQ(secrets.size(), 3);  // the caller's, of no tenant, of Anna
  const Digest domain_secret = ring.domain_secret();
  secrets.emplace_back(domain_secret.begin(), domain_secret.end());
  store_.reset();
  for (const auto& secret : secrets) EXPECT_FALSE(OnDisk(std::span(secret).first(16)));
  for (const auto& domain : {"", "anna"}) {
    const TestRecord& record = Record(std::string(domain).empty() ? 0 : 7, domain);
    const RecordIdentity& identity = record.identity();
    for (const Digest* digest :
         {&identity.key, &identity.parent, &identity.profile, &identity.geometry}) {
      EXPECT_FALSE(OnDisk(std::span(*digest).first(16)));
    }
    if (identity.publisher != PublisherId{}) {
      EXPECT_FALSE(OnDisk(identity.publisher));
    }
    EXPECT_FALSE(OnDisk(std::as_bytes(identity.tokens.first(3))));
    for (const auto section : record.sections()) EXPECT_FALSE(OnDisk(section.first(16)));
  }
  // The same search finds what a plain store writes.
  const TestRecord& record = Record(0);
  const auto plain = ColdStore::Open({.directory = "plain",
                                      .bytes_cap = options_.bytes_cap,
                                      .segment_bytes = options_.segment_bytes,
                                      .catalogue_bytes_max = options_.catalogue_bytes_max,
                                      .staging_bytes = 1 << 20,
                                      .chunk_bytes = 64 << 10},
                                     *files_, clock_);
  ASSERT_TRUE(plain);
  const PutRequest put = {.identity = record.identity(),
                          .layout = &record.layout(),
                          .sections = record.sections(),
                          .tag = 1};
  (*plain)->Put({&put, 1});
  (*plain)->Flush(2);
  std::vector<StoreCompletion> done;
  for (int i = 0; i < 1000 && done.size() < 2; ++i) (*plain)->Tick(done, 1000);
  EXPECT_TRUE(OnDisk(std::as_bytes(record.identity().tokens.first(3))));
  EXPECT_TRUE(OnDisk(record.sections()[0].first(16)));
}

TEST_F(SealedStoreTest, EachWrongKeyIsRefusedAndNothingIsChanged) {
  Open();
  PutAll(0, 3);
  EXPECT_EQ(Flush(), kOk);
  store_.reset();
  const Image before = Copy();
  EXPECT_THAT(Refusal({}), HasSubstr("store store: it is encrypted: give the key"));
  EXPECT_THAT(Refusal(KeyOf(8)), HasSubstr("is not the key that it was made with"));
  EXPECT_THAT(Refusal({.command = "cat"}),
              HasSubstr("its keys are wrapped by a key (--keys FILE), not by a command"));
  EXPECT_THAT(Refusal({.key = {1, 2, 3}}), HasSubstr("a key of 3 bytes; 32 are expected"));
  EXPECT_THAT(Refusal({.file = "x", .command = "y"}), HasSubstr("one of a key file"));
  EXPECT_EQ(Copy(), before);
  Open();
  EXPECT_EQ(Load(Record(1)).outcome, kOk);
}

TEST_F(SealedStoreTest, APlainStoreStaysPlain) {
  {
    const auto plain = ColdStore::Open(options_, *files_, clock_);
    ASSERT_TRUE(plain);
  }
  EXPECT_THAT(Refusal(keys_), HasSubstr("store store: it is not encrypted"));
  EXPECT_EQ(Refusal({}), "");
}

TEST_F(SealedStoreTest, WithoutItsKeyFilesItIsNotTakenForAPlainOne) {
  Open();
  PutAll(0, 3);
  EXPECT_EQ(Flush(), kOk);
  store_.reset();
  ASSERT_TRUE(files_->Remove("store/KEYS-0"));
  Open();  // one copy is enough, and the other one is made anew
  store_.reset();
  ASSERT_NE(files_->Contents("store/KEYS-0"), nullptr);
  ASSERT_TRUE(files_->Remove("store/KEYS-0"));
  ASSERT_TRUE(files_->Remove("store/KEYS-1"));
  EXPECT_THAT(Refusal({}), HasSubstr("it is encrypted, and KEYS-0 and KEYS-1 are gone"));
  EXPECT_THAT(Refusal(keys_), HasSubstr("it is not encrypted"));
}

TEST_F(SealedStoreTest, DamagedKeyFiles) {
  Open();
  PutAll(0, 3);
  EXPECT_EQ(Flush(), kOk);
  store_.reset();
  (*files_->Contents("store/KEYS-1"))[100] ^= std::byte{1};
  Open();
  EXPECT_EQ(Load(Record(1)).outcome, kOk);
  store_.reset();
  (*files_->Contents("store/KEYS-0"))[100] ^= std::byte{1};
  (*files_->Contents("store/KEYS-1"))[200] ^= std::byte{1};
  EXPECT_THAT(Refusal(keys_), HasSubstr("KEYS-0 and KEYS-1 are damaged"));
  EXPECT_THAT(Refusal({}), HasSubstr("it is encrypted"));
}

// What is on the disk is written by an attacker, with every checksum as it should be.
class Attack {
 public:
  explicit Attack(std::vector<std::byte>& segment) : segment_(segment) {}

  struct Found {
    uint64_t offset = 0;
    RecordSummary summary{};
  };
  std::vector<Found> Records() const {
    std::vector<Found> found;
    for (uint64_t at = 0; at < segment_.size(); at += kRecordAlignment) {
      const auto summary = InspectHeader(std::span(segment_).subspan(at));
      if (summary && !summary->is_void) found.push_back({at, *summary});
    }
    return found;
  }
  // Checksums that fit what is there now.
  void Resign(const Found& record) {
    const std::span<std::byte> header =
        std::span(segment_).subspan(record.offset, record.summary.header_bytes);
    const auto sections = StoredSections(header);
    for (const StoredSection& section : sections) {
      auto& stored = const_cast<StoredSection&>(section);
      stored.crc = Crc32c(std::span(segment_).subspan(
          record.offset + record.summary.header_bytes + section.offset, section.bytes));
    }
    constexpr size_t kCrcAt = 252;
    const uint32_t zero = 0;
    std::memcpy(&header[kCrcAt], &zero, 4);
    const uint32_t crc = Crc32c(header);
    std::memcpy(&header[kCrcAt], &crc, 4);
  }

 private:
  std::vector<std::byte>& segment_;
};

TEST_F(SealedStoreTest, AThousandForgedChangesAreAllMisses) {
  SetLogLevel(LogLevel::kError);
  Open();
  constexpr uint64_t kRecords = 6;
  PutAll(0, kRecords);
  EXPECT_EQ(Flush(), kOk);
  store_.reset();
  const Image before = Copy();
  const auto records = Attack(*files_->Contents("store/segment-000000")).Records();
  ASSERT_EQ(records.size(), kRecords);
  const uint64_t seal_bytes = records[0].summary.payload_bytes;
  Prng prng(3);
  const uint64_t rounds = Thorough(40, 200);
  std::map<std::string, uint64_t> kinds;
  for (uint64_t round = 0; round < 5 * rounds; ++round) {
    PutBack(before, [](const std::string&) { return true; });
    std::vector<std::byte>& segment = *files_->Contents("store/segment-000000");
    Attack attack(segment);
    const auto& one = records[prng.NextBelow(kRecords)];
    const auto& other = records[prng.NextBelow(kRecords)];
    const uint64_t payload = one.offset + one.summary.header_bytes;
    const uint64_t other_payload = other.offset + other.summary.header_bytes;
    const auto swap = [&](uint64_t a, uint64_t b, uint64_t bytes) {
      std::swap_ranges(segment.begin() + static_cast<ptrdiff_t>(a),
                       segment.begin() + static_cast<ptrdiff_t>(a + bytes),
                       segment.begin() + static_cast<ptrdiff_t>(b));
    };
    const auto sections =
        StoredSections(std::span(segment).subspan(one.offset, one.summary.header_bytes));
    const StoredSection first = sections[prng.NextBelow(sections.size())];
    const StoredSection second = sections[prng.NextBelow(sections.size())];
    switch (round % 5) {
      case 0: {  // a bit of a section: bytes, salt, number or tag
        const uint64_t at = payload + first.offset + prng.NextBelow(first.bytes);
        // What is zero there is no part of it.
        segment[at] ^= static_cast<std::byte>(1 << prng.NextBelow(8));
        break;
      }
      case 1: swap(payload, other_payload, seal_bytes); break;  // payloads of two records
      case 2:                                                   // sections of one record
        swap(payload + first.offset, payload + second.offset, first.bytes);
        break;
      case 3: {  // a field that the header says, and the index does not check
        constexpr std::array<uint64_t, 4> kFields = {48, 80, 112, 256};
        segment[one.offset + kFields[prng.NextBelow(4)] + prng.NextBelow(16)] ^= std::byte{4};
        break;
      }
      default:  // keys of two headers
        swap(one.offset + 16, other.offset + 16, 32);
        break;
    }
    attack.Resign(one);
    attack.Resign(other);
    const bool changed = segment != before.at("store/segment-000000");
    Open();
    uint64_t good = 0;
    for (uint64_t i = 0; i < kRecords; ++i) {
      const StoreCompletion ended = Load(Record(i));  // which compares the bytes
      if (ended.outcome == kOk) ++good;
      if (ended.outcome != kOk) ++kinds[std::string(RecordMissName(ended.miss))];
    }
    EXPECT_EQ(good < kRecords, changed) << "round " << round;
    EXPECT_GE(good, kRecords - 2);
    store_.reset();
  }
  EXPECT_GT(kinds["payload_damaged"], rounds);
}

TEST_F(SealedStoreTest, WhatWasErasedOpensWithNoKeyOfTheCaller) {
  SetLogLevel(LogLevel::kError);
  Open();
  PutAll(0, 5, "anna");
  PutAll(20, 5, "berta");
  EXPECT_EQ(Flush(), kOk);
  const Image before = Copy();
  EXPECT_EQ(Erase("anna", 1), kOk);
  EXPECT_EQ(Flush(), kOk);
  store_.reset();
  // Everything that was there, but for the keys, which are those of after: old segments, and epochs
  // that know of no erasure. It could be a snapshot of the disk below this one.
  PutBack(before, [](const std::string& path) { return path.find("KEYS-") == std::string::npos; });
  const auto read = keys::ReadKeys(*files_, "store");
  EXPECT_EQ(read.damaged(), 0);
  ASSERT_NE(read.newest(), nullptr);
  EXPECT_EQ(read.newest()->keys.size(), 1);
  Open();
  for (uint64_t i = 0; i < 5; ++i) {
    EXPECT_NE(Load(Record(i, "anna")).outcome, kOk);
    EXPECT_EQ(Load(Record(20 + i, "berta")).outcome, kOk);
  }
  // With the keys of before it opens: that is what a copy from before the erasure has.
  store_.reset();
  PutBack(before, [](const std::string&) { return true; });
  Open();
  EXPECT_EQ(Load(Record(2, "anna")).outcome, kOk);
}

TEST_F(SealedStoreTest, AnErasureThatACrashCutsOffAnywhereIsDoneOrNotBegun) {
  SetLogLevel(LogLevel::kError);
  for (const bool power : {false, true}) {
    uint64_t done = 0;
    uint64_t half = 0;
    for (uint64_t stop = 1;; ++stop) {
      store_.reset();
      files_ = std::make_unique<FaultyFiles>(
          FaultyFilesOptions{.seed = 100 + stop, .latency_us_max = 100}, clock_);
      Open();
      PutAll(0, 4, "anna");
      PutAll(20, 4, "berta");
      EXPECT_EQ(Flush(), kOk);
      files_->StopAfter(stop);
      store_->Erase(PublisherOf("anna"), 1, 55);
      std::vector<StoreCompletion> ended;
      for (int i = 0; i < 300 && !files_->stopped(); ++i) {
        store_->Tick(ended, 1000);
        if (ended.empty()) clock_.Advance(1000);
      }
      const bool was_confirmed = std::ranges::any_of(
          ended, [](const StoreCompletion& end) { return end.tag == 55 && end.outcome == kOk; });
      const bool stopped = files_->stopped();
      Crash(power);
      EXPECT_EQ(Flush(), kOk);
      uint64_t left = 0;
      for (uint64_t i = 0; i < 4; ++i) {
        left += Load(Record(i, "anna")).outcome == kOk ? 1 : 0;
        EXPECT_EQ(Load(Record(20 + i, "berta")).outcome, kOk) << "stop " << stop;
      }
      EXPECT_TRUE(left == 0 || (left == 4 && !was_confirmed)) << "stop " << stop << ": " << left;
      (left == 0 ? done : half) += 1;
      // The tenant goes on.
      const uint64_t epoch = store_->EpochOf(PublisherOf("anna"));
      EXPECT_EQ(epoch > 0, left == 0) << "stop " << stop;
      PutAll(40, 1, "anna", epoch);
      EXPECT_EQ(Load(Record(40, "anna", epoch)).outcome, kOk);
      if (!stopped) break;
    }
    EXPECT_GT(done, 3);
    EXPECT_GE(half, 1);
  }
}

TEST_F(SealedStoreTest, AnErasureWhoseKeysCannotBeWrittenSaysSoAndIsTriedAgain) {
  SetLogLevel(LogLevel::kOff);
  Open();
  PutAll(0, 3, "anna");
  EXPECT_EQ(Flush(), kOk);
  files_->Obstruct("store/KEYS-1");
  EXPECT_EQ(Erase("anna", 1), kIo);
  EXPECT_EQ(Flush(), kIo);
  EXPECT_EQ(Load(Record(1, "anna")).outcome, kErased);
  files_->MendDisk();
  clock_.Advance(2'000'000);
  std::vector<StoreCompletion> ended;
  store_->Tick(ended, 0);
  EXPECT_EQ(Flush(), kOk);
  EXPECT_EQ(keys::ReadKeys(*files_, "store").newest()->keys.size(), 0);
  EXPECT_EQ(keys::ReadKeys(*files_, "store").damaged(), 0);
}

TEST_F(SealedStoreTest, AnotherKeyOfTheCallerWrapsEverythingAtOnce) {
  Open();
  PutAll(0, 3);
  PutAll(10, 3, "anna");
  EXPECT_EQ(Flush(), kOk);
  ASSERT_TRUE(store_->keys().Rewrap(KeyOf(9)));
  EXPECT_EQ(Load(Record(1)).outcome, kOk);
  EXPECT_THAT(Refusal(keys_), HasSubstr("is not the key that it was made with"));
  keys_ = KeyOf(9);
  Open();
  EXPECT_EQ(Load(Record(1)).outcome, kOk);
  EXPECT_EQ(Load(Record(11, "anna")).outcome, kOk);
}

TEST_F(SealedStoreTest, ARotationThatACrashCutsOffAnywhereLeavesOneOfTheKeys) {
  SetLogLevel(LogLevel::kError);
  std::set<int> keys_seen;
  for (const bool power : {false, true}) {
    for (uint64_t stop = 1;; ++stop) {
      store_.reset();
      files_ = std::make_unique<FaultyFiles>(
          FaultyFilesOptions{.seed = 200 + stop, .latency_us_max = 100}, clock_);
      keys_ = KeyOf(7);
      Open();
      PutAll(0, 3);
      PutAll(10, 3, "anna");
      EXPECT_EQ(Flush(), kOk);
      files_->StopAfter(stop);
      const auto rotated = store_->keys().Rewrap(KeyOf(9));
      const auto renewed = rotated ? store_->RenewKeys() : rotated;
      const bool stopped = files_->stopped();
      if (power) {
        files_->LosePower();
      } else {
        files_->KillProcess();
      }
      store_.reset();
      files_->Restart();
      int opened = 0;
      for (const uint8_t key : {7, 9}) {
        if (!Refusal(KeyOf(key)).empty()) continue;
        keys_ = KeyOf(key);
        opened = key;
      }
      ASSERT_NE(opened, 0) << "stop " << stop;
      if (renewed) {
        EXPECT_EQ(opened, 9);
      }
      keys_seen.insert(opened);
      Open();
      for (uint64_t i = 0; i < 3; ++i) {
        EXPECT_EQ(Load(Record(i)).outcome, kOk) << "stop " << stop;
        EXPECT_EQ(Load(Record(10 + i, "anna")).outcome, kOk) << "stop " << stop;
      }
      PutAll(30, 1, "anna");
      EXPECT_EQ(Load(Record(30, "anna")).outcome, kOk);
      if (!stopped) break;
    }
  }
  EXPECT_THAT(keys_seen, testing::ElementsAre(7, 9));
}

TEST_F(SealedStoreTest, AnOldDataKeyGoesWhenNothingOfItIsLeft) {
  options_.renew_bytes_per_s = 0;
  Open();
  PutAll(0, 10, "anna");
  EXPECT_EQ(Flush(), kOk);
  const PublisherId name = store_->keys().NameOf(PublisherOf("anna"));
  const auto old = store_->keys().KeyFor(name);
  ASSERT_TRUE(old);
  ASSERT_TRUE(store_->RenewKeys());
  const auto now = store_->keys().KeyFor(name);
  ASSERT_TRUE(now);
  EXPECT_NE(now->number, old->number);
  PutAll(100, 3, "anna");
  for (const uint64_t i : {0, 9, 100}) EXPECT_EQ(Load(Record(i, "anna")).outcome, kOk);
  Reopen();
  for (const uint64_t i : {0, 9, 100}) EXPECT_EQ(Load(Record(i, "anna")).outcome, kOk);
  EXPECT_NE(store_->keys().Find(name, old->number), nullptr);
  // Its segments are written anew.
  for (uint64_t i = 200; store_->Stats().evicted < 12 && i < 300; ++i) PutAll(i, 1, "anna");
  clock_.Advance(20'000'000);
  std::vector<StoreCompletion> ended;
  store_->Tick(ended, 0);
  EXPECT_EQ(store_->keys().Find(name, old->number), nullptr);
  EXPECT_NE(store_->keys().Find(name, now->number), nullptr);
  const auto read = keys::ReadKeys(*files_, "store");
  ASSERT_NE(read.newest(), nullptr);
  EXPECT_EQ(read.newest()->keys.size(), 1);
}

TEST_F(SealedStoreTest, ToolsNeedNoKey) {
  Open();
  PutAll(0, 5);
  PutAll(10, 5, "anna");
  EXPECT_EQ(Flush(), kOk);
  store_.reset();
  auto report = VerifyStore(*files_, "store");
  ASSERT_TRUE(report);
  EXPECT_EQ(report->records, 10);
  EXPECT_EQ(report->damaged, 0);
  EXPECT_TRUE(report->is_encrypted);
  EXPECT_EQ(report->keys, 2);
  (*files_->Contents("store/segment-000000"))[8192] ^= std::byte{1};
  (*files_->Contents("store/KEYS-0"))[64] ^= std::byte{1};
  report = VerifyStore(*files_, "store");
  ASSERT_TRUE(report);
  EXPECT_EQ(report->damaged, 2);
  report = RepairStore(*files_, "store");
  ASSERT_TRUE(report);
  EXPECT_EQ(report->damaged, 0);
  Open();
  EXPECT_EQ(Load(Record(11, "anna")).outcome, kOk);
}

TEST_F(SealedStoreTest, KeysTakeTheirShareOfTheCap) {
  Open();
  for (uint64_t i = 0; i < 80; ++i) PutAll(i, 1);
  EXPECT_LE(DiskBytes(), options_.bytes_cap);
  EXPECT_GT(store_->Stats().evicted, 0);
}

TEST_F(SealedStoreTest, TenantsBeyondTheKeysOfItsCapAreRefused) {
  SetLogLevel(LogLevel::kOff);
  options_.limits = {};
  Open();
  const uint64_t most = keys::KeysMax(options_.bytes_cap);
  for (uint64_t i = 0; i < most; ++i) {
    ASSERT_TRUE(store_->keys().KeyFor({static_cast<uint8_t>(i + 1)}));
  }
  Put(Record(1, "anna"));
  EXPECT_EQ(WaitOne().outcome, kNoSpace);
}

}  // namespace
}  // namespace quire::tier
