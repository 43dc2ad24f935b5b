// Engines and sessions through C.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "embed/test_struct_sizes.h"
#include "model/arithmetic.h"
#include "model/model.h"
#include "model/random_model.h"
#include "quire/engine.h"

namespace quire::embed {
namespace {

const std::string kModel = std::string(QUIRE_SOURCE_DIR) + "/models/tiny";

class EngineCTest : public testing::Test {
 protected:
  EngineCTest()
      : store_(testing::TempDir() + "quire_engine_c_" +
               testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(store_);
    done_.size = sizeof done_;
  }
  ~EngineCTest() override {
    quire_engine_free(engine_);
    std::filesystem::remove_all(store_);
  }

  static quire_engine_options Options(const char* store) {
    quire_engine_options options{};
    options.size = sizeof options;
    options.model = kModel.c_str();
    options.store = store;
    options.hot_bytes = 64 << 20;
    options.threads = 2;
    return options;
  }
  void Open(const char* store) {
    quire_engine_free(std::exchange(engine_, nullptr));
    const quire_engine_options options = Options(store);
    ASSERT_EQ(quire_engine_open(&options, &engine_, &error_), QUIRE_OK) << Show(error_);
  }
  quire_session* OpenSession(const char* name, float temperature = 1.0f) {
    quire_session_options options{};
    options.size = sizeof options;
    options.name = name;
    options.seed = 5;
    options.temperature = temperature;
    quire_session* session = nullptr;
    EXPECT_EQ(quire_session_open(engine_, &options, &session, &error_), QUIRE_OK) << Show(error_);
    return session;
  }
  quire_session* Reopen(const char* name) {
    quire_session* session = nullptr;
    EXPECT_EQ(quire_session_reopen(engine_, name, &session, &error_), QUIRE_OK) << Show(error_);
    return session;
  }
  static quire_turn_options Turn(const char* text, uint32_t max_tokens) {
    quire_turn_options turn{};
    turn.size = sizeof turn;
    turn.text = text;
    turn.max_tokens = max_tokens;
    turn.no_stop = 1;
    return turn;
  }
  /// All that the answer says.
  std::string Ask(quire_session* session, const char* text, uint32_t max_tokens = 12) {
    return Ask(session, Turn(text, max_tokens));
  }
  std::string Ask(quire_session* session, const quire_turn_options& turn) {
    EXPECT_EQ(quire_session_begin(session, &turn, &error_), QUIRE_OK) << Show(error_);
    return Read(session);
  }
  std::string Read(quire_session* session) {
    std::string said;
    uint64_t tokens = 0;
    do {
      if (quire_session_next(session, &done_, &error_) != QUIRE_OK) return Show(error_);
      said += done_.text;
      tokens += done_.kind == QUIRE_EVENT_TOKEN;
    } while (done_.kind != QUIRE_EVENT_DONE);
    EXPECT_EQ(tokens, done_.generated_tokens);
    return said;
  }
  std::string Sessions() {
    size_t length = 0;
    EXPECT_EQ(quire_engine_sessions_json(engine_, nullptr, 0, &length, &error_), QUIRE_OK);
    std::string json(length + 1, ' ');
    EXPECT_EQ(quire_engine_sessions_json(engine_, json.data(), json.size(), &length, &error_),
              QUIRE_OK);
    json.resize(length);
    return json;
  }

  const std::string store_;
  quire_engine* engine_ = nullptr;
  quire_error error_{};
  quire_event done_{};
};

TEST_F(EngineCTest, ASessionGoesOnAfterTheEngineEnded) {
  Open(nullptr);
  quire_session* plain = OpenSession("plain");
  const std::string one = Ask(plain, "It is a truth ");
  const uint64_t held = done_.prompt_tokens + done_.generated_tokens;
  const std::string two = Ask(plain, "universally acknowledged");
  EXPECT_EQ(done_.finish, QUIRE_FINISH_LENGTH);
  quire_session_free(plain);
  EXPECT_EQ(Sessions(), "[]");

  Open(store_.c_str());
  quire_session* session = OpenSession("talk");
  EXPECT_EQ(Ask(session, "It is a truth "), one);
  quire_session_free(session);
  Open(store_.c_str());
  EXPECT_EQ(Sessions(), R"([{"name":"talk","tokens":)" + std::to_string(held) +
                            R"(,"open":false,"unusable":null}])");
  session = Reopen("talk");
  quire_session* again = nullptr;
  EXPECT_EQ(quire_session_reopen(engine_, "talk", &again, &error_), QUIRE_BUSY);
  EXPECT_EQ(Ask(session, "universally acknowledged"), two);
  EXPECT_GT(done_.loaded_tokens, 0u);
  // The engine lives as long as its sessions.
  quire_engine_free(std::exchange(engine_, nullptr));
  EXPECT_FALSE(Ask(session, "that", 3).empty());
  quire_session_free(session);
}

TEST_F(EngineCTest, RulesChangeTheAnswer) {
  Open(nullptr);
  const auto answer = [&](const quire_turn_options& turn) {
    quire_session* const session = OpenSession(nullptr, /*temperature=*/0);
    const std::string said = Ask(session, turn);
    quire_session_free(session);
    return said;
  };
  const quire_turn_options plain = Turn("It is a truth ", 24);
  const std::string expected = answer(plain);
  for (float quire_turn_options::* const rule :
       {&quire_turn_options::repetition_penalty, &quire_turn_options::presence_penalty,
        &quire_turn_options::frequency_penalty}) {
    quire_turn_options turn = plain;
    turn.*rule = 3;
    EXPECT_NE(answer(turn), expected);
    turn.*rule = std::numeric_limits<float>::quiet_NaN();
    quire_session* const session = OpenSession(nullptr);
    EXPECT_EQ(quire_session_begin(session, &turn, &error_), QUIRE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error_.message).find("_penalty is"), std::string::npos);
    quire_session_free(session);
  }
  // A token is a byte.
  ASSERT_NE(expected.find('e'), std::string::npos);
  quire_logit_bias bias = {.token = 'e', .bias = -100};
  quire_turn_options turn = plain;
  turn.logit_bias = &bias;
  turn.logit_bias_count = 1;
  EXPECT_EQ(answer(turn).find('e'), std::string::npos);
  bias.bias = 100;
  EXPECT_EQ(answer(turn), std::string(24, 'e'));
  const int32_t stop = 'e';
  turn.stop_tokens = &stop;
  turn.stop_count = 1;
  EXPECT_EQ(answer(turn), "e");
  turn.min_tokens = 5;
  EXPECT_EQ(answer(turn).find('e'), 5u);
}

TEST_F(EngineCTest, MinPLeavesTheLikeliest) {
  Open(nullptr);
  quire_session* const greedy = OpenSession(nullptr, /*temperature=*/0);
  quire_session_options options{};
  options.size = sizeof options;
  options.temperature = 100;
  options.min_p = 1;
  quire_session* drawn = nullptr;
  ASSERT_EQ(quire_session_open(engine_, &options, &drawn, &error_), QUIRE_OK) << Show(error_);
  EXPECT_EQ(Ask(drawn, "It is a truth ", 24), Ask(greedy, "It is a truth ", 24));
  quire_session_free(drawn);
  quire_session_free(greedy);
}

TEST_F(EngineCTest, ForksGoTheirOwnWayAndEndsRemoveTheFile) {
  Open(store_.c_str());
  quire_session* session = OpenSession("a");
  Ask(session, "Once ", 4);
  quire_session* fork = nullptr;
  ASSERT_EQ(quire_session_fork(session, nullptr, &fork, &error_), QUIRE_OK) << Show(error_);
  char name[65];
  size_t length = 0;
  ASSERT_EQ(quire_session_name(fork, name, sizeof name, &length, &error_), QUIRE_OK);
  EXPECT_EQ(length, 33u);
  EXPECT_EQ(Ask(session, "upon", 8), Ask(fork, "upon", 8));  // the sampler is shared too
  EXPECT_TRUE(std::filesystem::exists(store_ + "/sessions/" + name));
  ASSERT_EQ(quire_session_end(fork, &error_), QUIRE_OK) << Show(error_);
  EXPECT_FALSE(std::filesystem::exists(store_ + "/sessions/" + name));
  const quire_turn_options turn = Turn("x", 1);
  EXPECT_EQ(quire_session_begin(fork, &turn, &error_), QUIRE_NOT_FOUND);
  EXPECT_EQ(quire_session_end(fork, &error_), QUIRE_NOT_FOUND);
  quire_session_free(fork);
  quire_session_free(session);
}

TEST_F(EngineCTest, ACancelledTurnLeavesTheSessionAsItWas) {
  Open(store_.c_str());
  quire_session* session = OpenSession("a");
  Ask(session, "Once ", 4);
  const uint64_t held = done_.prompt_tokens + done_.generated_tokens;
  const quire_turn_options turn = Turn("upon a time", 4000);
  ASSERT_EQ(quire_session_begin(session, &turn, &error_), QUIRE_OK);
  EXPECT_EQ(quire_session_begin(session, &turn, &error_), QUIRE_BUSY);
  std::thread canceller;
  do {
    ASSERT_EQ(quire_session_next(session, &done_, &error_), QUIRE_OK) << Show(error_);
    if (done_.kind == QUIRE_EVENT_TOKEN && !canceller.joinable()) {
      canceller = std::thread([&] { EXPECT_EQ(quire_session_cancel(session, nullptr), QUIRE_OK); });
    }
  } while (done_.kind != QUIRE_EVENT_DONE);
  canceller.join();
  EXPECT_EQ(done_.finish, QUIRE_FINISH_CANCELLED);
  EXPECT_LT(done_.generated_tokens, 4000u);
  EXPECT_EQ(quire_session_next(session, &done_, &error_), QUIRE_NOT_FOUND);
  Ask(session, "", 1);
  EXPECT_EQ(done_.prompt_tokens, held);
  // Freed in the middle of a turn: as before it, too.
  ASSERT_EQ(quire_session_begin(session, &turn, &error_), QUIRE_OK);
  quire_session_free(session);
  session = Reopen("a");
  Ask(session, "", 1);
  EXPECT_EQ(done_.prompt_tokens, held + 1);
  quire_session_free(session);
}

TEST_F(EngineCTest, TokensAreFedAsTheyAre) {
  Open(nullptr);
  quire_session* session = OpenSession("a");
  const int32_t tokens[] = {72, 101, 108};
  quire_turn_options turn = Turn(nullptr, 0);
  turn.tokens = tokens;
  turn.token_count = 3;
  ASSERT_EQ(quire_session_begin(session, &turn, &error_), QUIRE_OK);
  do {
    ASSERT_EQ(quire_session_next(session, &done_, &error_), QUIRE_OK) << Show(error_);
  } while (done_.kind != QUIRE_EVENT_DONE);
  EXPECT_EQ(done_.prompt_tokens, 3u);
  EXPECT_EQ(done_.generated_tokens, 0u);
  const int32_t unknown[] = {1'000'000};
  turn.tokens = unknown;
  turn.token_count = 1;
  EXPECT_EQ(quire_session_begin(session, &turn, &error_), QUIRE_INVALID_ARGUMENT);
  quire_session_free(session);
}

TEST_F(EngineCTest, BadArgumentsAreRefused) {
  quire_engine_options options = Options(nullptr);
  EXPECT_EQ(quire_engine_open(nullptr, &engine_, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_engine_open(&options, nullptr, &error_), QUIRE_INVALID_ARGUMENT);
  options.model = nullptr;
  EXPECT_EQ(quire_engine_open(&options, &engine_, &error_), QUIRE_INVALID_ARGUMENT);
  options.model = "/nowhere";
  EXPECT_EQ(quire_engine_open(&options, &engine_, &error_), QUIRE_NOT_FOUND);
  options = Options(nullptr);
  options.codec = 300;
  EXPECT_EQ(quire_engine_open(&options, &engine_, &error_), QUIRE_INVALID_ARGUMENT);
  options = Options(nullptr);
  options.remote = "http://127.0.0.1";
  EXPECT_EQ(quire_engine_open(&options, &engine_, &error_), QUIRE_INVALID_ARGUMENT);
  options.remote = "redis://127.0.0.1";
  options.fleet_key_file = "/nowhere";
  EXPECT_EQ(quire_engine_open(&options, &engine_, &error_), QUIRE_NOT_FOUND);
  EXPECT_EQ(engine_, nullptr);
  Open(store_.c_str());
  options = Options(store_.c_str());
  quire_engine* other = nullptr;
  EXPECT_EQ(quire_engine_open(&options, &other, &error_), QUIRE_BUSY) << Show(error_);
  quire_session_options named{};
  named.size = sizeof named;
  named.name = "../a";
  quire_session* session = nullptr;
  EXPECT_EQ(quire_session_open(engine_, &named, &session, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_session_open(nullptr, nullptr, &session, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_session_reopen(engine_, "none", &session, &error_), QUIRE_NOT_FOUND);
  EXPECT_EQ(quire_session_reopen(engine_, nullptr, &session, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_session_next(nullptr, &done_, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_session_cancel(nullptr, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_session_end(nullptr, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(session, nullptr);
  quire_session_free(nullptr);
  quire_engine_free(nullptr);
}

// hot_bytes hold a third of the text.
TEST_F(EngineCTest, ATextThatMemoryDoesNotHoldStreams) {
  std::string text;
  for (int i = 0; text.size() < 3900; ++i) text += "line " + std::to_string(i * 7919) + "\n";
  Open(nullptr);
  quire_session* session = OpenSession("whole", /*temperature=*/0);
  const std::string said = Ask(session, text.c_str());
  quire_session_free(session);
  quire_engine_options options = Options(store_.c_str());
  options.hot_bytes = 3500 << 10;
  options.chunk_tokens = 16;
  for (const bool streams : {false, true}) {
    quire_engine_free(std::exchange(engine_, nullptr));
    options.resident_tokens = streams ? 200 : 0;
    ASSERT_EQ(quire_engine_open(&options, &engine_, &error_), QUIRE_OK) << Show(error_);
    session = OpenSession(streams ? "streams" : "refused", /*temperature=*/0);
    if (streams) {
      EXPECT_EQ(Ask(session, text.c_str()), said);
      // Its next turn goes on with what streams.
      EXPECT_FALSE(Ask(session, "and").empty());
      EXPECT_EQ(done_.kind, QUIRE_EVENT_DONE);
    } else {
      EXPECT_NE(Ask(session, text.c_str()).find("never fit"), std::string::npos);
    }
    quire_session_free(session);
  }
}

TEST_F(EngineCTest, OptionsThatAreNoneAreRefused) {
  quire_engine_options options = Options(nullptr);
  options.policy = "mru";
  EXPECT_EQ(quire_engine_open(&options, &engine_, &error_), QUIRE_INVALID_ARGUMENT);
  options = Options(nullptr);
  options.load = "sometimes";
  EXPECT_EQ(quire_engine_open(&options, &engine_, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error_.message).find("options->load"), std::string::npos);
  options = Options(nullptr);
  options.eviction_batch = 99;
  EXPECT_EQ(quire_engine_open(&options, &engine_, &error_), QUIRE_INVALID_ARGUMENT);
  options = Options(nullptr);
  options.policy = "quire";
  options.load = "auto";
  options.eviction_batch = QUIRE_ADAPTIVE;
  options.layout = 9;
  EXPECT_EQ(quire_engine_open(&options, &engine_, &error_), QUIRE_UNSUPPORTED);
  options.layout = QUIRE_LAYER_MAJOR;
  options.placement = -1;
  EXPECT_EQ(quire_engine_open(&options, &engine_, &error_), QUIRE_INVALID_ARGUMENT);
  options.placement = QUIRE_BUDDY;
  ASSERT_EQ(quire_engine_open(&options, &engine_, &error_), QUIRE_OK) << Show(error_);
  quire_session* const session = OpenSession("one");
  EXPECT_FALSE(Ask(session, "It is a truth ").empty());
  quire_session_free(session);
}

TEST_F(EngineCTest, ATurnHasATimeAndAPlace) {
  Open(nullptr);
  quire_session* const session = OpenSession("timed", /*temperature=*/0);
  quire_turn_options turn = Turn("Once", 8);
  turn.priority = 51;
  EXPECT_EQ(quire_session_begin(session, &turn, &error_), QUIRE_INVALID_ARGUMENT);
  turn.priority = -50;
  turn.timeout_us = 1;
  Ask(session, turn);
  EXPECT_EQ(error_.code, QUIRE_DEADLINE);
  turn.timeout_us = UINT64_MAX;
  EXPECT_FALSE(Ask(session, turn).empty());
  EXPECT_EQ(done_.kind, QUIRE_EVENT_DONE);
  quire_session_free(session);
}

TEST_F(EngineCTest, OnePromptInNoSession) {
  Open(store_.c_str());
  quire_session* const session = OpenSession("same", /*temperature=*/0);
  std::string text;
  while (text.size() < 400) text += "It is a truth universally acknowledged. ";
  const std::string said = Ask(session, text.c_str());
  quire_session_options sampling{};
  sampling.size = sizeof sampling;
  const auto ask = [&](const quire_turn_options& turn) {
    quire_session* call = nullptr;
    if (quire_engine_ask(engine_, &turn, &sampling, &call, &error_) != QUIRE_OK) {
      return Show(error_);
    }
    std::string answer;
    do {
      if (quire_session_next(call, &done_, &error_) != QUIRE_OK) {
        answer = Show(error_);
        break;
      }
      answer += done_.text;
    } while (done_.kind != QUIRE_EVENT_DONE);
    EXPECT_EQ(quire_session_begin(call, &turn, &error_), QUIRE_INVALID_ARGUMENT);
    EXPECT_EQ(quire_session_end(call, &error_), QUIRE_INVALID_ARGUMENT);
    quire_session_free(call);
    return answer;
  };
  quire_turn_options turn = Turn(text.c_str(), 12);
  EXPECT_EQ(ask(turn), said);
  EXPECT_GT(done_.reused_tokens, 0u);  // what the session published
  EXPECT_EQ(done_.dropped_tokens, 0u);
  turn.keep_share = 0.3;
  for (const char* by : {static_cast<const char*>(nullptr), "accumulated", "recent"}) {
    turn.keep_by = by;
    EXPECT_FALSE(ask(turn).empty());
    EXPECT_GT(done_.dropped_tokens, 0u);
  }
  turn.keep_by = "luck";
  EXPECT_NE(ask(turn).find("keep_by"), std::string::npos);
  turn.keep_by = nullptr;
  turn.keep_share = 0;
  turn.keep_blocks = 8;
  turn.max_tokens = 150;
  EXPECT_FALSE(ask(turn).empty());
  EXPECT_GT(done_.dropped_tokens, 0u);
  turn.keep_blocks = 0;
  turn.max_tokens = 2;
  turn.retain_us = 60'000'000;
  EXPECT_FALSE(ask(turn).empty());
  EXPECT_GT(done_.retained_tokens, 0u);
  turn.retain_us = 0;
  turn.keep_share = -1;
  EXPECT_NE(ask(turn).find("keep"), std::string::npos);
  EXPECT_EQ(quire_session_begin(session, &turn, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_NE(ask(Turn(nullptr, 12)).find("no tokens"), std::string::npos);
  // One whose events are not taken to their end.
  quire_session* call = nullptr;
  turn = Turn("Once", 1000);
  ASSERT_EQ(quire_engine_ask(engine_, &turn, nullptr, &call, &error_), QUIRE_OK) << Show(error_);
  quire_session_free(call);
  quire_session_free(session);
}

TEST_F(EngineCTest, SaysWhatItHoldsAndMovesItToTheStore) {
  Open(store_.c_str());
  const auto json_of = [&](const std::function<quire_code(char*, size_t, size_t*)>& ask) {
    size_t length = 0;
    EXPECT_EQ(ask(nullptr, 0, &length), QUIRE_OK) << Show(error_);
    std::string text(length + 64, ' ');
    EXPECT_EQ(ask(text.data(), text.size(), &length), QUIRE_OK) << Show(error_);
    return Json::parse(text.substr(0, length));
  };
  const auto sequences = [&] {
    return json_of([&](char* text, size_t bytes, size_t* length) {
      return quire_engine_sequences_json(engine_, text, bytes, length, &error_);
    });
  };
  const auto entries = [&] {
    return json_of([&](char* text, size_t bytes, size_t* length) {
      return quire_engine_entries_json(engine_, 1000, text, bytes, length, &error_);
    });
  };
  std::string text;
  while (text.size() < 400) text += "It is a truth universally acknowledged. ";
  quire_session* const session = OpenSession("held", /*temperature=*/0);
  Ask(session, text.c_str(), 3);
  const Json held = sequences();
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0]["session_name"], "held");
  EXPECT_EQ(held[0]["stage"], "idle");
  EXPECT_GT(held[0]["bytes"], 0);
  const size_t blocks_there = entries().size();
  EXPECT_GT(blocks_there, 2u);
  const auto demote = [&] {
    const quire_turn_options prompt = Turn(text.c_str(), 0);
    uint64_t blocks = 0;
    EXPECT_EQ(quire_engine_demote(engine_, &prompt, &blocks, &error_), QUIRE_OK) << Show(error_);
    return blocks;
  };
  EXPECT_EQ(demote(), 0u);  // the session has them
  quire_session_free(session);
  EXPECT_GT(demote(), 2u);
  EXPECT_LT(entries().size(), blocks_there);
  const Json stats = json_of([&](char* to, size_t bytes, size_t* length) {
    return quire_engine_stats_json(engine_, to, bytes, length, &error_);
  });
  EXPECT_GT(stats["engine"]["steps"], 0);
  EXPECT_GT(stats["cache"]["published_total"], 0);
  EXPECT_GT(stats["store"]["records"], 0);
  const Json free = json_of([&](char* to, size_t bytes, size_t* length) {
    return quire_engine_free_json(engine_, to, bytes, length, &error_);
  });
  EXPECT_GT(free[0]["free_slots"], 0);
  size_t length = 0;
  EXPECT_EQ(quire_engine_block_map(engine_, nullptr, 0, &length, &error_), QUIRE_OK);
  EXPECT_GT(length, 0u);
}

TEST_F(EngineCTest, AWindowAndABudgetThatGrows) {
  quire_engine_options options = Options(nullptr);
  options.sink_tokens = 4;
  EXPECT_EQ(quire_engine_open(&options, &engine_, &error_), QUIRE_INVALID_ARGUMENT);
  options.window_tokens = 16;
  options.hot_bytes = 4 << 20;
  options.hot_bytes_max = 8 << 20;
  ASSERT_EQ(quire_engine_open(&options, &engine_, &error_), QUIRE_OK) << Show(error_);
  quire_session* const session = OpenSession("windowed", /*temperature=*/0);
  // More than the budget holds of a text that is seen whole.
  std::string text;
  while (text.size() < 4000) text += "It is a truth universally acknowledged. ";
  EXPECT_EQ(Ask(session, text.c_str()).find("never fit"), std::string::npos);
  EXPECT_EQ(quire_engine_resize(engine_, 8 << 20, &error_), QUIRE_OK) << Show(error_);
  EXPECT_EQ(quire_engine_resize(engine_, 9 << 20, &error_), QUIRE_TOO_LARGE);
  EXPECT_EQ(quire_engine_resize(nullptr, 8 << 20, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_FALSE(Ask(session, "and").empty());
  quire_session_free(session);
}

TEST_F(EngineCTest, AnArithmeticClassHasBlocksOfItsOwn) {
  quire_engine_options options = Options(store_.c_str());
  options.arithmetic = "tf32";
  EXPECT_EQ(quire_engine_open(&options, &engine_, &error_), QUIRE_INVALID_ARGUMENT);
  options.arithmetic = "dot16";
  if (!model::ChooseArithmetic("dot16")) {
    EXPECT_EQ(quire_engine_open(&options, &engine_, &error_), QUIRE_UNSUPPORTED);
    GTEST_SKIP() << Show(error_);
  }
  const std::string text(40, 'a');
  for (const char* const name : {"fma32", "dot16"}) {
    options.arithmetic = name;
    for (const bool again : {false, true}) {
      quire_engine_free(std::exchange(engine_, nullptr));
      ASSERT_EQ(quire_engine_open(&options, &engine_, &error_), QUIRE_OK) << Show(error_);
      quire_session* const session = OpenSession(nullptr, /*temperature=*/0);
      EXPECT_FALSE(Ask(session, text.c_str(), 2).empty());
      EXPECT_EQ(done_.reused_tokens > 0, again) << name;
      quire_session_free(session);
    }
  }
}

TEST_F(EngineCTest, ALeaseTakesBytesOfTheBudgetUntilItIsFreed) {
  quire_engine_options options = Options(nullptr);
  options.hot_bytes = 8 << 20;
  ASSERT_EQ(quire_engine_open(&options, &engine_, &error_), QUIRE_OK) << Show(error_);
  const auto stats = [&] {
    std::string text(1 << 16, ' ');
    size_t length = 0;
    EXPECT_EQ(quire_engine_stats_json(engine_, text.data(), text.size(), &length, &error_),
              QUIRE_OK);
    text.resize(length);
    return text;
  };
  quire_lease* lease = nullptr;
  EXPECT_EQ(quire_engine_lease(engine_, "training lora/1", 8 << 20, 0, &lease, &error_),
            QUIRE_TOO_LARGE);
  EXPECT_EQ(quire_engine_lease(engine_, "", 1 << 20, 0, &lease, &error_), QUIRE_INVALID_ARGUMENT);
  ASSERT_EQ(quire_engine_lease(engine_, "training lora/1", 4 << 20, 1'000'000, &lease, &error_),
            QUIRE_OK)
      << Show(error_);
  EXPECT_NE(stats().find(R"("owner":"training lora/1","bytes":4194304)"), std::string::npos)
      << stats();
  EXPECT_EQ(quire_engine_resize(engine_, 4 << 20, &error_), QUIRE_TOO_LARGE);
  ASSERT_EQ(quire_lease_resize(lease, 6 << 20, 0, &error_), QUIRE_OK) << Show(error_);
  quire_session* const session = OpenSession("beside", /*temperature=*/0);
  std::string text;
  while (text.size() < 4000) text += "It is a truth universally acknowledged. ";
  // A turn that does not fit beside the lease waits for its end.
  const quire_turn_options turn = Turn(text.c_str(), 12);
  ASSERT_EQ(quire_session_begin(session, &turn, &error_), QUIRE_OK) << Show(error_);
  while (stats().find(R"("waiting":1)") == std::string::npos) std::this_thread::yield();
  quire_lease_free(lease);
  EXPECT_EQ(stats().find("training"), std::string::npos) << stats();
  Read(session);
  EXPECT_EQ(done_.kind, QUIRE_EVENT_DONE) << Show(error_);
  EXPECT_EQ(done_.generated_tokens, 12u);
  quire_session_free(session);
  EXPECT_EQ(quire_lease_resize(nullptr, 1, 0, &error_), QUIRE_INVALID_ARGUMENT);
  quire_lease_free(nullptr);
}

TEST_F(EngineCTest, StructsMayGrow) {
  Open(nullptr);
  quire_engine_options small = Options(nullptr);
  small.hot_bytes = 4 << 20;  // many are opened
  ReadsAtEverySize<quire_engine_options>(small, offsetof(quire_engine_options, resident_tokens),
                                         [](const quire_engine_options* options, Error error) {
                                           // What is read of it is said before the model is.
                                           quire_engine* engine = nullptr;
                                           const Code code =
                                               quire_engine_open(options, &engine, error);
                                           quire_engine_free(engine);
                                           return code;
                                         });
  quire_session_options session{};
  session.size = sizeof session;
  ReadsAtEverySize<quire_session_options>(
      session, offsetof(quire_session_options, adapter),
      [this](const quire_session_options* options, Error error) {
        quire_session* opened = nullptr;
        const Code code = quire_session_open(engine_, options, &opened, error);
        quire_session_free(opened);
        return code;
      });
  quire_session* one = OpenSession("one");
  Ask(one, "x", 0);
  ReadsAtEverySize<quire_turn_options>(
      Turn(nullptr, 1), offsetof(quire_turn_options, repetition_penalty),
      [&](const quire_turn_options* options, Error error) {
        const Code code = quire_session_begin(one, options, error);
        quire_event event{};
        event.size = sizeof event;
        while (quire_session_next(one, &event, nullptr) == QUIRE_OK) {
        }
        return code;
      });
  FillsAtEverySize<quire_event>(offsetof(quire_event, dropped_tokens),
                                [&](quire_event* event, Error error) {
                                  const quire_turn_options turn = Turn(nullptr, 0);
                                  EXPECT_EQ(quire_session_begin(one, &turn, nullptr), QUIRE_OK);
                                  const Code code = quire_session_next(one, event, error);
                                  quire_event rest{};
                                  rest.size = sizeof rest;
                                  while (quire_session_next(one, &rest, nullptr) == QUIRE_OK) {
                                  }
                                  return code;
                                });
  quire_session_free(one);
}

TEST_F(EngineCTest, TurnsAndSessionsNameAdapters) {
  const std::string directory = store_ + "_adapters";
  const model::ModelConfig config = model::Model::Load(kModel, {}).value()->config();
  for (const uint64_t seed : {1, 2}) {
    const std::string at = directory + "/" + std::to_string(seed);
    std::filesystem::create_directories(at);
    ASSERT_TRUE(model::WriteAdapter(config, 4, ComputeType::kBf16, seed, at).has_value());
  }
  const std::string one = directory + "/1";
  const std::string two = directory + "/2";
  Open(store_.c_str());
  const auto ask = [&](const char* adapter) {
    quire_turn_options turn = Turn("It is a truth universally acknowledged", 48);
    turn.adapter = adapter;
    quire_session* call = nullptr;
    const quire_code code = quire_engine_ask(engine_, &turn, nullptr, &call, &error_);
    if (code != QUIRE_OK) return std::string(error_.message);
    std::string said = Read(call);
    quire_session_free(call);
    return said;
  };
  const std::string base = ask(nullptr);
  EXPECT_EQ(ask("one"), "adapter 'one': it is not loaded");
  ASSERT_EQ(quire_engine_load_adapter(engine_, "one", one.c_str(), &error_), QUIRE_OK);
  ASSERT_EQ(quire_engine_load_adapter(engine_, "two", two.c_str(), &error_), QUIRE_OK);
  EXPECT_EQ(quire_engine_load_adapter(engine_, "two", two.c_str(), &error_), QUIRE_BUSY);
  EXPECT_EQ(quire_engine_load_adapter(engine_, "three", store_.c_str(), &error_), QUIRE_NOT_FOUND);
  EXPECT_EQ(quire_engine_load_adapter(engine_, nullptr, two.c_str(), &error_),
            QUIRE_INVALID_ARGUMENT);
  const std::string of_one = ask("one");
  EXPECT_NE(of_one, base);
  EXPECT_NE(of_one, ask("two"));
  EXPECT_EQ(of_one, ask("one"));
  EXPECT_EQ(base, ask(nullptr));

  size_t length = 0;
  ASSERT_EQ(quire_engine_adapters_json(engine_, nullptr, 0, &length, &error_), QUIRE_OK);
  std::string text(length + 1, ' ');
  ASSERT_EQ(quire_engine_adapters_json(engine_, text.data(), text.size(), &length, &error_),
            QUIRE_OK);
  const Json adapters = ParseJson(text.c_str(), "adapters").value();
  ASSERT_EQ(adapters.size(), 2u);
  EXPECT_EQ(adapters[0]["name"], "one");
  EXPECT_EQ(adapters[1]["rank"], 4);

  quire_session_options options{};
  options.size = sizeof options;
  options.name = "s";
  options.adapter = "one";
  quire_session* session = nullptr;
  ASSERT_EQ(quire_session_open(engine_, &options, &session, &error_), QUIRE_OK) << Show(error_);
  EXPECT_EQ(Ask(session, "It is a truth universally acknowledged", 48), of_one);
  quire_turn_options named = Turn("and", 1);
  named.adapter = "two";
  EXPECT_EQ(quire_session_begin(session, &named, &error_), QUIRE_INVALID_ARGUMENT);
  quire_session_free(session);
  ASSERT_EQ(quire_engine_unload_adapter(engine_, "one", &error_), QUIRE_OK);
  EXPECT_EQ(quire_engine_unload_adapter(engine_, "one", &error_), QUIRE_NOT_FOUND);

  // In another process the session asks for the same weights by the same name.
  Open(store_.c_str());
  session = Reopen("s");
  const quire_turn_options turn = Turn("and", 2);
  const auto outcome = [&] {
    EXPECT_EQ(quire_session_begin(session, &turn, &error_), QUIRE_OK) << Show(error_);
    quire_code code = QUIRE_OK;
    do {
      code = quire_session_next(session, &done_, &error_);
    } while (code == QUIRE_OK && done_.kind != QUIRE_EVENT_DONE);
    return code;
  };
  EXPECT_EQ(outcome(), QUIRE_NOT_FOUND);
  ASSERT_EQ(quire_engine_load_adapter(engine_, "one", two.c_str(), &error_), QUIRE_OK);
  EXPECT_EQ(outcome(), QUIRE_UNSUPPORTED);
  ASSERT_EQ(quire_engine_unload_adapter(engine_, "one", &error_), QUIRE_OK);
  ASSERT_EQ(quire_engine_load_adapter(engine_, "one", one.c_str(), &error_), QUIRE_OK);
  EXPECT_EQ(outcome(), QUIRE_OK) << Show(error_);
  quire_session_free(session);
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace quire::embed
