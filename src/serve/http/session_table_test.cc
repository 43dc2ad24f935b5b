// Sessions by their names: whose they are, how old, and what becomes of them after a restart.
#include "serve/http/session_table.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "env/clock.h"
#include "env/files.h"
#include "serve/http/test_service.h"
#include "serve/session_store.h"

namespace quire::serve::http {
namespace {

class SessionTableTest : public WithService {
 protected:
  SessionTableTest() {
    std::string name = (std::filesystem::temp_directory_path() / "quire_http_XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
    clock_ = &now_;
    Start("one model");
  }
  ~SessionTableTest() override {
    Stop();
    std::filesystem::remove_all(directory_);
  }

  void Stop() {
    table_.reset();
    service_.reset();
    driver_.reset();
    engine_.reset();
    cache_.reset();
    store_.reset();
  }
  void Start(std::string_view model, SessionLimits limits = {}) {
    store_ =
        SessionStore::Open(*files_, {.directory = directory_ + "/sessions",
                                     .fingerprint = FingerprintOf({}, model),
                                     .unix_us = [this] { return unix_us_ + now_.NowMicros(); }})
            .value();
    store_->Start();
    sessions_ = store_.get();
    Make();
    alice_.tenant = cache_->AddTenant({.name = "alice"}).value();
    bob_.tenant = cache_->AddTenant({.name = "bob"}).value();
    table_.emplace(*engine_, limits);
    table_->Restore(*store_, *cache_, now_.NowMicros());
  }
  std::string Open(const Caller& caller) {
    return table_->Open(caller, {}, "", now_.NowMicros()).value()["id"];
  }
  OrderedJson Get(const Caller& caller, const std::string& name) {
    return table_->Get(caller, name, now_.NowMicros()).value();
  }

  const std::unique_ptr<Files> files_ = MakeFiles({.depth = 1, .threads_only = true}).value();
  std::string directory_;
  ManualClock now_{5'000'000};
  uint64_t unix_us_ = 1'700'000'000'000'000;
  std::unique_ptr<SessionStore> store_;
  std::optional<SessionTable> table_;
  Caller alice_{.tenant = kDefaultTenant, .name = "alice"};
  Caller bob_{.tenant = kDefaultTenant, .name = "bob"};
};

TEST_F(SessionTableTest, IsItsTenantsAlone) {
  const std::string name = Open(alice_);
  now_.Advance(3'000'000);
  EXPECT_EQ(Dump(Get(alice_, name)),
            R"({"id":")" + name +
                R"(","object":"session","tokens":0,"age_s":3,"idle_s":3,"busy":false})");
  EXPECT_EQ(table_->Get(bob_, name, 0).error().status, 404u);
  EXPECT_EQ(table_->Use(bob_, name, 0).error().status, 404u);
  EXPECT_EQ(table_->Fork(bob_, name, 0).error().status, 404u);
  EXPECT_EQ(table_->End(bob_, name).error().status, 404u);
  EXPECT_EQ(table_->List(bob_, 0)["data"].size(), 0u);
  ASSERT_TRUE(table_->Use(alice_, name, now_.NowMicros()).has_value());
  EXPECT_EQ(Get(alice_, name)["busy"], true);
  table_->NoteTokens(name, 7, now_.NowMicros());
  table_->NoteTokens("sess_none", 7, now_.NowMicros());
  EXPECT_EQ(Get(alice_, name)["busy"], false);
  EXPECT_EQ(Get(alice_, name)["tokens"], 7);
  EXPECT_EQ(Get(alice_, name)["age_s"], 3);
  EXPECT_EQ(Get(alice_, name)["idle_s"], 0);
  EXPECT_TRUE(table_->End(alice_, name).has_value());
  EXPECT_EQ(table_->count(), 0u);
}

TEST_F(SessionTableTest, ATenantHasSoMany) {
  Stop();
  Start("one model", {.per_tenant_max = 2});
  const std::string first = Open(alice_);
  Open(alice_);
  EXPECT_EQ(table_->Open(alice_, {}, "", 0).error().status, 429u);
  EXPECT_EQ(table_->Fork(alice_, first, 0).error().status, 429u);
  Open(bob_);
  EXPECT_TRUE(table_->End(alice_, first).has_value());
  Open(alice_);
  EXPECT_EQ(table_->List(alice_, 0)["data"].size(), 2u);
}

TEST_F(SessionTableTest, EndsWhenItIdlesForSoLong) {
  Stop();
  Start("one model", {.idle_us = 10'000'000});
  const std::string idle = Open(alice_);
  const std::string used = Open(alice_);
  ASSERT_TRUE(table_->Use(alice_, used, now_.NowMicros()).has_value());
  now_.Advance(9'999'999);
  table_->EndIdle(now_.NowMicros());
  EXPECT_EQ(table_->count(), 2u);
  now_.Advance(1);
  table_->EndIdle(now_.NowMicros());
  EXPECT_EQ(table_->Get(alice_, idle, 0).error().status, 404u);
  EXPECT_TRUE(table_->Get(alice_, used, 0).has_value()) << "a call of it is under way";
}

TEST_F(SessionTableTest, IsFoundAgainAndCanBeUsedByTheModelThatWroteIt) {
  const std::string name = Open(alice_);
  now_.Advance(20'000'000);
  for (const bool same : {true, false, true}) {
    Stop();
    Start(same ? "one model" : "another model");
    const OrderedJson shown = Get(alice_, name);
    EXPECT_EQ(shown["age_s"], 20);
    EXPECT_EQ(shown["idle_s"], 20);
    EXPECT_EQ(shown.contains("unusable"), !same);
    EXPECT_EQ(table_->Get(bob_, name, 0).error().status, 404u);
    const auto fork = table_->Fork(alice_, name, now_.NowMicros());
    EXPECT_EQ(fork.has_value(), same);
    if (same) {
      EXPECT_TRUE(table_->End(alice_, (*fork)["id"]).has_value());
    } else {
      EXPECT_EQ(fork.error().status, 409u);
      EXPECT_EQ(fork.error().code, "session_unusable");
      EXPECT_EQ(table_->Use(alice_, name, 0).error().status, 409u);
      table_->EndIdle(now_.NowMicros() + (uint64_t{1} << 40));
      EXPECT_EQ(table_->count(), 1u) << "it waits for its model";
    }
  }
  Stop();
  Start("another model");
  EXPECT_TRUE(table_->End(alice_, name).has_value());
  Stop();
  Start("one model");
  EXPECT_EQ(table_->count(), 0u) << "its file is gone";
}

}  // namespace
}  // namespace quire::serve::http
