#include "remote/redis.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <deque>
#include <map>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "env/clock.h"
#include "remote/object_queue.h"
#include "remote/redis_link.h"
#include "remote/redis_slots.h"

namespace quire::remote {
namespace {

constexpr uint64_t kPauseMinUs = 250'000;  // of a node that failed
constexpr uint64_t kPauseMaxUs = 8'000'000;
constexpr uint64_t kParkedUs = 1'500'000;  // while it is not known which node has which slot
constexpr uint32_t kRedirectsMax = 5;
constexpr int kPollMs = 50;  // while something is under way, whose time may run out
constexpr int kIdleMs = 1000;

constexpr std::string_view kSwapScript =
    "local v=redis.call('GET',KEYS[1]) if (v or '')==ARGV[1] then "
    "redis.call('SET',KEYS[1],ARGV[2]) return 1 end return 0";

ObjectOutcome OutcomeOf(std::string_view error) {
  const auto is = [&](std::string_view code) { return error.starts_with(code); };
  if (is("OOM")) return ObjectOutcome::kFull;
  if (is("TOOLONG")) return ObjectOutcome::kTooLarge;
  const bool refuses = is("NOAUTH") || is("WRONGPASS") || is("NOPERM") || is("WRONGTYPE") ||
                       is("ERR invalid password") || is("ERR AUTH");
  return refuses ? ObjectOutcome::kRefused : ObjectOutcome::kUnavailable;
}

/// What runs on the thread.
class RedisLoop {
 public:
  RedisLoop(RemoteAddress address, RemoteCredentials credentials, std::unique_ptr<TlsContext> tls,
            ObjectQueue& queue, int wake)
      : address_(std::move(address)),
        credentials_(std::move(credentials)),
        tls_(std::move(tls)),
        queue_(queue),
        wake_(wake) {}

  void Run();

 private:
  enum class Mode : uint8_t { kUnknown, kSingle, kCluster };
  enum { kReads = 0, kWrites = 1, kLinks = 2 };
  struct Node {
    std::array<RedisLink, kLinks> links{};
    uint64_t down_until_us = 0;
    uint64_t pause_us = kPauseMinUs;
  };

  void Poll();
  void Discover();
  void Route(RedisCommand command);
  void SendTo(const HostAndPort& to, RedisCommand command);
  RedisLink* LinkOf(const HostAndPort& to, int which);
  void TurnNodes();
  void Fail(const HostAndPort& of, RedisLink& link, const std::string& why);
  void OnReply(const HostAndPort& from, RedisCommand& command, RespValue& reply);
  void OnSlots(const HostAndPort& from, const RespValue& reply);
  void OnObject(const HostAndPort& from, RedisCommand& command, RespValue& reply);
  bool Redirect(const HostAndPort& from, RedisCommand& command, const RespValue& reply);
  void Encode(RedisCommand& command) const;
  void GiveUp(RedisCommand& command, ObjectOutcome outcome, std::string detail);
  std::string KeyOf(const ObjectRequest& request) const;
  const HostAndPort* TargetOf(const ObjectRequest& request) const;

  const RemoteAddress address_;
  const RemoteCredentials credentials_;
  const std::unique_ptr<TlsContext> tls_;
  ObjectQueue& queue_;
  const int wake_;
  const Clock& clock_ = SystemClock();
  uint64_t now_us_ = 0;

  std::map<HostAndPort, Node> nodes_;
  Mode mode_ = Mode::kUnknown;
  HostAndPort single_{};
  RedisSlotMap slots_;
  bool slots_are_old_ = false;
  bool discovering_ = false;
  uint64_t next_discovery_us_ = 0;
  size_t next_seed_ = 0;
  std::deque<RedisCommand> parked_;  // until it is known which node has which slot
};

std::string RedisLoop::KeyOf(const ObjectRequest& request) const {
  return address_.prefix.empty() ? request.name : address_.prefix + "/" + request.name;
}

void RedisLoop::GiveUp(RedisCommand& command, ObjectOutcome outcome, std::string detail) {
  if (command.kind != RedisCommand::kObject && command.kind != RedisCommand::kReplicas) return;
  queue_.Answer(NotDone(std::move(command.request), outcome, std::move(detail)));
}

void RedisLoop::Encode(RedisCommand& command) const {
  const ObjectRequest& request = command.request;
  const std::string key = KeyOf(request);
  switch (request.verb) {
    case ObjectVerb::kGet:
      command.text = request.whole
                         ? RespCommand({"GET", key})
                         : RespCommand({"GETRANGE", key, std::to_string(request.offset),
                                        std::to_string(request.offset + request.bytes_max - 1)});
      return;
    case ObjectVerb::kPut:
      command.text = RespCommandBefore({"SET", key}, request.bytes.size());
      return;
    case ObjectVerb::kSwap:
      command.text =
          RespCommandBefore({"EVAL", kSwapScript, "1", key, request.version}, request.bytes.size());
      return;
    case ObjectVerb::kRemove: command.text = RespCommand({"UNLINK", key}); return;
    case ObjectVerb::kList: {
      const std::string cursor = request.version.substr(request.version.find(':') + 1);
      command.text =
          RespCommand({"SCAN", cursor.empty() ? "0" : cursor, "MATCH", key + "*", "COUNT",
                       std::to_string(std::max<uint64_t>(request.bytes_max, 10))});
    }
  }
}

// Of a list: the node that its cursor names.
const HostAndPort* RedisLoop::TargetOf(const ObjectRequest& request) const {
  if (mode_ == Mode::kSingle) return &single_;
  if (request.verb != ObjectVerb::kList) return slots_.OwnerOf(RedisSlotOf(KeyOf(request)));
  size_t node = 0;
  std::from_chars(request.version.data(), request.version.data() + request.version.size(), node);
  return node < slots_.nodes().size() ? &slots_.nodes()[node] : nullptr;
}

RedisLink* RedisLoop::LinkOf(const HostAndPort& to, int which) {
  Node& node = nodes_[to];
  RedisLink& link = node.links[static_cast<size_t>(which)];
  if (link.is_open()) return &link;
  if (now_us_ < node.down_until_us) return nullptr;
  link.Open(to, tls_.get(), address_.user, credentials_.redis_password, address_.request_us,
            now_us_);
  if (link.is_open()) return &link;
  Fail(to, link, link.Failure(now_us_));
  return nullptr;
}

void RedisLoop::SendTo(const HostAndPort& to, RedisCommand command) {
  const bool reads =
      command.kind == RedisCommand::kSlots || command.request.verb == ObjectVerb::kGet;
  RedisLink* const link = LinkOf(to, reads ? kReads : kWrites);
  if (link == nullptr) {
    const ObjectRequest& request = command.request;
    ObjectOutcome outcome = ObjectOutcome::kUnavailable;
    // The others of a cluster are of use as before: what this one has counts as absent. Of the
    // epochs that would mean that there never were any.
    if (mode_ == Mode::kCluster && !request.wants_version) {
      if (request.verb == ObjectVerb::kGet) outcome = ObjectOutcome::kAbsent;
      if (request.verb == ObjectVerb::kPut) outcome = ObjectOutcome::kFull;
    }
    return GiveUp(command, outcome,
                  fmt::format("{}:{} is left alone for a while", to.host, to.port));
  }
  link->Send(std::move(command), now_us_);
}

void RedisLoop::Route(RedisCommand command) {
  if (mode_ == Mode::kUnknown) return parked_.push_back(std::move(command));
  const HostAndPort* const target = TargetOf(command.request);
  if (target == nullptr) {
    slots_are_old_ = true;
    return GiveUp(command, ObjectOutcome::kUnavailable, "no node has this slot");
  }
  SendTo(HostAndPort(*target), std::move(command));
}

// Asks one server after the other what the cluster looks like, as long as that is not known.
void RedisLoop::Discover() {
  const bool wanted = (mode_ == Mode::kUnknown && !parked_.empty()) || slots_are_old_;
  if (!wanted || discovering_ || now_us_ < next_discovery_us_) return;
  std::vector<HostAndPort> from = slots_.nodes();
  from.insert(from.end(), address_.hosts.begin(), address_.hosts.end());
  for (size_t tried = 0; tried < from.size(); ++tried) {
    const HostAndPort seed = from[next_seed_++ % from.size()];
    RedisLink* const link = LinkOf(seed, kReads);
    if (link == nullptr) continue;
    discovering_ = true;
    link->Send({.kind = RedisCommand::kSlots, .text = RespCommand({"CLUSTER", "SLOTS"})}, now_us_);
    return;
  }
  next_discovery_us_ = now_us_ + kPauseMinUs;
  while (!parked_.empty()) {
    GiveUp(parked_.front(), ObjectOutcome::kUnavailable, "no server can be reached");
    parked_.pop_front();
  }
}

void RedisLoop::OnSlots(const HostAndPort& from, const RespValue& reply) {
  discovering_ = false;
  next_discovery_us_ = now_us_ + kPauseMinUs;
  slots_are_old_ = false;
  if (slots_.Take(reply, from)) {
    mode_ = Mode::kCluster;
  } else if (reply.kind == RespValue::kError && OutcomeOf(reply.text) == ObjectOutcome::kRefused) {
    while (!parked_.empty()) {
      GiveUp(parked_.front(), ObjectOutcome::kRefused, reply.text);
      parked_.pop_front();
    }
    return;
  } else if (reply.kind == RespValue::kError) {
    mode_ = Mode::kSingle;  // it is none of a cluster
    single_ = from;
  } else {
    return;  // a cluster without slots yet
  }
  for (RedisCommand& command : std::exchange(parked_, {})) Route(std::move(command));
}

bool RedisLoop::Redirect(const HostAndPort& from, RedisCommand& command, const RespValue& reply) {
  const auto redirect = ParseRedirect(reply.text, from);
  if (!redirect || mode_ == Mode::kUnknown || ++command.redirects > kRedirectsMax) return false;
  if (redirect->asks) {
    const bool reads = command.request.verb == ObjectVerb::kGet;
    if (RedisLink* const link = LinkOf(redirect->to, reads ? kReads : kWrites)) {
      link->Send({.kind = RedisCommand::kAsking, .text = RespCommand({"ASKING"})}, now_us_);
    }
  } else {
    mode_ = Mode::kCluster;
    slots_.Move(redirect->slot, redirect->to);
    slots_are_old_ = true;
  }
  SendTo(redirect->to, std::move(command));
  return true;
}

void RedisLoop::OnReply(const HostAndPort& from, RedisCommand& command, RespValue& reply) {
  switch (command.kind) {
    case RedisCommand::kLogIn:
      if (reply.kind == RespValue::kError) {
        LogDebug("remote: {}:{}: {}", from.host, from.port, reply.text);
      }
      return;  // what follows is refused then
    case RedisCommand::kAsking: return;
    case RedisCommand::kSlots: return OnSlots(from, reply);
    case RedisCommand::kReplicas:
      if (reply.kind == RespValue::kInteger && reply.integer > 0) {
        return queue_.Answer({.tag = command.request.tag, .outcome = ObjectOutcome::kOk});
      }
      return GiveUp(command, ObjectOutcome::kUnavailable, "no replica has it yet");
    case RedisCommand::kObject: return OnObject(from, command, reply);
  }
}

void RedisLoop::OnObject(const HostAndPort& from, RedisCommand& command, RespValue& reply) {
  ObjectRequest& request = command.request;
  if (reply.kind == RespValue::kError) {
    if (Redirect(from, command, reply)) return;
    const bool is_replica = reply.text.starts_with("READONLY");
    if (is_replica && mode_ == Mode::kSingle) mode_ = Mode::kUnknown;
    if (is_replica || reply.text.starts_with("CLUSTERDOWN")) {
      slots_are_old_ = mode_ == Mode::kCluster;
    }
    const ObjectOutcome outcome = OutcomeOf(reply.text);
    return GiveUp(command, outcome, std::move(reply.text));
  }
  ObjectReply answer{.tag = request.tag, .outcome = ObjectOutcome::kOk};
  switch (request.verb) {
    case ObjectVerb::kGet:
      // A range of what is not there is empty.
      if (reply.kind != RespValue::kBulk || (!request.whole && reply.integer == 0)) {
        answer.outcome = ObjectOutcome::kAbsent;
      }
      if (request.wants_version) answer.version = reply.bulk();
      answer.bytes = std::move(reply.bytes);
      break;
    case ObjectVerb::kPut: break;
    case ObjectVerb::kSwap:
      if (reply.kind != RespValue::kInteger || reply.integer != 1) {
        answer.outcome = ObjectOutcome::kChanged;
      } else if (mode_ == Mode::kCluster && slots_.HasReplicas(from)) {
        command.kind = RedisCommand::kReplicas;
        command.text = RespCommand({"WAIT", "1", "1000"});
        return SendTo(from, std::move(command));
      }
      break;
    case ObjectVerb::kRemove:
      if (reply.integer == 0) answer.outcome = ObjectOutcome::kAbsent;
      break;
    case ObjectVerb::kList: {
      if (reply.items.size() != 2) {
        return GiveUp(command, ObjectOutcome::kUnavailable, "what it says is no list");
      }
      const size_t skip = address_.prefix.empty() ? 0 : address_.prefix.size() + 1;
      for (const RespValue& name : reply.items[1].items) {
        if (name.bulk().size() >= skip) answer.names.emplace_back(name.bulk().substr(skip));
      }
      size_t node = 0;
      std::from_chars(request.version.data(), request.version.data() + request.version.size(),
                      node);
      const std::string_view cursor = reply.items[0].bulk();
      if (cursor != "0") {
        answer.version = fmt::format("{}:{}", node, cursor);
      } else if (mode_ == Mode::kCluster && node + 1 < slots_.nodes().size()) {
        answer.version = fmt::format("{}:0", node + 1);
      }
    }
  }
  queue_.Answer(std::move(answer));
}

void RedisLoop::Fail(const HostAndPort& of, RedisLink& link, const std::string& why) {
  Node& node = nodes_[of];
  node.down_until_us = now_us_ + node.pause_us;
  node.pause_us = std::min(2 * node.pause_us, kPauseMaxUs);
  if (mode_ == Mode::kSingle) {
    mode_ = Mode::kUnknown;
  } else if (mode_ == Mode::kCluster) {
    slots_are_old_ = true;
  }
  for (RedisCommand& command : link.Close()) {
    if (command.kind == RedisCommand::kSlots) discovering_ = false;
    GiveUp(command, ObjectOutcome::kUnavailable, fmt::format("{}:{}: {}", of.host, of.port, why));
  }
}

void RedisLoop::TurnNodes() {
  // A reply may make another node, which moves none of these.
  for (auto& [address, node] : nodes_) {
    for (RedisLink& link : node.links) {
      if (!link.is_open()) continue;
      link.Turn(now_us_);
      RedisCommand command;
      RespValue reply;
      while (link.is_open() && !queue_.stops() && link.Next(command, reply, now_us_)) {
        node.pause_us = kPauseMinUs;
        OnReply(address, command, reply);
      }
      link.Turn(now_us_);
      const std::string why = link.Failure(now_us_);
      if (why.empty()) continue;
      // A server may hang up on a connection that is not in use.
      if (link.is_idle()) {
        link.Close();
      } else {
        Fail(address, link, why);
      }
    }
  }
}

void RedisLoop::Poll() {
  std::vector<pollfd> polled = {{.fd = wake_, .events = POLLIN, .revents = 0}};
  bool any_pending = false;
  bool any_busy = !parked_.empty();
  for (auto& [address, node] : nodes_) {
    for (RedisLink& link : node.links) {
      if (!link.is_open()) continue;
      polled.push_back({.fd = link.descriptor(), .events = link.events(), .revents = 0});
      any_pending = any_pending || link.has_pending();
      any_busy = any_busy || !link.is_idle();
    }
  }
  poll(polled.data(), polled.size(), any_pending ? 0 : any_busy ? kPollMs : kIdleMs);
  if ((polled[0].revents & POLLIN) == 0) return;
  uint64_t count = 0;
  if (read(wake_, &count, sizeof(count)) < 0) return;  // it is asked again
}

void RedisLoop::Run() {
  while (!queue_.stops()) {
    now_us_ = clock_.NowMicros();
    for (ObjectRequest& request : queue_.TakeAsked()) {
      RedisCommand command{.request = std::move(request), .sent_us = now_us_};
      Encode(command);
      Route(std::move(command));
    }
    Discover();
    TurnNodes();
    while (!parked_.empty() && now_us_ > parked_.front().sent_us + kParkedUs) {
      GiveUp(parked_.front(), ObjectOutcome::kUnavailable, "no server has answered");
      parked_.pop_front();
    }
    Poll();
  }
}

class RedisObjects final : public Objects {
 public:
  RedisObjects(const RemoteAddress& address, const RemoteCredentials& credentials,
               std::unique_ptr<TlsContext> tls)
      : where_(Describe(address)),
        wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        loop_(address, credentials, std::move(tls), queue_, wake_),
        thread_(StartThread([this] { loop_.Run(); })) {}
  ~RedisObjects() override {
    queue_.Stop();
    Wake();
    thread_.join();
    close(wake_);
  }

  void Ask(ObjectRequest request) override {
    queue_.Ask(std::move(request));
    Wake();
  }
  void Take(std::vector<ObjectReply>& replies, uint64_t wait_us) override {
    queue_.TakeAnswered(replies, wait_us);
  }
  std::string where() const override { return where_; }

 private:
  void Wake() const {
    const uint64_t one = 1;
    if (write(wake_, &one, sizeof(one)) < 0) return;  // it is awake then
  }

  const std::string where_;
  ObjectQueue queue_;
  const int wake_;
  RedisLoop loop_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Objects>> OpenRedis(const RemoteAddress& address,
                                           const RemoteCredentials& credentials) {
  std::unique_ptr<TlsContext> tls;
  if (address.tls) {
    QUIRE_ASSIGN(tls, TlsContext::Create(address.ca_file));
  }
  return std::make_unique<RedisObjects>(address, credentials, std::move(tls));
}

}  // namespace quire::remote
