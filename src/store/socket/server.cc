#include "store/socket/server.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/bits.h"
#include "base/log.h"
#include "env/clock.h"

namespace quire::store {
namespace {

constexpr uint64_t kCopyBytesMax = uint64_t{64} << 20;  // or one packet's, if that is more
constexpr uint64_t kGreetingUs = 10'000'000;
constexpr uint64_t kGreetingMax = 16;         // more wait to be accepted
constexpr uint64_t kAcceptPauseUs = 100'000;  // when the system has no descriptor left
constexpr uint64_t kLastAnswersUs = 1'000'000;
constexpr uint32_t kPacketsPerTurn = 16;  // of one client, before the next one's turn

uint64_t NowMicros() { return SystemClock().NowMicros(); }

std::vector<std::string_view> KeysOf(const PacketRequest& request) {
  std::vector<std::string_view> keys;
  for (const auto& block : request.blocks) keys.push_back(block.key);
  return keys;
}

uint64_t PayloadOf(const PacketRequest& request) {
  uint64_t bytes = 0;
  for (const auto& block : request.blocks) bytes += block.bytes;
  return bytes;
}

bool IsAnsweredNow(PacketKind kind) {
  return kind == PacketKind::kLimits || kind == PacketKind::kUsage || kind == PacketKind::kStats;
}

}  // namespace

Result<std::unique_ptr<StoreServer>> StoreServer::Create(BlockStore& store,
                                                         const StoreServerOptions& options) {
  if (options.clients_max == 0 || options.client_bytes == 0 || options.client_blocks_max == 0) {
    return Fail(ErrorCode::kInvalidArgument, "store server: a limit of 0");
  }
  QUIRE_ASSIGN(auto stop, Event::Create());
  QUIRE_ASSIGN(auto listener, UnixListener::Listen(options.socket, options.access));
  return std::unique_ptr<StoreServer>(new StoreServer(store, options, store.stats().block_bytes_max,
                                                      std::move(listener), std::move(stop)));
}

StoreServer::StoreServer(BlockStore& store, const StoreServerOptions& options,
                         uint64_t block_bytes_max, std::unique_ptr<UnixListener> listener,
                         std::unique_ptr<Event> stop)
    : store_(store),
      options_(options),
      block_bytes_max_(block_bytes_max),
      slab_bytes_(RoundUp(std::max(options.client_bytes, block_bytes_max), kSlabAlignment)),
      listener_(std::move(listener)),
      stop_(std::move(stop)),
      buffer_(kPacketBytesMax) {}

void StoreServer::Run() {
  while (listener_ != nullptr) Turn(/*serves=*/true);
  while (!batches_.empty()) Turn(/*serves=*/false);
  const uint64_t end_us = NowMicros() + kLastAnswersUs;
  const auto has_answers = [](const Client& client) { return !client.answers.empty(); };
  while (std::ranges::any_of(clients_, has_answers) && NowMicros() < end_us) {
    Turn(/*serves=*/false);
  }
  clients_.clear();
}

void StoreServer::Turn(bool serves) {
  std::vector<pollfd> waiting = {{.fd = stop_->descriptor(), .events = POLLIN, .revents = 0},
                                 {.fd = store_.event_fd(), .events = POLLIN, .revents = 0}};
  if (!serves) waiting[0].fd = -1;
  const bool accepts = serves && NowMicros() >= accepts_after_us_ &&
                       clients_.size() < uint64_t{options_.clients_max} + kGreetingMax;
  waiting.push_back({.fd = accepts ? listener_->descriptor() : -1, .events = POLLIN, .revents = 0});
  bool greets = !accepts || !serves;
  for (const Client& client : clients_) {
    const bool reads = serves && client.answers.empty() && client.put_back.empty();
    const int events = (reads ? POLLIN : 0) | (client.answers.empty() ? 0 : POLLOUT);
    waiting.push_back({.fd = client.gone ? -1 : client.socket.descriptor(),
                       .events = static_cast<int16_t>(events),
                       .revents = 0});
    greets = greets || client.greets_until_us != 0;
  }
  if (::poll(waiting.data(), waiting.size(), greets ? 100 : -1) < 0) return;
  if (waiting[0].revents != 0) {
    listener_.reset();
    return;
  }
  TakeEnded();
  size_t at = 3;
  for (Client& client : clients_) {
    const int16_t events = waiting[at++].revents;
    if (client.gone) continue;
    if ((events & (POLLHUP | POLLERR)) != 0) {
      Leave(client, "left");
      continue;
    }
    if (!client.answers.empty()) SendAnswers(client);
    if (serves && !client.put_back.empty()) {
      Take(client, std::exchange(client.put_back, {}));
    } else if (serves && (events & POLLIN) != 0) {
      Read(client);
    }
    if (client.greets_until_us != 0 && NowMicros() > client.greets_until_us) {
      Leave(client, "did not greet");
    }
  }
  if (waiting[2].revents != 0) Accept();
  std::erase_if(clients_, [](const Client& client) { return client.gone && client.batches == 0; });
}

void StoreServer::Accept() {
  auto socket = listener_->Accept();
  if (!socket) {
    accepts_after_us_ = NowMicros() + kAcceptPauseUs;
    return;
  }
  const UnixSocket::Peer peer = socket->peer();
  clients_.push_back(
      {.socket = std::move(*socket), .peer = peer, .greets_until_us = NowMicros() + kGreetingUs});
}

void StoreServer::Refuse(UnixSocket& socket, const Error& error) {
  LogWarn("store server: a client of process {} is refused: {}", socket.peer().pid, error.message);
  PacketWriter writer;
  writer.Add(store::Welcome{.refused = static_cast<uint32_t>(error.code)});
  writer.Add(error.message);
  (void)socket.Send(writer.Take());
}

void StoreServer::Leave(Client& client, std::string_view why) {
  LogInfo("store server: process {} {}, {} batches are under way", client.peer.pid, why,
          client.batches);
  client.gone = true;
  client.answers.clear();
  client.put_back.clear();
  client.socket = UnixSocket(Descriptor());
}

void StoreServer::Read(Client& client) {
  for (uint32_t i = 0; i < kPacketsPerTurn && client.answers.empty(); ++i) {
    const auto packet = client.socket.Receive(buffer_);
    if (!packet) return Leave(client, "is left: " + packet.error().message);
    if (!*packet) return;
    if ((*packet)->bytes == 0) return Leave(client, "left");
    Take(client, std::span(buffer_).first((*packet)->bytes));
    if (client.gone || !client.put_back.empty()) return;
  }
}

void StoreServer::Take(Client& client, std::span<const std::byte> packet) {
  if (client.greets_until_us != 0) return Greet(client, packet);
  const auto request = ParseRequest(packet, slab_bytes_);
  if (!request) return Leave(client, "is left: " + request.error().message);
  if (IsAnsweredNow(request->kind)) return AnswerNow(client, *request);
  const uint64_t blocks = std::max<uint64_t>(request->blocks.size(), 1);
  if (client.blocks + blocks > options_.client_blocks_max ||
      client.slab_bytes_used + PayloadOf(*request) > slab_bytes_) {
    return Leave(client, "is left: it has more under way than it may");
  }
  try {
    if (!Begin(client, *request)) client.put_back.assign(packet.begin(), packet.end());
  } catch (const std::bad_alloc&) {
    Leave(client, "is left: there is no memory for what it asks");
  }
}

uint64_t StoreServer::Serves() const {
  return static_cast<uint64_t>(std::ranges::count_if(
      clients_, [](const Client& client) { return !client.gone && client.greets_until_us == 0; }));
}

void StoreServer::Greet(Client& client, std::span<const std::byte> packet) {
  if (const auto hello = ParseHello(packet); !hello) {
    Refuse(client.socket, hello.error());
    return Leave(client, "is refused");
  }
  if (Serves() >= options_.clients_max) {
    Refuse(client.socket,
           {ErrorCode::kBusy, fmt::format("store {}: it serves {} clients, the most it may",
                                          options_.socket, options_.clients_max)});
    return Leave(client, "is refused");
  }
  auto slab = SharedMemory::Create(slab_bytes_);
  if (!slab) {
    Refuse(client.socket, slab.error());
    return Leave(client, "is refused");
  }
  client.slab = std::move(*slab);
  client.greets_until_us = 0;
  PacketWriter writer;
  writer.Add(store::Welcome{.slab_bytes = slab_bytes_,
                            .block_bytes_max = block_bytes_max_,
                            .blocks_max = options_.client_blocks_max});
  const auto sent = client.socket.Send(writer.Take(), client.slab.descriptor());
  if (!sent || !*sent) return Leave(client, "left");
  LogInfo("store server: process {} of user {} connected", client.peer.pid, client.peer.uid);
}

bool StoreServer::Begin(Client& client, const PacketRequest& request) {
  Batch batch = {.client = &client,
                 .kind = request.kind,
                 .number = request.number,
                 .blocks = std::max(static_cast<uint32_t>(request.blocks.size()), uint32_t{1}),
                 .slab_bytes = PayloadOf(request)};
  if (request.kind == PacketKind::kPut) {
    if (copy_bytes_ > 0 && copy_bytes_ + batch.slab_bytes > kCopyBytesMax) return false;
    batch.copy = std::make_unique_for_overwrite<std::byte[]>(batch.slab_bytes);
    std::byte* to = batch.copy.get();
    for (const auto& block : request.blocks) {
      const auto from = client.slab.bytes().subspan(block.offset, block.bytes);
      to = std::copy_n(from.data(), from.size(), to);
    }
    batch.copy_bytes = batch.slab_bytes;
    copy_bytes_ += batch.copy_bytes;
  }
  ++client.batches;
  client.blocks += batch.blocks;
  client.slab_bytes_used += batch.slab_bytes;
  const uint64_t id = HandIn(client, request, batch);
  batches_.emplace(id, std::move(batch));  // the copy stays where it is
  return true;
}

uint64_t StoreServer::HandIn(Client& client, const PacketRequest& request, Batch& batch) {
  switch (request.kind) {
    case PacketKind::kPut: {
      std::vector<BlockPut> puts;
      const std::byte* at = batch.copy.get();
      for (const auto& block : request.blocks) {
        puts.push_back({block.key, {at, block.bytes}});
        at += block.bytes;
      }
      return store_.Put(request.name_space, puts);
    }
    case PacketKind::kGet: {
      std::vector<BlockGet> gets;
      for (const auto& block : request.blocks) {
        gets.push_back({block.key, client.slab.bytes().subspan(block.offset, block.bytes)});
      }
      return store_.Get(request.name_space, gets);
    }
    case PacketKind::kExists: return store_.Exists(request.name_space, KeysOf(request));
    case PacketKind::kRemove: return store_.Remove(request.name_space, KeysOf(request));
    case PacketKind::kErase: return store_.Erase(request.name_space);
    default: return store_.Flush();
  }
}

void StoreServer::AnswerNow(Client& client, const PacketRequest& request) {
  PacketReply reply = {.kind = request.kind, .number = request.number};
  if (request.kind == PacketKind::kLimits) {
    if (!store_.SetLimits(request.name_space, request.limits)) {
      return Leave(client, "is left: the store is closed");
    }
  } else if (request.kind == PacketKind::kUsage) {
    const auto usage = store_.Usage(request.name_space);
    if (!usage) return Leave(client, "is left: the store is closed");
    reply.numbers = {usage->blocks, usage->bytes_live, usage->bytes};
  } else {
    BlockStoreStats stats = store_.stats();
    stats.clients = Serves();
    reply.numbers = NumbersOf(stats);
  }
  Say(client, reply, 0);
}

void StoreServer::TakeEnded() {
  for (BlockBatch& ended : store_.Drain()) {
    const auto node = batches_.extract(ended.id);
    const Batch& batch = node.mapped();
    Client& client = *batch.client;
    copy_bytes_ -= batch.copy_bytes;
    --client.batches;
    client.slab_bytes_used -= batch.slab_bytes;
    if (client.gone) continue;
    Say(client, {.kind = batch.kind, .number = batch.number, .results = std::move(ended.results)},
        batch.blocks);
  }
}

void StoreServer::Say(Client& client, const PacketReply& reply, uint32_t blocks) {
  client.answers.push_back({.packet = MakeReply(reply), .blocks = blocks});
  SendAnswers(client);
}

void StoreServer::SendAnswers(Client& client) {
  while (!client.answers.empty()) {
    const auto sent = client.socket.Send(client.answers.front().packet);
    if (!sent) return Leave(client, "left");
    if (!*sent) return;
    client.blocks -= client.answers.front().blocks;
    client.answers.pop_front();
  }
}

}  // namespace quire::store
