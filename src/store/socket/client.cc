#include "store/socket/client.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "base/bits.h"
#include "base/log.h"
#include "base/thread.h"
#include "env/clock.h"

namespace quire::store {
namespace {

constexpr uint64_t kWelcomeUs = 5'000'000;
constexpr uint64_t kConnectPauseUs = 200'000;  // after one that failed
constexpr uint64_t kCallUs = 10'000'000;       // SetLimits, Usage, stats
constexpr uint64_t kPacketPayload = 4 << 20;   // so that both processes copy at the same time

uint64_t Now() { return SystemClock().NowMicros(); }

bool Reads(PacketKind kind) { return kind == PacketKind::kGet; }

}  // namespace

Result<std::unique_ptr<Connection>> Connection::Open(const std::string& path) {
  QUIRE_ASSIGN(UnixSocket socket, UnixSocket::Connect(path));
  PacketWriter writer;
  writer.Add(Hello{});
  QUIRE_TRY(socket.Send(writer.Take()));
  if (!socket.AwaitPacket(kWelcomeUs)) {
    return Fail(ErrorCode::kDeadline, path + ": the store's owner does not answer");
  }
  std::vector<std::byte> buffer(kPacketBytesMax);
  QUIRE_ASSIGN(auto packet, socket.Receive(buffer));
  if (!packet || packet->bytes == 0) {
    return Fail(ErrorCode::kIo, path + ": the store's owner has gone");
  }
  PacketReader reader{std::span<const std::byte>(buffer).first(packet->bytes)};
  Welcome welcome;
  if (!reader.Read(welcome) || welcome.magic != kProtocolMagic) {
    return Fail(ErrorCode::kCorrupt, path + ": no store answers there");
  }
  if (welcome.refused != 0) {
    std::string_view why;
    (void)reader.Read(reader.left(), why);
    const bool known = welcome.refused <= static_cast<uint32_t>(ErrorCode::kTooLarge);
    return Fail(known ? static_cast<ErrorCode>(welcome.refused) : ErrorCode::kIo, std::string(why));
  }
  if (welcome.version != kProtocolVersion) {
    return Fail(ErrorCode::kUnsupported, fmt::format("{}: version {} of an owner, {} here", path,
                                                     welcome.version, kProtocolVersion));
  }
  QUIRE_ASSIGN(auto slab, SharedMemory::Map(std::move(packet->descriptor), welcome.slab_bytes));
  return std::make_unique<Connection>(std::move(socket), std::move(slab),
                                      tier::Arena(welcome.slab_bytes), welcome);
}

Result<std::unique_ptr<BlockStore::Impl>> Connect(const std::string& socket) {
  QUIRE_ASSIGN(auto event, Event::Create());
  QUIRE_ASSIGN(auto wake, Event::Create());
  QUIRE_ASSIGN(auto connection, Connection::Open(socket));
  auto store = std::make_unique<SocketStore>(socket, std::move(connection), std::move(event),
                                             std::move(wake));
  try {
    store->Start();
  } catch (const std::exception& error) {
    return Fail(ErrorCode::kIo, error.what());
  }
  return store;
}

SocketStore::SocketStore(std::string path, std::unique_ptr<Connection> connection,
                         std::unique_ptr<Event> event, std::unique_ptr<Event> wake)
    : Impl(std::move(event)),
      path_(std::move(path)),
      wake_(std::move(wake)),
      connection_(std::move(connection)),
      buffer_(kPacketBytesMax) {}

SocketStore::~SocketStore() = default;

void SocketStore::Start() {
  thread_ = StartThread([this] { Run(); });
}

uint64_t SocketStore::Put(std::string_view name_space, std::span<const BlockPut> blocks) {
  std::vector<Item> items;
  for (const BlockPut& block : blocks) {
    items.push_back({.key = std::string(block.key), .data = block.data});
  }
  return Submit(PacketKind::kPut, name_space, std::move(items));
}

uint64_t SocketStore::Get(std::string_view name_space, std::span<const BlockGet> blocks) {
  std::vector<Item> items;
  for (const BlockGet& block : blocks) {
    items.push_back({.key = std::string(block.key), .out = block.out});
  }
  return Submit(PacketKind::kGet, name_space, std::move(items));
}

uint64_t SocketStore::Exists(std::string_view name_space, std::span<const std::string_view> keys) {
  return SubmitKeys(PacketKind::kExists, name_space, keys);
}

uint64_t SocketStore::Remove(std::string_view name_space, std::span<const std::string_view> keys) {
  return SubmitKeys(PacketKind::kRemove, name_space, keys);
}

uint64_t SocketStore::Erase(std::string_view name_space) {
  return Submit(PacketKind::kErase, name_space, {});
}

uint64_t SocketStore::Flush() { return Submit(PacketKind::kFlush, "", {}); }

uint64_t SocketStore::SubmitKeys(PacketKind kind, std::string_view name_space,
                                 std::span<const std::string_view> keys) {
  std::vector<Item> items;
  for (const std::string_view key : keys) items.push_back({.key = std::string(key)});
  return Submit(kind, name_space, std::move(items));
}

uint64_t SocketStore::Submit(PacketKind kind, std::string_view name_space,
                             std::vector<Item> items) {
  auto work = std::make_shared<Work>();
  const bool one = kind == PacketKind::kFlush || kind == PacketKind::kErase;
  work->kind = kind;
  work->name_space = name_space;
  work->results.resize(kind == PacketKind::kErase ? 1 : items.size());
  work->left = one ? 1 : items.size();
  work->items = std::move(items);
  const uint64_t id = batches_.Enter();
  work->id = id;
  MutexLock lock(mutex_);
  if (closing_ || work->left == 0) {
    std::ranges::fill(work->results, BlockResult{.outcome = BlockOutcome::kClosed});
    batches_.End(id, std::move(work->results));
  } else {
    HandIn(std::move(work));
  }
  return id;
}

void SocketStore::HandIn(std::shared_ptr<Work> work) {
  submitted_.push_back(std::move(work));
  wake_->Set();
}

Result<std::vector<uint64_t>> SocketStore::Ask(PacketKind kind, std::string_view name_space,
                                               const NamespaceLimits& limits) {
  if (name_space.size() > kNameBytesMax) {
    return quire::Fail(ErrorCode::kInvalidArgument,
                       fmt::format("store: a namespace of {} bytes, at most {} over a socket",
                                   name_space.size(), kNameBytesMax));
  }
  MutexLock lock(mutex_);
  if (closing_) return quire::Fail(ErrorCode::kInvalidArgument, "store: it is closed");
  return AskNow(kind, name_space, limits, kCallUs);
}

Result<std::vector<uint64_t>> SocketStore::AskNow(PacketKind kind, std::string_view name_space,
                                                  const NamespaceLimits& limits,
                                                  uint64_t timeout_us) {
  auto work = std::make_shared<Work>();
  const auto call = std::make_shared<Call>();
  work->kind = kind;
  work->name_space = name_space;
  work->limits = limits;
  work->call = call;
  work->left = 1;
  HandIn(std::move(work));
  const uint64_t begin_us = Now();
  while (!call->ended) {
    const uint64_t waited_us = Now() - begin_us;
    if (waited_us >= timeout_us) {
      return quire::Fail(ErrorCode::kDeadline, path_ + ": the store's owner does not answer");
    }
    call_ended_.WaitFor(mutex_, timeout_us - waited_us);
  }
  if (!call->ok) return quire::Fail(ErrorCode::kIo, path_ + ": the store's owner has gone");
  return std::move(call->numbers);
}

Result<void> SocketStore::SetLimits(std::string_view name_space, const NamespaceLimits& limits) {
  QUIRE_TRY(Ask(PacketKind::kLimits, name_space, limits));
  return {};
}

Result<NamespaceUsage> SocketStore::Usage(std::string_view name_space) {
  QUIRE_ASSIGN(const auto numbers, Ask(PacketKind::kUsage, name_space));
  if (numbers.size() < 3) return quire::Fail(ErrorCode::kCorrupt, path_ + ": no usage");
  return NamespaceUsage{.blocks = numbers[0], .bytes_live = numbers[1], .bytes = numbers[2]};
}

BlockStoreStats SocketStore::stats() {
  const auto numbers = Ask(PacketKind::kStats, "");
  MutexLock lock(mutex_);
  if (numbers) last_stats_ = StatsOf(*numbers);
  return last_stats_;
}

void SocketStore::Close() {
  {
    MutexLock lock(mutex_);
    if (std::exchange(closing_, true)) {
      while (!joined_) call_ended_.Wait(mutex_);
      return;
    }
    (void)AskNow(PacketKind::kFlush, "", {}, ~uint64_t{0});
    const auto numbers = AskNow(PacketKind::kStats, "", {}, kCallUs);
    if (numbers) last_stats_ = StatsOf(*numbers);
    stopping_ = true;
    wake_->Set();
  }
  if (thread_.joinable()) thread_.join();
  MutexLock lock(mutex_);
  joined_ = true;
  call_ended_.NotifyAll();
}

void SocketStore::Run() {
  while (TakeSubmitted()) {
    if (!queue_.empty() && !HasConnection()) {
      while (!queue_.empty()) {
        Fail(queue_.front(), BlockOutcome::kUnreachable);
        queue_.pop_front();
      }
    }
    const bool sent = SendSome();
    const bool received = Receive();
    if (!sent && !received) Await();
  }
  connection_.reset();
}

bool SocketStore::TakeSubmitted() {
  wake_->Clear();
  MutexLock lock(mutex_);
  for (auto& work : submitted_) queue_.push_back(std::move(work));
  submitted_.clear();
  return !stopping_ || !queue_.empty() || !sent_.empty();
}

bool SocketStore::HasConnection() {
  if (connection_ != nullptr) return true;
  if (Now() < connects_after_us_) return false;
  auto opened = Connection::Open(path_);
  if (!opened) {
    connects_after_us_ = Now() + kConnectPauseUs;
    LogDebug("store {}", opened.error().message);
    return false;
  }
  connection_ = std::move(*opened);
  LogInfo("store {}: connected again", path_);
  return true;
}

bool SocketStore::SendSome() {
  bool sent = false;
  while (connection_ != nullptr && (!unsent_.empty() || !queue_.empty())) {
    if (unsent_.empty()) {
      const std::shared_ptr<Work> work = queue_.front();
      if (!SendPacket(work)) break;
      if (work->next >= work->items.size()) queue_.pop_front();
    }
    if (!unsent_.empty()) {
      const auto taken = connection_->socket.Send(unsent_);
      if (!taken) {
        Lose(taken.error().message);
        break;
      }
      if (!*taken) break;
      unsent_.clear();
    }
    sent = true;
  }
  return sent;
}

// False: there is no room for any of it now.
bool SocketStore::SendPacket(const std::shared_ptr<Work>& work) {
  PacketWriter writer;
  const bool has_items = !work->items.empty();
  if (work->name_space.size() > kNameBytesMax) {
    Fail(work, BlockOutcome::kTooLarge);
    return true;
  }
  Packet packet = Gather(work, writer);
  if (has_items && packet.items.empty()) {
    EndIfDone(work);
    return work->next >= work->items.size();
  }
  blocks_ += std::max<size_t>(packet.items.size(), 1);
  unsent_ = writer.Take();
  sent_.emplace(packets_, std::move(packet));
  return true;
}

SocketStore::Packet SocketStore::Gather(const std::shared_ptr<Work>& work, PacketWriter& writer) {
  Packet packet = {.work = work};
  std::vector<PacketItem> items;
  std::string keys;
  size_t packet_bytes = sizeof(RequestHeader) + work->name_space.size();
  uint64_t payload = 0;
  for (; work->next < work->items.size() && payload < kPacketPayload; ++work->next) {
    const Item& item = work->items[work->next];
    const size_t more = sizeof(PacketItem) + item.key.size();
    if (items.size() == kPacketItemsMax ||
        blocks_ + items.size() >= connection_->welcome.blocks_max)
      break;
    const bool is_too_large =
        item.key.size() > kKeyBytesMax || item.data.size() > connection_->welcome.block_bytes_max;
    if (is_too_large) {
      EndItem(*work, work->next, {.outcome = BlockOutcome::kTooLarge});
      continue;
    }
    if (packet_bytes + more > kPacketBytesMax) break;
    if (!TryItem(*work, work->next, packet, items)) break;
    packet_bytes += more;
    payload += items.back().bytes;
    keys += item.key;
  }
  writer.Add(RequestHeader{.kind = static_cast<uint32_t>(work->kind),
                           .count = static_cast<uint32_t>(items.size()),
                           .number = ++packets_,
                           .name_bytes = static_cast<uint32_t>(work->name_space.size()),
                           .limits = {work->limits.bytes_quota, work->limits.bytes_floor}});
  writer.Add(work->name_space);
  for (const PacketItem& item : items) writer.Add(item);
  writer.Add(keys);
  return packet;
}

bool SocketStore::TryItem(Work& work, size_t index, Packet& packet,
                          std::vector<PacketItem>& items) {
  const Item& item = work.items[index];
  const std::span<std::byte> slab = connection_->slab.bytes();
  const uint64_t bytes =
      Reads(work.kind) ? std::min<uint64_t>(item.out.size(), slab.size()) : item.data.size();
  Stretch stretch = {.bytes = bytes};
  if (bytes > 0) {
    connection_->free.Prepare();
    const auto begin = connection_->free.Take(RoundUp(bytes, kSlabAlignment));
    if (!begin) return false;
    stretch.begin = *begin;
    if (!Reads(work.kind)) std::copy_n(item.data.data(), bytes, slab.data() + *begin);
  }
  packet.items.push_back(index);
  packet.slab.push_back(stretch);
  items.push_back({.offset = stretch.begin,
                   .bytes = bytes,
                   .key_bytes = static_cast<uint32_t>(item.key.size())});
  return true;
}

bool SocketStore::Receive() {
  bool received = false;
  while (connection_ != nullptr) {
    auto packet = connection_->socket.Receive(buffer_);
    if (!packet) {
      Lose(packet.error().message);
      return true;
    }
    if (!*packet) return received;
    if ((*packet)->bytes == 0) {
      Lose("it has gone");
      return true;
    }
    const auto reply = ParseReply(std::span(buffer_).first((*packet)->bytes));
    if (!reply || !Take(*reply)) Lose("it says what no owner says");
    received = true;
  }
  return received;
}

bool SocketStore::Take(const PacketReply& reply) {
  const auto found = sent_.find(reply.number);
  if (found == sent_.end() || found->second.work->kind != reply.kind) return false;
  const Packet packet = std::move(found->second);
  const std::shared_ptr<Work>& work = packet.work;
  const bool is_erase = reply.kind == PacketKind::kErase;
  if (reply.results.size() != packet.items.size() + (is_erase ? 1 : 0)) {
    found->second = packet;
    return false;
  }
  sent_.erase(found);
  for (size_t i = 0; i < packet.items.size(); ++i) {
    const BlockResult result = TakeBlock(*work, packet.items[i], packet.slab[i], reply.results[i]);
    EndItem(*work, packet.items[i], result);
  }
  GiveBack(packet);
  if (is_erase) work->results[0] = reply.results[0];
  if (packet.items.empty()) --work->left;
  if (work->call != nullptr) {
    MutexLock lock(mutex_);
    work->call->ok = true;
    work->call->numbers = reply.numbers;
  }
  EndIfDone(work);
  return true;
}

BlockResult SocketStore::TakeBlock(const Work& work, size_t item, const Stretch& stretch,
                                   const BlockResult& result) {
  if (!Reads(work.kind) || result.outcome != BlockOutcome::kOk) return result;
  if (result.bytes > stretch.bytes) return {.outcome = BlockOutcome::kDamaged};
  std::copy_n(connection_->slab.bytes().data() + stretch.begin, result.bytes,
              work.items[item].out.data());
  return result;
}

void SocketStore::GiveBack(const Packet& packet) {
  blocks_ -= std::max<size_t>(packet.items.size(), 1);
  for (const Stretch& stretch : packet.slab) {
    if (stretch.bytes == 0) continue;
    connection_->free.Prepare();
    connection_->free.Give(stretch.begin, RoundUp(stretch.bytes, kSlabAlignment));
  }
}

void SocketStore::EndItem(Work& work, size_t item, const BlockResult& result) {
  work.results[item] = result;
  --work.left;
}

void SocketStore::EndIfDone(const std::shared_ptr<Work>& work) {
  if (work->left > 0) return;
  if (work->call == nullptr) return batches_.End(work->id, std::move(work->results));
  MutexLock lock(mutex_);
  work->call->ended = true;
  call_ended_.NotifyAll();
}

// What was not sent, and will not be.
void SocketStore::Fail(const std::shared_ptr<Work>& work, BlockOutcome outcome) {
  const BlockResult result = {.outcome = outcome};
  for (; work->next < work->items.size(); ++work->next) EndItem(*work, work->next, result);
  if (work->items.empty()) {
    std::ranges::fill(work->results, result);
    work->left = 0;
  }
  EndIfDone(work);
}

void SocketStore::Lose(std::string_view why) {
  LogWarn("store {}: the connection to its owner is lost ({}); {} requests end", path_, why,
          sent_.size());
  connection_.reset();
  unsent_.clear();
  blocks_ = 0;
  std::vector<std::shared_ptr<Work>> works;
  for (const auto& [number, packet] : std::exchange(sent_, {})) {
    for (const size_t item : packet.items) {
      EndItem(*packet.work, item, {.outcome = BlockOutcome::kUnreachable});
    }
    works.push_back(packet.work);
  }
  // A batch that was sent in part ends; the others are sent again to the next owner.
  if (!queue_.empty() && queue_.front()->next > 0) {
    works.push_back(queue_.front());
    queue_.pop_front();
  }
  std::ranges::sort(works);
  works.erase(std::ranges::unique(works).begin(), works.end());
  for (const auto& work : works) Fail(work, BlockOutcome::kUnreachable);
}

void SocketStore::Await() {
  std::array<pollfd, 2> waiting = {
      pollfd{.fd = wake_->descriptor(), .events = POLLIN, .revents = 0},
      pollfd{.fd = connection_ == nullptr ? -1 : connection_->socket.descriptor(),
             .events = static_cast<int16_t>(POLLIN | (unsent_.empty() ? 0 : POLLOUT)),
             .revents = 0}};
  (void)::poll(waiting.data(), waiting.size(), -1);
}

}  // namespace quire::store
