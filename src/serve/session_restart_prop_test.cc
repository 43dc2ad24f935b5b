// Sessions over crashes at any point: after a restart each is as of its last answered turn or a
// later whole one, and every answer is that of the session without a restart.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>

#include "base/log.h"
#include "env/faulty_files.h"
#include "serve/test_client.h"
#include "serve/test_util.h"

namespace quire::serve {
namespace {

constexpr uint64_t kSteps = 160;
constexpr uint64_t kTextMax = 150;
constexpr uint64_t kSessionsMax = 5;

/// One machine with a disk, an engine on it that is killed again and again, and one beside it that
/// never is and says what is right.
class World : public EngineTest {
 public:
  explicit World(uint64_t seed) : prng_(seed), files_({.seed = seed}, clock_) {}
  ~World() override { engine_.reset(); }  // before its sessions
  void TestBody() override {}

  void Run() {
    threads_ = 1;
    MakeReference();
    engine_options_.idle_text_bytes = prng_.NextChance(2) ? 0 : 1 << 20;
    engine_options_.chunk_tokens_min = 16;
    Start();
    for (uint64_t step = 0; step < kSteps && !HasFailure(); ++step) {
      Act();
      if (files_.stopped()) Crash();
    }
  }

  uint64_t crashes() const { return crashes_; }
  uint64_t unheard() const { return unheard_; }
  uint64_t damaged() const { return damaged_; }
  uint64_t answers() const { return answers_; }

 private:
  /// A session after a whole turn.
  struct Moment {
    SessionId reference;
    uint64_t tokens;
  };
  struct Turn {
    RequestId id{};
    std::vector<TokenId> fed{};
    uint32_t max_tokens = 0;
  };
  struct Talk {
    std::vector<Moment> moments{};
    size_t durable = 0;  // it is never older than this one
    SessionId id{};
    std::optional<Turn> turn{};
    bool opened = false;  // heard that it was durable
    bool ending = false;
    bool was_damaged = false;
  };
  using Talks = std::map<std::string, Talk>;

  void MakeReference() {
    EngineTest::Make(300);
    reference_cache_ = std::move(cache_);
    engine_options_.sessions_max = 100'000;
    reference_ = MakeEngine(*reference_cache_);
    engine_options_.sessions_max = 1024;
    engine_.reset();
    reference_client_.emplace(*reference_);
    reference_executor_ = std::move(executor_);
    reference_attention_ = std::move(attention_);
  }

  /// What the turn gives to a session that was never interrupted.
  std::pair<Response, Moment> Expected(const Moment& before, const Turn& turn) {
    const SessionId fork = reference_->ForkSession(before.reference).value();
    const RequestId id = reference_client_->Submit(
        {.prompt = turn.fed, .max_tokens = turn.max_tokens, .session = fork});
    reference_client_->Finish();
    const Response& response = *reference_client_->Of(id).response;
    return {response,
            {.reference = fork, .tokens = response.prompt_tokens + response.tokens.size()}};
  }

  void Start() {
    store_sessions_ = SessionStore::Open(files_, {.directory = "sessions",
                                                  .fingerprint = FingerprintOf({}, "{}"),
                                                  .unix_us = [this] { return clock_.NowMicros(); }})
                          .value();
    engine_options_.sessions = store_sessions_.get();
    MakeWithModel(12 + prng_.NextBelow(30), 16);
    client_.emplace(*engine_);
    if (prng_.NextChance(2)) files_.StopAfter(prng_.NextBelow(60));
  }

  void Act() {
    switch (prng_.NextBelow(12)) {
      case 0: return Open();
      case 1: return Fork();
      case 2: return End();
      case 3: return Cancel();
      case 4: return LimitDisk();
      case 5:
      case 6: return Ask();
      case 7:
        if (prng_.NextChance(6)) files_.StopAfter(0);
        return;
      case 8:
      case 9: TickStore(); return Hear();
      default: break;
    }
    for (uint64_t i = prng_.NextBelow(12); i > 0; --i) engine_->Tick();
    Hear();
  }

  // The machine may stop in it: then what it had to say is not heard.
  void TickStore() { store_sessions_->Tick(); }

  Talks::iterator Any() {
    if (talks_.empty()) return talks_.end();
    return std::next(talks_.begin(), static_cast<int64_t>(prng_.NextBelow(talks_.size())));
  }

  OnSettled Heard(const std::string& name, bool ends) {
    return [this, name, ends, life = crashes_](const Result<void>& outcome) {
      if (files_.stopped() || life != crashes_) return;
      const auto talk = talks_.find(name);
      if (talk == talks_.end()) return;
      if (!outcome) {
        // A fork may be ended before the text for its file has come.
        const bool is_ended =
            !ends && talk->second.ending && outcome.error().code == ErrorCode::kCancelled;
        ASSERT_TRUE(disk_limited_ || is_ended) << outcome.error().message;
      } else if (ends) {
        talks_.erase(talk);
      } else {
        talk->second.opened = true;
      }
    };
  }

  void Open() {
    if (talks_.size() >= kSessionsMax) return;
    const std::string name = "s" + std::to_string(++names_);
    model::SamplingOptions sampling;
    if (prng_.NextChance(2)) sampling = {.temperature = 1.0f, .seed = names_};
    Talk talk;
    talk.moments.push_back(
        {.reference = reference_->OpenSession({.sampling = sampling}).value(), .tokens = 0});
    talks_.emplace(name, std::move(talk));
    talks_.at(name).id =
        engine_->OpenSession({.sampling = sampling, .name = name}, Heard(name, false)).value();
  }

  void Fork() {
    const auto from = Any();
    if (from == talks_.end() || talks_.size() >= kSessionsMax || !from->second.opened) return;
    if (from->second.turn || from->second.ending) return;
    const std::string name = "s" + std::to_string(++names_);
    Talk talk;
    talk.moments.push_back(from->second.moments.back());
    talks_.emplace(name, std::move(talk));
    talks_.at(name).id = engine_->ForkSession(from->second.id, name, Heard(name, false)).value();
  }

  void End() {
    const auto any = Any();
    if (any == talks_.end() || any->second.ending || !prng_.NextChance(3)) return;
    any->second.ending = true;
    ASSERT_TRUE(engine_->EndSession(any->second.id, Heard(any->first, true)).has_value());
  }

  void Ask() {
    const auto any = Any();
    if (any == talks_.end()) return;
    Talk& talk = any->second;
    if (talk.turn || talk.ending || talk.moments.back().tokens > kTextMax) return;
    // One whose opening failed may not be there at all.
    if (!talk.opened) return;
    const bool first = talk.moments.back().tokens == 0;
    Turn turn{.fed = SomeTokens(prng_.NextBelow(30) + first, prng_.Next64()),
              .max_tokens = static_cast<uint32_t>(prng_.NextBelow(9))};
    if (turn.fed.empty() && turn.max_tokens == 0) turn.max_tokens = 1;
    turn.id =
        client_->Submit({.prompt = turn.fed, .max_tokens = turn.max_tokens, .session = talk.id});
    talk.turn = std::move(turn);
  }

  void Cancel() {
    const auto any = Any();
    if (any == talks_.end() || !any->second.turn || !prng_.NextChance(4)) return;
    engine_->Cancel(any->second.turn->id, CancelledTurn::kUndone);
  }

  void LimitDisk() {
    if (!prng_.NextChance(3)) return;
    disk_limited_ = !disk_limited_;
    files_.set_disk_bytes(disk_limited_ ? files_.bytes_used() + prng_.NextBelow(300) : 1 << 30);
  }

  void Hear() {
    if (files_.stopped()) return;
    client_->TakeAll();
    for (auto& [name, talk] : talks_) {
      if (!talk.turn || !client_->Of(talk.turn->id).response) continue;
      SCOPED_TRACE("session " + name);
      const Response& response = *client_->Of(talk.turn->id).response;
      if (response.finish != Finish::kCancelled) {
        ASSERT_EQ(response.finish, Finish::kLength) << response.error.message;
        auto [expected, moment] = Expected(talk.moments.back(), *talk.turn);
        ASSERT_EQ(response.tokens, expected.tokens);
        ASSERT_EQ(response.logits_digest, expected.logits_digest);
        ASSERT_EQ(response.prompt_tokens, expected.prompt_tokens);
        talk.moments.push_back(moment);
        if (!disk_limited_) talk.durable = talk.moments.size() - 1;
        ++answers_;
      }
      talk.turn.reset();
    }
  }

  void Crash() {
    ++crashes_;
    if (prng_.NextChance(2)) {
      files_.KillProcess();
    } else {
      files_.LosePower();
    }
    client_.reset();
    engine_.reset();
    cache_.reset();
    store_sessions_.reset();
    files_.Restart();
    disk_limited_ = false;
    files_.set_disk_bytes(1 << 30);
    const std::string victim = Damage();
    Start();
    Talks before = std::exchange(talks_, {});
    for (const StoredSession& found : store_sessions_->found()) {
      SCOPED_TRACE("session " + found.head.name);
      const auto talk = before.find(found.head.name);
      ASSERT_NE(talk, before.end()) << "it was ended, or never was";
      if (found.head.name == victim) {
        CheckDamaged(found);
      } else if (talk->second.was_damaged) {
        // A power cut may have undone the damage, and the end of its session.
        Remove(found.head.name);
      } else {
        ASSERT_FALSE(found.unusable) << found.unusable->message;
        Continue(found, std::move(talk->second));
      }
      before.erase(talk);
    }
    for (const auto& [name, talk] : before) {
      ASSERT_TRUE(!talk.opened || talk.ending) << "session " << name << " is gone";
    }
  }

  /// Which moment it is at.
  void Continue(const StoredSession& found, Talk talk) {
    if (talk.turn) {  // it may have ended unheard
      talk.moments.push_back(Expected(talk.moments.back(), *talk.turn).second);
      if (talk.moments.back().tokens == found.head.tokens) ++unheard_;
    }
    const auto at = std::ranges::find(talk.moments, found.head.tokens, &Moment::tokens);
    ASSERT_NE(at, talk.moments.end()) << found.head.tokens << " tokens";
    ASSERT_GE(static_cast<size_t>(at - talk.moments.begin()), talk.durable);
    Talk next{.moments = {*at}, .opened = true};
    next.id = engine_->OpenSession({.name = found.head.name, .stored = true}).value();
    talks_.emplace(found.head.name, std::move(next));
  }

  /// The name of the session whose file was damaged, if any was.
  std::string Damage() {
    if (!prng_.NextChance(4)) return {};
    const std::vector<std::string> paths = files_.Paths();
    const std::string& path = paths[prng_.NextBelow(paths.size())];
    const std::string name = path.substr(path.rfind('/') + 1);
    if (!IsSessionName(name)) return {};
    std::vector<std::byte>& bytes = *files_.Contents(path);
    switch (prng_.NextBelow(3)) {
      case 0: bytes[prng_.NextBelow(bytes.size())] ^= std::byte{1} << prng_.NextBelow(8); break;
      case 1: bytes.resize(prng_.NextBelow(bytes.size())); break;
      default: std::ranges::fill(bytes, std::byte{0}); break;
    }
    ++damaged_;
    return name;
  }

  void Remove(const std::string& name) {
    talks_.emplace(name, Talk{.ending = true, .was_damaged = true});
    store_sessions_->Remove(name, Heard(name, true));
  }

  void CheckDamaged(const StoredSession& found) {
    const std::string& name = found.head.name;
    if (found.unusable) {
      EXPECT_FALSE(engine_->OpenSession({.name = name, .stored = true}).has_value());
      return Remove(name);
    }
    const SessionId id = engine_->OpenSession({.name = name, .stored = true}).value();
    talks_.emplace(name, Talk{.id = id, .ending = true, .was_damaged = true});
    const RequestId request = client_->Submit({.prompt = {1}, .max_tokens = 3, .session = id});
    for (int i = 0; i < 10 && !files_.stopped(); ++i) {
      store_sessions_->Tick();
      engine_->Tick();
      client_->TakeAll();
    }
    if (files_.stopped()) return;
    ASSERT_TRUE(client_->Of(request).response.has_value());
    EXPECT_EQ(client_->Of(request).response->error.code, ErrorCode::kCorrupt);
    EXPECT_TRUE(client_->Of(request).tokens.empty());
    ASSERT_TRUE(engine_->EndSession(id, Heard(name, true)).has_value());
  }

  Prng prng_;
  FaultyFiles files_;
  bool disk_limited_ = false;
  std::unique_ptr<Cache> reference_cache_;
  std::unique_ptr<Executor> reference_executor_;
  std::unique_ptr<AttentionBackend> reference_attention_;
  std::unique_ptr<Engine> reference_;
  std::optional<TestClient> reference_client_;
  std::unique_ptr<SessionStore> store_sessions_;
  std::optional<TestClient> client_;
  Talks talks_;
  uint64_t names_ = 0;
  uint64_t crashes_ = 0;
  uint64_t unheard_ = 0;
  uint64_t damaged_ = 0;
  uint64_t answers_ = 0;
};

TEST(SessionRestartProperty, EverySessionGoesOnFromAWholeTurn) {
  const char* const seeds = std::getenv("QUIRE_SESSION_SEEDS");
  const uint64_t count = seeds == nullptr ? 100 : std::strtoull(seeds, nullptr, 10);
  uint64_t crashes = 0;
  uint64_t unheard = 0;
  uint64_t damaged = 0;
  uint64_t answers = 0;
  SetLogLevel(LogLevel::kError);  // each failure of the disk is said
  for (uint64_t seed = 1; seed <= count; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    World world(seed);
    world.Run();
    if (testing::Test::HasFailure()) break;
    crashes += world.crashes();
    unheard += world.unheard();
    damaged += world.damaged();
    answers += world.answers();
  }
  SetLogLevel(LogLevel::kWarn);
  if (testing::Test::HasFailure()) return;
  // All of it was met.
  EXPECT_GT(crashes, count);
  EXPECT_GT(unheard, count / 20);
  EXPECT_GT(damaged, count / 20);
  EXPECT_GT(answers, count * 3);
}

}  // namespace
}  // namespace quire::serve
