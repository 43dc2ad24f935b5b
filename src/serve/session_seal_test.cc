// Sessions in an encrypted directory.
#include "serve/session_seal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>

#include "base/log.h"
#include "env/faulty_files.h"
#include "serve/session_store.h"

namespace quire::serve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using TokenList = std::vector<TokenId>;

class SealedSessionsTest : public testing::Test {
 protected:
  ~SealedSessionsTest() override { SetLogLevel(LogLevel::kWarn); }

  static StoreKeys Key(uint8_t number) { return {.key = std::vector<uint8_t>(32, number)}; }

  void Open(const StoreKeys& keys = Key(7)) {
    store_.reset();
    auto opened = SessionStore::Open(files_, OptionsWith(keys));
    ASSERT_TRUE(opened) << opened.error().message;
    store_ = *std::move(opened);
  }
  std::string Refusal(const StoreKeys& keys) {
    store_.reset();
    const auto opened = SessionStore::Open(files_, OptionsWith(keys));
    return opened ? "" : opened.error().message;
  }
  SessionStoreOptions OptionsWith(const StoreKeys& keys) const {
    return {.directory = "sessions",
            .fingerprint = FingerprintOf({}, "tokenizer"),
            .keys = keys,
            .unix_us = [] { return uint64_t{1}; }};
  }

  template <typename Ask>
  Result<void> Settled(const Ask& ask) {
    Result<void> outcome = Fail(ErrorCode::kIo, "it did not end");
    ask([&](Result<void> settled) { outcome = std::move(settled); });
    while (store_->Tick()) {
    }
    return outcome;
  }
  Result<void> Write(const std::string& name, const std::string& tenant, const TokenList& text) {
    return Settled([&](OnSettled settled) {
      store_->Write({.head = {.name = name, .tenant = tenant}, .text = text}, std::move(settled));
    });
  }
  Result<void> RemoveAllOf(const std::string& tenant) {
    return Settled([&](OnSettled settled) { store_->RemoveAllOf(tenant, std::move(settled)); });
  }
  Result<SessionRecord> Read(const std::string& name) {
    Result<SessionRecord> outcome = Fail(ErrorCode::kIo, "it did not end");
    store_->Read(name, [&](Result<SessionRecord> record) { outcome = std::move(record); });
    while (store_->Tick()) {
    }
    return outcome;
  }
  std::vector<std::string> Found() const {
    std::vector<std::string> names;
    for (const StoredSession& session : store_->found()) {
      if (!session.unusable) names.push_back(session.head.name);
    }
    return names;
  }
  std::vector<std::string> SessionFiles() const {
    std::vector<std::string> paths;
    for (const std::string& path : files_.Paths()) {
      if (path.find("/.") == std::string::npos) paths.push_back(path);
    }
    return paths;
  }
  bool OnDisk(std::span<const std::byte> wanted) {
    return std::ranges::any_of(files_.Paths(), [&](const std::string& path) {
      return path.find(reinterpret_cast<const char*>(wanted.data()), 0, wanted.size()) !=
                 std::string::npos ||
             !std::ranges::search(*files_.Contents(path), wanted).empty();
    });
  }
  bool OnDisk(std::string_view wanted) { return OnDisk(std::as_bytes(std::span(wanted))); }

  ManualClock clock_;
  FaultyFiles files_{{}, clock_};
  std::unique_ptr<SessionStore> store_;
};

TEST_F(SealedSessionsTest, GoOnAfterARestartAndSayNothingOnTheDisk) {
  Open();
  TokenList text(1000);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<TokenId>(1'000'003 * i);
  ASSERT_TRUE(Write("holiday", "alice", text));
  ASSERT_TRUE(Write("empty", "alice", {}));
  ASSERT_TRUE(Write("tax", "bertram", {5, 6, 7}));
  text.push_back(99);
  ASSERT_TRUE(Write("holiday", "alice", text));
  EXPECT_EQ(SessionFiles().size(), 3);
  for (const bool restarted : {false, true}) {
    if (restarted) Open();
    EXPECT_EQ(Read("holiday")->text, text);
    EXPECT_EQ(Read("empty")->text, TokenList());
    EXPECT_EQ(Read("tax")->text, (TokenList{5, 6, 7}));
  }
  EXPECT_THAT(Found(), ElementsAre("empty", "holiday", "tax"));
  for (const char* word : {"holiday", "tax", "alice", "bertram"}) EXPECT_FALSE(OnDisk(word));
  EXPECT_FALSE(OnDisk(std::as_bytes(std::span(text).subspan(20, 3))));
  EXPECT_FALSE(OnDisk(std::as_bytes(std::span(text).last(2))));
}

TEST_F(SealedSessionsTest, AnotherKeyOrNoneIsRefused) {
  Open();
  ASSERT_TRUE(Write("a", "alice", {1, 2, 3}));
  EXPECT_THAT(Refusal(Key(8)), HasSubstr("is not the key that it was made with"));
  EXPECT_THAT(Refusal({}), HasSubstr("sessions: these sessions are encrypted: give the key"));
  Open();
  EXPECT_THAT(Found(), ElementsAre("a"));
}

TEST_F(SealedSessionsTest, PlainSessionsStayPlain) {
  Open({});
  ASSERT_TRUE(Write("KEYS-0", "alice", {1, 2, 3}));  // also one that is called as a file of keys is
  EXPECT_THAT(Refusal(Key(7)), HasSubstr("it is not encrypted"));
  Open({});
  EXPECT_THAT(Found(), ElementsAre("KEYS-0"));
}

TEST_F(SealedSessionsTest, AChangedOrSwappedFileIsRefusedAndLeftAlone) {
  SetLogLevel(LogLevel::kOff);
  Open();
  ASSERT_TRUE(Write("a", "alice", {1, 2, 3}));
  ASSERT_TRUE(Write("b", "alice", {4, 5, 6}));
  const auto paths = SessionFiles();
  ASSERT_EQ(paths.size(), 2);
  std::swap(*files_.Contents(paths[0]), *files_.Contents(paths[1]));
  Open();
  EXPECT_THAT(Found(), ElementsAre());
  EXPECT_EQ(store_->found().size(), 2);
  std::swap(*files_.Contents(paths[0]), *files_.Contents(paths[1]));
  std::vector<std::byte>& file = *files_.Contents(paths[0]);
  const auto before = file;
  for (size_t at = 0; at < file.size(); ++at) {
    file[at] ^= std::byte{4};
    Open();
    const auto read_a = Read("a");
    const auto read_b = Read("b");
    EXPECT_NE(read_a.has_value(), read_b.has_value()) << at;
    file = before;
  }
}

TEST_F(SealedSessionsTest, WhatWasErasedCannotBeOpenedAgain) {
  SetLogLevel(LogLevel::kOff);
  Open();
  ASSERT_TRUE(Write("a", "alice", {1, 2, 3}));
  ASSERT_TRUE(Write("b", "bertram", {4, 5, 6}));
  std::map<std::string, std::vector<std::byte>> kept;
  for (const std::string& path : SessionFiles()) kept[path] = *files_.Contents(path);
  ASSERT_TRUE(RemoveAllOf("alice"));
  EXPECT_EQ(SessionFiles().size(), 1);
  store_.reset();
  for (const auto& [path, bytes] : kept) {  // from a copy of the disk
    const auto file = files_.Open(path, {.create = true});
    ASSERT_TRUE(file);
    ASSERT_TRUE(files_.Resize(*file, bytes.size()));
    ASSERT_TRUE(files_.WriteAt(*file, 0, bytes));
    files_.Close(*file);
  }
  Open();
  EXPECT_THAT(Found(), ElementsAre("b"));
  EXPECT_FALSE(Read("a"));
  EXPECT_EQ(SessionFiles().size(), 1);  // it goes again
  ASSERT_TRUE(Write("a", "alice", {7}));
  EXPECT_EQ(Read("a")->text, TokenList{7});
}

TEST_F(SealedSessionsTest, OtherKeysComeWithTheNextTurnAndTheOldOnesGo) {
  const auto keys = [&] { return keys::ReadKeys(files_, "sessions/.keys").newest()->keys.size(); };
  Open();
  ASSERT_TRUE(Write("a", "alice", {1, 2, 3}));
  ASSERT_TRUE(Write("b", "alice", {4}));
  EXPECT_EQ(keys(), 1);
  store_.reset();
  ASSERT_TRUE(SessionStore::RotateKeys(files_, "sessions", Key(7), Key(8), true));
  ASSERT_TRUE(SessionStore::RotateKeys(files_, "none", Key(7), Key(8), true));
  EXPECT_EQ(keys(), 2);
  EXPECT_THAT(Refusal(Key(7)), HasSubstr("is not the key"));
  Open(Key(8));
  EXPECT_EQ(Read("a")->text, (TokenList{1, 2, 3}));
  ASSERT_TRUE(Write("a", "alice", {1, 2, 3, 4}));
  Open(Key(8));
  EXPECT_EQ(Read("b")->text, TokenList{4});
  EXPECT_EQ(keys(), 2);
  ASSERT_TRUE(Write("b", "alice", {4, 5}));
  Open(Key(8));
  EXPECT_EQ(keys(), 1);
  EXPECT_EQ(Read("a")->text, (TokenList{1, 2, 3, 4}));
  EXPECT_EQ(Read("b")->text, (TokenList{4, 5}));
  // Asked again it goes on, and other keys than these are refused.
  store_.reset();
  EXPECT_TRUE(SessionStore::RotateKeys(files_, "sessions", Key(7), Key(8), false));
  EXPECT_FALSE(SessionStore::RotateKeys(files_, "sessions", Key(1), Key(2), false));
}

TEST_F(SealedSessionsTest, AnErasureThatACrashCutsOffTakesAllOrIsNotBegun) {
  SetLogLevel(LogLevel::kOff);
  bool stopped = true;
  for (uint64_t stop = 1; stopped; ++stop) {
    store_.reset();
    files_.LosePower();
    files_.Restart();
    for (const std::string& path : files_.Paths()) ASSERT_TRUE(files_.Remove(path));
    ASSERT_TRUE(files_.SyncDirectory("sessions") || true);
    Open();
    ASSERT_TRUE(Write("a", "alice", {1, 2, 3}));
    ASSERT_TRUE(Write("b", "alice", {1, 2, 3, 4}));
    ASSERT_TRUE(Write("c", "bertram", {4, 5, 6}));
    files_.StopAfter(stop);
    const auto removed = RemoveAllOf("alice");
    stopped = files_.stopped();
    files_.KillProcess();
    store_.reset();
    files_.Restart();
    files_.StopAfter(~uint64_t{0});
    Open();
    const auto found = Found();
    EXPECT_TRUE(found == std::vector<std::string>{"c"} ||
                (!removed && found == (std::vector<std::string>{"a", "b", "c"})))
        << "stop " << stop << ", " << found.size();
    EXPECT_EQ(Read("c")->text, (TokenList{4, 5, 6}));
  }
}

}  // namespace
}  // namespace quire::serve
