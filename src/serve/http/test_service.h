// What tests of the server share: the bundled model behind a service.
#ifndef QUIRE_SERVE_HTTP_TEST_SERVICE_H_
#define QUIRE_SERVE_HTTP_TEST_SERVICE_H_

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <variant>

#include "env/clock.h"
#include "model/model.h"
#include "quire/attention.h"
#include "serve/driver.h"
#include "serve/http/service.h"

namespace quire::serve::http {

inline const std::string kModel = std::string(QUIRE_SOURCE_DIR) + "/models/tiny";
inline const std::string kPrompt =
    R"("It is a truth universally acknowledged, that a single man in")";
inline constexpr std::string_view kKeys = R"(
[[tenant]]
name = "alice"
keys = ["alice-0123456789abcdef"]
[[tenant]]
name = "bob"
keys = ["bob-0123456789abcdef"]
[[tenant]]
name = "ops"
keys = ["ops-0123456789abcdef"]
operator = true
)";

class WithService : public testing::Test {
 protected:
  void Make(std::string_view keys = "", ServiceOptions options = {}) {
    model_ = model::Model::Load(kModel, {}).value();
    tokenizer_ = model::Tokenizer::Load(kModel + "/tokenizer.json").value();
    cache_ = Cache::Create({.geometry = model::GeometryOf(model_->config()),
                            .profile = NumericProfile::Uniform(Codec::kBf16, 16),
                            .hot_bytes = hot_bytes_,
                            .tokens_max = 4096})
                 .value();
    engine_ = Engine::Create({.model = *model_,
                              .cache = *cache_,
                              .attention = *attention_,
                              .executor = *executor_,
                              .clock = SystemClock()},
                             Identity{.weights = model_->fingerprint(), .domain = {.name = "t"}},
                             {.admission = Admission::kGrow,
                              .events_max = events_max_,
                              .on_event = [this](RequestId id) { hub_.Notify(id); },
                              .sessions = sessions_})
                  .value();
    driver_ = std::make_unique<Driver>(*engine_);
    options.model_name = "tiny";
    options.version = "0";
    options.tokens_max = tokens_max_;
    std::optional<KeysFile> file;
    if (!keys.empty()) file = ParseKeysFile(keys, "keys").value();
    service_ =
        Service::Create({.engine = *engine_,
                         .cache = *cache_,
                         .hub = hub_,
                         .tokenizer = *tokenizer_,
                         .chat = chat_,
                         .generation = generation_,
                         .clock = *clock_,
                         .engine_stats = [this] { return driver_->stats(); },
                         .engine_sequences = [this] { return driver_->Sequences(); },
                         .budget_used_of = [] { return std::pair{uint64_t{7}, uint64_t{9}}; },
                         .strftime_now = {},
                         .sessions = sessions_},
                        options, file)
            .value();
  }

  // To be set before Make:
  uint64_t hot_bytes_ = 64 << 20;
  uint32_t events_max_ = 256;
  const Clock* clock_ = &SystemClock();  // of the service
  SessionStore* sessions_ = nullptr;
  uint64_t tokens_max_ = 4096;  // of prompt and answer together
  EventHub hub_;
  std::unique_ptr<Executor> executor_ = MakeThreadPool(2);
  std::unique_ptr<AttentionBackend> attention_ = MakeCpuAttention().value();
  std::unique_ptr<model::Model> model_;
  std::optional<model::Tokenizer> tokenizer_;
  std::optional<model::ChatTemplate> chat_;
  model::GenerationConfig generation_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Driver> driver_;
  std::unique_ptr<Service> service_;
};

/// The service and calls of it.
class WithCalls : public WithService {
 protected:
  static HttpRequest Get(const std::string& path, const std::string& key = "") {
    return {.method = "GET",
            .path = path,
            .host = "localhost:8080",
            .authorization = key.empty() ? "" : "Bearer " + key};
  }
  static HttpRequest Post(const std::string& path, const std::string& body,
                          const std::string& key = "") {
    HttpRequest request = Get(path, key);
    request.method = "POST";
    request.content_type = "application/json";
    request.body = body;
    request.has_body = !body.empty();
    return request;
  }

  /// The answer as one: a stream's events, or the body.
  Reply Ask(const HttpRequest& request) {
    Handled handled = service_->Handle(request);
    if (auto* reply = std::get_if<Reply>(&handled.outcome)) return *reply;
    Call& call = *std::get<std::unique_ptr<Call>>(handled.outcome);
    std::string stream;
    while (!call.ended()) {
      call.Pump();
      if (call.streams()) stream += call.TakeStream();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    service_->NoteEnd(handled, call.Report());
    if (call.error()) return ErrorReply(*call.error());
    return {.body = call.streams() ? stream + call.TakeStream() : call.Body()};
  }
  OrderedJson AskJson(const HttpRequest& request, uint32_t status = 200) {
    const Reply reply = Ask(request);
    EXPECT_EQ(reply.status, status) << reply.body;
    return OrderedJson::parse(reply.body);
  }
};

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_TEST_SERVICE_H_
