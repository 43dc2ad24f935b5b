#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "events/event_stream.h"
#include "events/zmq_socket.h"
#include "quire/events.h"

namespace quire::events {
namespace {

// How long changes wait for each other, and a subscriber for the beginning of its answer.
constexpr int kIntervalMs = 5;
constexpr int kLingerMs = 1000;
// A subscriber that asks and does not read gets no answer, and delays others for so long.
constexpr int kAnswerTimeoutMs = 1000;
constexpr int kAnswerMessages = 1000;
constexpr uint64_t kEndOfAnswer = UINT64_MAX;  // -1, as vLLM says it

uint64_t UnixMicros() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

/// Big-endian, as it travels.
std::string BytesOf(uint64_t number) {
  std::string bytes(sizeof number, '\0');
  for (size_t i = sizeof number; i-- > 0; number >>= 8) bytes[i] = static_cast<char>(number & 0xff);
  return bytes;
}

uint64_t NumberOf(std::string_view bytes) {
  uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

/// Whether the publisher waits at the endpoint, or goes there, by the rule of vLLM.
bool IsBound(std::string_view endpoint) {
  return endpoint.find('*') != std::string_view::npos ||
         endpoint.find("::") != std::string_view::npos || endpoint.starts_with("ipc://") ||
         endpoint.starts_with("inproc://");
}

struct Sockets {
  std::unique_ptr<ZmqContext> context;
  ZmqSocket publish;
  std::optional<ZmqSocket> answer{};
};

Result<Sockets> OpenSockets(const EventOptions& options) {
  if (options.endpoint.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "events: no endpoint");
  }
  QUIRE_ASSIGN(auto context, ZmqContext::Create());
  QUIRE_ASSIGN(ZmqSocket publish, ZmqSocket::Open(*context, ZMQ_PUB, kLingerMs));
  QUIRE_TRY(publish.Set(ZMQ_SNDHWM, static_cast<int>(options.hwm)));
  QUIRE_TRY(IsBound(options.endpoint) ? publish.Bind(options.endpoint)
                                      : publish.Connect(options.endpoint));
  Sockets sockets{.context = std::move(context), .publish = std::move(publish)};
  if (options.replay_endpoint.empty()) return sockets;
  QUIRE_ASSIGN(ZmqSocket answer, ZmqSocket::Open(*sockets.context, ZMQ_ROUTER, kLingerMs));
  // Without this, messages for a subscriber that has gone or is too slow are lost unnoticed.
  QUIRE_TRY(answer.Set(ZMQ_ROUTER_MANDATORY, 1));
  QUIRE_TRY(answer.Set(ZMQ_SNDHWM, kAnswerMessages));
  QUIRE_TRY(answer.Set(ZMQ_SNDTIMEO, kAnswerTimeoutMs));
  QUIRE_TRY(answer.Bind(options.replay_endpoint));
  sockets.answer.emplace(std::move(answer));
  return sockets;
}

class Publisher final : public EventPublisher {
 public:
  Publisher(ChangeFeed& feed, const EventOptions& options, Sockets sockets)
      : topic_(options.topic),
        sockets_(std::move(sockets)),
        stream_(feed,
                {.first_number = UnixMicros(),
                 .log_messages = options.buffer_steps,
                 .unix_us = UnixMicros},
                [this](uint64_t number, std::string_view payload) {
                  return sockets_.publish.Send({topic_, BytesOf(number), payload});
                }),
        thread_(StartThread([this] { Run(); })) {}

  ~Publisher() override {
    stopping_ = true;
    thread_.join();
  }

  EventStats stats() const override {
    MutexLock lock(mutex_);
    return stats_;
  }

 private:
  void Run() {
    if (!Try([this] { stream_.Begin(); })) stream_.Skip();
    while (!stopping_) {
      bool more = false;
      if (!Try([&] { more = stream_.Turn(); })) stream_.Skip();
      Try([&] { Answer(more ? 0 : kIntervalMs); });
      MutexLock lock(mutex_);
      stats_ = stream_.stats();
    }
    Try([this] { stream_.End(); });
  }

  // False: there was no memory.
  template <typename Work>
  static bool Try(const Work& work) {
    try {
      work();
      return true;
    } catch (const std::bad_alloc&) {
      LogError("events: no memory for a message");
      return false;
    }
  }

  // Waits for a subscriber that asks, and answers it.
  void Answer(int timeout_ms) {
    if (!sockets_.answer) {
      std::this_thread::sleep_for(std::chrono::milliseconds(timeout_ms));
      return;
    }
    ZmqSocket& socket = *sockets_.answer;
    const auto asked = socket.Receive(timeout_ms);
    if (!asked) return;
    if (asked->size() != 3 || (*asked)[2].size() != sizeof(uint64_t)) {
      LogWarn("events: a subscriber asked for no number of 8 bytes; it gets no answer");
      return;
    }
    const std::string& peer = (*asked)[0];
    const bool sent =
        stream_.Replay(NumberOf((*asked)[2]), [&](uint64_t number, std::string_view payload) {
          return socket.Send({peer, "", BytesOf(number), payload});
        });
    if (!sent || !socket.Send({peer, "", BytesOf(kEndOfAnswer), ""})) {
      LogWarn("events: a subscriber that asked for messages does not read them");
    }
  }

  const std::string topic_;
  Sockets sockets_;
  EventStream stream_;
  mutable Mutex mutex_{LockRank::kLeaf};
  EventStats stats_ QUIRE_GUARDED_BY(mutex_){};
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace
}  // namespace quire::events

namespace quire {

Result<std::unique_ptr<EventPublisher>> EventPublisher::Start(ChangeFeed& feed,
                                                              const EventOptions& options) {
  QUIRE_ASSIGN(auto sockets, events::OpenSockets(options));
  try {
    return std::make_unique<events::Publisher>(feed, options, std::move(sockets));
  } catch (const std::exception& error) {  // no memory, or no thread
    return Fail(ErrorCode::kIo, fmt::format("events: {}", error.what()));
  }
}

}  // namespace quire
