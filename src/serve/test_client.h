// A caller of an engine that a test turns by hand.
#ifndef QUIRE_SERVE_TEST_CLIENT_H_
#define QUIRE_SERVE_TEST_CLIENT_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "serve/engine.h"

namespace quire::serve {

/// What one request has said so far.
struct Heard {
  std::vector<TokenId> tokens{};
  std::vector<uint64_t> progress{};
  std::optional<Response> response{};
  uint64_t responses = 0;
};

class TestClient {
 public:
  explicit TestClient(Engine& engine) : engine_(engine) {}

  RequestId Submit(Request request) {
    const auto id = engine_.Submit(std::move(request));
    EXPECT_TRUE(id.has_value()) << id.error().message;
    heard_.try_emplace(*id);
    return *id;
  }

  const Heard& Of(RequestId id) const { return heard_.at(id); }
  const std::map<RequestId, Heard>& all() const { return heard_; }

  /// Takes all that a request has to say now; returns the number of new tokens.
  uint64_t Take(RequestId id) {
    Heard& heard = heard_.at(id);
    const size_t before = heard.tokens.size();
    while (auto event = engine_.Next(id)) {
      EXPECT_FALSE(heard.response.has_value()) << "something after the Response";
      if (auto* token = std::get_if<NewToken>(&*event)) heard.tokens.push_back(token->token);
      if (auto* progress = std::get_if<Progress>(&*event)) {
        EXPECT_TRUE(heard.progress.empty() || heard.progress.back() < progress->done);
        heard.progress.push_back(progress->done);
      }
      if (auto* response = std::get_if<Response>(&*event)) {
        EXPECT_EQ(response->tokens, heard.tokens);
        heard.response = std::move(*response);
        ++heard.responses;
      }
    }
    return heard.tokens.size() - before;
  }
  void TakeAll() {
    for (const auto& [id, heard] : heard_) Take(id);
  }

  bool AllEnded() const {
    for (const auto& [id, heard] : heard_) {
      if (!heard.response) return false;
    }
    return true;
  }

  /// Turns the engine, taking all events, until everything has ended.
  void Finish(uint64_t ticks_max = 100'000) {
    for (uint64_t tick = 0; tick < ticks_max; ++tick) {
      TakeAll();
      if (AllEnded()) return;
      engine_.Tick();
    }
    FAIL() << "some requests never ended";
  }

 private:
  Engine& engine_;
  std::map<RequestId, Heard> heard_;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_TEST_CLIENT_H_
