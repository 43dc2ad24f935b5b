// The store of sessions over files that fail and crash as they are told.
#include "serve/session_store.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "env/faulty_files.h"

namespace quire::serve {
namespace {

constexpr const char* kDirectory = "sessions";

class SessionStoreTest : public testing::Test {
 protected:
  SessionStoreTest() { Open(); }

  void Open() {
    store_.reset();
    store_ = SessionStore::Open(files_, options_).value();
  }
  /// The machine loses power, and starts again.
  void Crash() {
    files_.LosePower();
    store_.reset();
    files_.Restart();
    Open();
  }

  static SessionRecord Of(const std::string& name, std::vector<TokenId> text) {
    return {.head = {.name = name, .tenant = "alice"}, .text = std::move(text)};
  }

  template <typename Ask>
  Result<void> Settled(const Ask& ask) {
    std::optional<Result<void>> outcome;
    ask([&](Result<void> settled) { outcome = std::move(settled); });
    EXPECT_FALSE(outcome.has_value()) << "nothing happens in the call";
    while (store_->Tick()) {
    }
    return outcome.value();
  }
  Result<void> Write(SessionRecord record) {
    return Settled(
        [&](OnSettled settled) { store_->Write(std::move(record), std::move(settled)); });
  }
  Result<void> Remove(const std::string& name) {
    return Settled([&](OnSettled settled) { store_->Remove(name, std::move(settled)); });
  }
  Result<void> RemoveAllOf(const std::string& tenant) {
    return Settled([&](OnSettled settled) { store_->RemoveAllOf(tenant, std::move(settled)); });
  }
  /// Whether any file has it, open ones too.
  bool IsOnDisk(const std::vector<TokenId>& text) {
    const auto needle = std::as_bytes(std::span(text));
    return std::ranges::any_of(files_.Paths(), [&](const std::string& path) {
      return !std::ranges::search(*files_.Contents(path), needle).empty();
    });
  }
  Result<SessionRecord> Read(const std::string& name) {
    std::optional<Result<SessionRecord>> outcome;
    store_->Read(name, [&](Result<SessionRecord> record) { outcome = std::move(record); });
    while (store_->Tick()) {
    }
    return outcome.value();
  }
  std::vector<TokenId> TextOf(const std::string& name) { return Read(name).value().text; }
  std::vector<std::byte>& FileOf(const std::string& name) {
    return *files_.Contents(std::string(kDirectory) + "/" + name);
  }
  std::vector<std::string> NamesFound() const {
    std::vector<std::string> names;
    for (const StoredSession& session : store_->found()) names.push_back(session.head.name);
    return names;
  }

  ManualClock clock_;
  FaultyFiles files_{{}, clock_};
  uint64_t unix_us_ = 1'000'000;
  SessionStoreOptions options_{.directory = kDirectory,
                               .fingerprint = FingerprintOf({}, "tokenizer"),
                               .unix_us = [this] { return unix_us_; }};
  std::unique_ptr<SessionStore> store_;
};

TEST_F(SessionStoreTest, WhatSettledOutlivesACrash) {
  EXPECT_TRUE(store_->found().empty());
  SessionRecord record = Of("a", {1, 2, 3});
  record.head.opened_unix_us = 17;
  ASSERT_TRUE(Write(record).has_value());
  ASSERT_TRUE(Write(Of("b", {})).has_value());
  unix_us_ = 2'000'000;
  ASSERT_TRUE(Write(Of("a", {1, 2, 3, 4})).has_value());
  ASSERT_TRUE(Remove("b").has_value());
  Crash();
  EXPECT_EQ(NamesFound(), (std::vector<std::string>{"a"}));
  EXPECT_EQ(store_->found()[0].head.tenant, "alice");
  EXPECT_EQ(store_->found()[0].head.tokens, 4u);
  EXPECT_EQ(store_->found()[0].head.used_unix_us, 2'000'000u);
  EXPECT_EQ(TextOf("a"), (std::vector<TokenId>{1, 2, 3, 4}));
  EXPECT_EQ(Read("b").error().code, ErrorCode::kNotFound);
}

TEST_F(SessionStoreTest, ACrashAtAnyPointLeavesTheOldOrTheNew) {
  const std::vector<TokenId> before = {1, 2, 3};
  const std::vector<TokenId> after = {1, 2, 3, 4, 5};
  for (const bool removes : {false, true}) {
    bool settled = false;
    for (uint64_t operations = 1; !settled; ++operations) {
      ASSERT_LT(operations, 40u);
      ASSERT_TRUE(Write(Of("a", before)).has_value());
      files_.StopAfter(operations);
      settled = (removes ? Remove("a") : Write(Of("a", after))).has_value();
      Crash();
      const auto read = Read("a");
      if (settled && removes) {
        EXPECT_EQ(read.error().code, ErrorCode::kNotFound);
      } else if (settled) {
        EXPECT_EQ(read.value().text, after);
      } else if (removes) {
        EXPECT_TRUE(!read || read->text == before);
      } else {
        EXPECT_TRUE(read.value().text == before || read->text == after);
      }
      // Nothing else stays, and nothing that cannot be read is listed.
      for (const std::string& path : files_.Paths()) {
        EXPECT_TRUE(path == "sessions/a" || path == "sessions/.lock") << path;
      }
      for (const StoredSession& session : store_->found()) EXPECT_FALSE(session.unusable);
    }
  }
}

TEST_F(SessionStoreTest, NoTextStaysOnTheDiskAfterItsSession) {
  const std::vector<TokenId> text(100, 0x51a7e5);
  ASSERT_TRUE(Write(Of("a", text)).has_value());
  ASSERT_TRUE(Write(Of("b", text)).has_value());
  // What a reader of the raw disk would see: the blocks are still there.
  const FileId replaced = files_.Open("sessions/a", {.read_only = true}).value();
  const FileId removed = files_.Open("sessions/b", {.read_only = true}).value();
  ASSERT_TRUE(Write(Of("a", {1})).has_value());
  ASSERT_TRUE(Remove("b").has_value());
  for (const FileId file : {replaced, removed}) {
    std::vector<std::byte> bytes(files_.Length(file).value());
    ASSERT_EQ(files_.ReadAt(file, 0, bytes).value(), bytes.size());
    EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte each) { return each == std::byte{0}; }));
    files_.Close(file);
  }
}

TEST_F(SessionStoreTest, AFullDiskLeavesTheOldFile) {
  ASSERT_TRUE(Write(Of("a", {1, 2, 3})).has_value());
  files_.set_disk_bytes(files_.bytes_used() + 40);
  EXPECT_EQ(Write(Of("a", std::vector<TokenId>(50, 7))).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(Write(Of("b", {1, 2, 3})).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(TextOf("a"), (std::vector<TokenId>{1, 2, 3}));
  files_.set_disk_bytes(1 << 20);
  EXPECT_TRUE(Write(Of("a", {4})).has_value());
  EXPECT_EQ(TextOf("a"), (std::vector<TokenId>{4}));
}

TEST_F(SessionStoreTest, CountAndBytesAreLimited) {
  options_.sessions_max = 2;
  options_.bytes_max = 700;
  Open();
  ASSERT_TRUE(Write(Of("a", {1})).has_value());
  ASSERT_TRUE(Write(Of("b", {1})).has_value());
  EXPECT_EQ(Write(Of("c", {1})).error().code, ErrorCode::kNoSpace);
  ASSERT_TRUE(Remove("b").has_value());
  EXPECT_TRUE(Write(Of("c", {1})).has_value());
  EXPECT_EQ(Write(Of("c", std::vector<TokenId>(110))).error().code, ErrorCode::kNoSpace);
  EXPECT_TRUE(Write(Of("c", std::vector<TokenId>(80))).has_value());
  Open();  // they count what was there
  EXPECT_EQ(Write(Of("d", {1})).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(Write(Of("c", std::vector<TokenId>(110))).error().code, ErrorCode::kNoSpace);
}

TEST_F(SessionStoreTest, WhatJustFitsIsWrittenAndRead) {
  const std::vector<TokenId> text(10, 7);
  const std::vector<TokenId> longer(60, 7);
  options_.bytes_max = EncodeSession(Of("a", longer)).size();  // or two of `text`
  Open();
  ASSERT_TRUE(Write(Of("a", text)).has_value());
  ASSERT_TRUE(Write(Of("b", text)).has_value());
  EXPECT_EQ(Write(Of("c", {})).error().code, ErrorCode::kNoSpace);
  EXPECT_TRUE(Write(Of("a", text)).has_value());  // takes the place of itself
  ASSERT_TRUE(Remove("b").has_value());
  EXPECT_TRUE(Write(Of("a", longer)).has_value());  // all of it
  EXPECT_EQ(TextOf("a"), longer);
  EXPECT_EQ(Write(Of("b", {})).error().code, ErrorCode::kNoSpace);
}

TEST_F(SessionStoreTest, AllOfATenantAreRemovedAndNobodyElses) {
  ASSERT_TRUE(Write(Of("a", {1})).has_value());
  ASSERT_TRUE(Write(Of("b", {2})).has_value());
  SessionRecord other = Of("c", {3});
  other.head.tenant = "bob";
  ASSERT_TRUE(Write(other).has_value());
  Open();  // those that this process did not write too
  ASSERT_TRUE(Write(Of("d", {4})).has_value());
  ASSERT_TRUE(RemoveAllOf("alice").has_value());
  EXPECT_EQ(files_.Paths(), (std::vector<std::string>{"sessions/.lock", "sessions/c"}));
  EXPECT_EQ(TextOf("c"), std::vector<TokenId>{3});
  EXPECT_EQ(store_->ClaimStored("a").error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(RemoveAllOf("alice").has_value());
  // What cannot be removed is said.
  ASSERT_TRUE(Write(Of("a", {1})).has_value());
  files_.StopAfter(0);
  EXPECT_EQ(RemoveAllOf("alice").error().code, ErrorCode::kIo);
}

// Whatever call of the disk fails on the way: of what was ended, written or written anew before.
TEST_F(SessionStoreTest, AnErasureThatIsConfirmedIsTrue) {
  const std::vector<TokenId> text(20, 0x51a7e5);
  constexpr uint64_t kWorks = ~uint64_t{0};
  enum class Before { kRemoves, kWrites, kRewrites };
  for (const Before before : {Before::kRemoves, Before::kWrites, Before::kRewrites}) {
    bool failed = true;
    for (uint64_t operations = 1; failed; ++operations) {
      ASSERT_LT(operations, 40u);
      ASSERT_TRUE(Write(Of("a", text)).has_value());
      const FileId of_a = files_.Open("sessions/a", {.read_only = true}).value();
      files_.StopAfter(operations);
      if (before == Before::kRemoves) (void)Remove("a");
      if (before == Before::kWrites) (void)Write(Of("b", text));
      if (before == Before::kRewrites) (void)Write(Of("a", {1}));
      failed = files_.stopped();
      if (failed && IsOnDisk(text)) {
        const auto erased = RemoveAllOf("alice");
        EXPECT_EQ(erased.error().code, ErrorCode::kIo) << operations;
        EXPECT_NE(erased.error().message.find("session '"), std::string::npos)
            << erased.error().message;
      }
      files_.StopAfter(kWorks);
      ASSERT_TRUE(RemoveAllOf("alice").has_value()) << operations;
      EXPECT_FALSE(IsOnDisk(text)) << operations;
      EXPECT_EQ(files_.Paths(), std::vector<std::string>{"sessions/.lock"}) << operations;
      std::vector<std::byte> bytes(files_.Length(of_a).value());
      ASSERT_EQ(files_.ReadAt(of_a, 0, bytes).value(), bytes.size());
      EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte each) { return each == std::byte{0}; }));
      files_.Close(of_a);
      EXPECT_TRUE(Write(Of("a", {1})).has_value());
      ASSERT_TRUE(Remove("a").has_value());
    }
  }
}

TEST_F(SessionStoreTest, AnErasureNamesTheSessionThatIsLeft) {
  ASSERT_TRUE(Write(Of("gone", {1})).has_value());
  ASSERT_TRUE(Write(Of("left", {2})).has_value());
  files_.StopAfter(6);  // of the six that the first one needs
  const auto erased = RemoveAllOf("alice");
  EXPECT_NE(erased.error().message.find("session 'left'"), std::string::npos)
      << erased.error().message;
  EXPECT_EQ(files_.Paths(), (std::vector<std::string>{"sessions/.lock", "sessions/left"}));
}

TEST_F(SessionStoreTest, AFileOfNobodyKnownMayBeTheirs) {
  ASSERT_TRUE(Write(Of("a", {1})).has_value());
  ASSERT_TRUE(Write(Of("b", {1})).has_value());
  FileOf("b")[100] ^= std::byte{4};
  Open();
  const auto erased = RemoveAllOf("alice");
  EXPECT_EQ(erased.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(erased.error().message.find("session 'b'"), std::string::npos);
  EXPECT_EQ(files_.Paths(), (std::vector<std::string>{"sessions/.lock", "sessions/b"}));
  ASSERT_TRUE(Remove("b").has_value());
  EXPECT_TRUE(RemoveAllOf("alice").has_value());
}

TEST_F(SessionStoreTest, WhatACrashLeftIsErasedOnceItCanBe) {
  const std::vector<TokenId> text(20, 0x51a7e5);
  ASSERT_TRUE(Write(Of("a", text)).has_value());
  files_.StopAfter(3);  // renamed, and the directory is synced
  EXPECT_FALSE(Remove("a").has_value());
  files_.KillProcess();
  store_.reset();
  files_.Restart();
  files_.StopAfter(2);  // the disk fails again once it is listed
  auto opened = SessionStore::Open(files_, options_);
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  store_ = *std::move(opened);
  ASSERT_TRUE(IsOnDisk(text));
  EXPECT_EQ(RemoveAllOf("alice").error().code, ErrorCode::kIo);
  files_.StopAfter(~uint64_t{0});
  EXPECT_TRUE(RemoveAllOf("alice").has_value());
  EXPECT_EQ(files_.Paths(), std::vector<std::string>{"sessions/.lock"});
}

TEST_F(SessionStoreTest, WhatIsDamagedIsNamedAndLeftAlone) {
  const char* const names[] = {"flipped", "cut", "zeroed", "newer", "tail", "fine"};
  for (const char* const name : names) ASSERT_TRUE(Write(Of(name, {1, 2, 3})).has_value());
  FileOf("flipped")[100] ^= std::byte{4};
  FileOf("cut").resize(40);
  std::ranges::fill(FileOf("zeroed"), std::byte{0});
  FileOf("newer")[8] = std::byte{4};
  FileOf("tail").back() ^= std::byte{1};  // found when the text is read
  testing::internal::CaptureStderr();
  Open();
  const std::string said = testing::internal::GetCapturedStderr();
  for (const StoredSession& session : store_->found()) {
    const std::string& name = session.head.name;
    const bool usable = name == "fine" || name == "tail";
    EXPECT_EQ(session.unusable.has_value(), !usable) << name;
    EXPECT_EQ(said.find("sessions/" + name + ":") != std::string::npos, !usable) << said;
    EXPECT_EQ(store_->ClaimStored(name).has_value(), usable) << name;
    EXPECT_EQ(Read(name).has_value(), name == "fine") << name;
    EXPECT_NE(files_.Contents("sessions/" + name), nullptr);
  }
  EXPECT_EQ(Read("newer").error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(Read("tail").error().code, ErrorCode::kCorrupt);
  EXPECT_NE(Read("tail").error().message.find("sessions/tail"), std::string::npos);
  // It can be ended.
  EXPECT_TRUE(Remove("zeroed").has_value());
  EXPECT_EQ(files_.Contents("sessions/zeroed"), nullptr);
  // A file under another name is none of that name.
  FileOf("cut") = FileOf("fine");
  EXPECT_EQ(Read("cut").error().code, ErrorCode::kCorrupt);
}

TEST_F(SessionStoreTest, AnotherModelCannotUseIt) {
  ASSERT_TRUE(Write(Of("a", {1, 2, 3})).has_value());
  const SessionFingerprint own = options_.fingerprint;
  options_.fingerprint = FingerprintOf({}, "another tokenizer");
  Open();
  EXPECT_EQ(store_->found()[0].unusable->code, ErrorCode::kUnsupported);
  EXPECT_EQ(store_->ClaimStored("a").error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(store_->ClaimNew("a").error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(Read("a").has_value());
  options_.fingerprint = own;
  Open();
  EXPECT_TRUE(store_->ClaimStored("a").has_value());
  EXPECT_EQ(TextOf("a"), (std::vector<TokenId>{1, 2, 3}));
}

TEST_F(SessionStoreTest, ANameHasOneOwner) {
  ASSERT_TRUE(store_->ClaimNew("a").has_value());
  EXPECT_EQ(store_->ClaimNew("a").error().code, ErrorCode::kBusy);
  EXPECT_EQ(store_->ClaimStored("a").error().code, ErrorCode::kBusy);
  ASSERT_TRUE(Write(Of("a", {1})).has_value());
  store_->GiveBack("a");
  EXPECT_EQ(store_->ClaimNew("a").error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(store_->ClaimStored("a").has_value());
  EXPECT_EQ(store_->ClaimStored("a").error().code, ErrorCode::kBusy);
  EXPECT_EQ(store_->ClaimNew("a").error().code, ErrorCode::kBusy);
  EXPECT_EQ(store_->ClaimStored("b").error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(Remove("a").has_value());
  EXPECT_TRUE(store_->ClaimNew("a").has_value());
  EXPECT_EQ(store_->ClaimNew("../a").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(SessionStore::Open(files_, options_).error().code, ErrorCode::kBusy);
}

TEST_F(SessionStoreTest, NobodyIsCalledAfterDetach) {
  bool called = false;
  store_->Write(Of("a", {1}), [&](const Result<void>&) { called = true; });
  store_->Detach();
  while (store_->Tick()) {
  }
  EXPECT_FALSE(called);
  EXPECT_EQ(TextOf("a"), (std::vector<TokenId>{1}));
}

uint64_t OpenDescriptors() {
  uint64_t count = 0;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    count += each.exists() ? 1 : 0;
  }
  return count;
}

/// Files whose directories may refuse to be synced.
class UnsyncedFiles : public FaultyFiles {
 public:
  using FaultyFiles::FaultyFiles;
  Result<void> SyncDirectory(const std::string& path) override {
    if (fails) return Fail(ErrorCode::kIo, path + ": sync: it fails");
    return FaultyFiles::SyncDirectory(path);
  }
  bool fails = false;
};

// As long as a new file's name may be lost, a crash may bring the old one back.
TEST(SessionStoreFilesTest, ATextIsErasedOnceItsNameIsAnothersForGood) {
  uint64_t old_ones = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    ManualClock clock;
    UnsyncedFiles files({.seed = seed}, clock);
    const SessionStoreOptions options{.directory = kDirectory, .unix_us = [] { return 1; }};
    auto store = SessionStore::Open(files, options).value();
    const auto turn = [&] {
      while (store->Tick()) {
      }
    };
    const auto write = [&](std::vector<TokenId> text) {
      bool settled = false;
      store->Write({.head = {.name = "a"}, .text = std::move(text)},
                   [&](const Result<void>& outcome) { settled = outcome.has_value(); });
      turn();
      return settled;
    };
    ASSERT_TRUE(write({1}));
    files.fails = true;
    ASSERT_FALSE(write({1, 2}));
    store->Read("a", [](const Result<SessionRecord>&) {});  // syncs nothing
    turn();
    files.LosePower();
    store.reset();
    files.Restart();
    files.fails = false;
    store = SessionStore::Open(files, options).value();
    ASSERT_EQ(store->found().size(), 1);
    ASSERT_FALSE(store->found()[0].unusable) << store->found()[0].unusable->message;
    old_ones += store->found()[0].head.tokens == 1 ? 1 : 0;
  }
  EXPECT_GT(old_ones, 0);
  EXPECT_LT(old_ones, 40);
}

/// Files of which one may refuse to be opened.
class RefusingFiles : public FaultyFiles {
 public:
  using FaultyFiles::FaultyFiles;
  Result<FileId> Open(const std::string& path, const OpenOptions& options) override {
    if (path == refused) return Fail(ErrorCode::kIo, path + ": open: it fails");
    return FaultyFiles::Open(path, options);
  }
  std::string refused;
};

// Its text could never be overwritten: nothing would reach it.
TEST(SessionStoreFilesTest, AFileThatCannotBeOpenedIsNotReplaced) {
  ManualClock clock;
  RefusingFiles files({}, clock);
  const auto store =
      SessionStore::Open(files, {.directory = kDirectory, .unix_us = [] { return 1; }}).value();
  const auto write = [&](std::vector<TokenId> text) {
    bool settled = false;
    store->Write({.head = {.name = "a"}, .text = std::move(text)},
                 [&](const Result<void>& outcome) { settled = outcome.has_value(); });
    while (store->Tick()) {
    }
    return settled;
  };
  const std::string path = std::string(kDirectory) + "/a";
  ASSERT_TRUE(write({1, 2, 3}));
  const std::vector<std::byte> before = *files.Contents(path);
  files.refused = path;
  EXPECT_FALSE(write({1, 2, 3, 4}));
  EXPECT_EQ(*files.Contents(path), before);
  files.refused.clear();
  EXPECT_TRUE(write({1, 2, 3, 4}));
}

TEST(SessionStoreFilesTest, NoFileStaysOpen) {
  const std::string directory = testing::TempDir() + "quire_sessions_open";
  std::filesystem::remove_all(directory);
  const auto files = MakeFiles({.threads_only = true}).value();
  const uint64_t before = OpenDescriptors();
  {
    const auto open = [&] {
      return SessionStore::Open(
                 *files, {.directory = directory, .bytes_max = 1000, .unix_us = [] { return 1; }})
          .value();
    };
    auto store = open();
    const uint64_t lock = OpenDescriptors() - before;
    int settled = 0;
    const auto count = [&](const Result<void>&) { ++settled; };
    for (const char* const name : {"a", "b", "a", "a"}) {
      store->Write({.head = {.name = name}, .text = {1}}, count);
    }
    store->Write({.head = {.name = "a"}, .text = std::vector<TokenId>(1000)}, count);  // too large
    store->Remove("b", count);
    store->Read("a", [&](const Result<SessionRecord>& read) { settled += read.has_value(); });
    while (store->Tick()) {
    }
    EXPECT_EQ(settled, 7);
    EXPECT_EQ(OpenDescriptors(), before + lock);
    store.reset();
    EXPECT_EQ(OpenDescriptors(), before);
    store = open();
    EXPECT_EQ(store->found().size(), 1u);
    EXPECT_EQ(OpenDescriptors(), before + lock);
  }
  std::filesystem::remove_all(directory);
}

TEST(SessionStoreFilesTest, WhatCannotBeReadIsNotConfirmedAsRemoved) {
  const std::string directory = testing::TempDir() + "quire_sessions_unreadable";
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory + "/a");  // no file
  const auto files = MakeFiles({.threads_only = true}).value();
  const auto store =
      SessionStore::Open(*files, {.directory = directory, .unix_us = [] { return 1; }}).value();
  int failed = 0;
  const auto count = [&](const Result<void>& outcome) { failed += outcome ? 0 : 1; };
  store->RemoveAllOf("alice", count);
  store->Remove("a", count);
  while (store->Tick()) {
  }
  EXPECT_EQ(failed, 2);
  std::filesystem::remove_all(directory);
}

TEST(SessionStoreFilesTest, FilesAreTheirOwnersAlone) {
  const std::string directory = testing::TempDir() + "quire_sessions_mode";
  std::filesystem::remove_all(directory);
  const auto files = MakeFiles({.threads_only = true}).value();
  {
    const auto store =
        SessionStore::Open(*files, {.directory = directory, .unix_us = [] { return 1; }}).value();
    store->Start();
    std::atomic<bool> settled = false;
    store->Write({.head = {.name = "a"}, .text = {1}},
                 [&](const Result<void>& outcome) { settled = outcome.has_value(); });
    while (!settled) std::this_thread::yield();
  }
  struct stat file{};
  ASSERT_EQ(stat((directory + "/a").c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
  ASSERT_EQ(stat(directory.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0700u);
  const auto again =
      SessionStore::Open(*files, {.directory = directory, .unix_us = [] { return 1; }});
  EXPECT_EQ(again.value()->found().size(), 1u);
}

}  // namespace
}  // namespace quire::serve
