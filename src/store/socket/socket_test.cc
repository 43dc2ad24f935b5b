// A store that is served: as the local one for its clients, also when the owner or a client goes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <thread>

#include "store/socket/server.h"
#include "store/test_util.h"

namespace quire::store {
namespace {

using enum BlockOutcome;

class SocketStoreTest : public testing::Test {
 protected:
  ~SocketStoreTest() override { StopOwner(); }

  void StartOwner() {
    auto owned = BlockStore::Open(options_);
    ASSERT_TRUE(owned) << owned.error().message;
    owned_ = std::move(*owned);
    server_options_.socket = path_;
    auto server = StoreServer::Create(*owned_, server_options_);
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
    thread_ = std::thread([this] { server_->Run(); });
  }
  void StopOwner() {
    if (server_ == nullptr) return;
    server_->Stop();
    thread_.join();
    server_.reset();
    owned_.reset();
  }
  Result<std::unique_ptr<BlockStore>> TryConnect() {
    return BlockStore::Open({.directory = "unix:" + path_});
  }
  std::unique_ptr<BlockStore> Connect() {
    auto opened = TryConnect();
    EXPECT_TRUE(opened) << opened.error().message;
    return std::move(*opened);
  }
  /// A client that sends what it likes.
  UnixSocket ConnectRaw() {
    auto socket = UnixSocket::Connect(path_);
    EXPECT_TRUE(socket) << socket.error().message;
    return std::move(*socket);
  }
  /// Whether the owner has closed the connection, after whatever it said.
  static bool IsLeft(UnixSocket& socket) {
    Bytes buffer(kPacketBytesMax);
    while (socket.AwaitPacket(20'000'000)) {
      const auto packet = socket.Receive(buffer);
      if (!packet || (*packet && (*packet)->bytes == 0)) return true;
    }
    return false;
  }

  TestDirectory directory_;
  BlockStoreOptions options_ = TestOptions(directory_);
  const std::string path_ = directory_.path() + "/socket";
  StoreServerOptions server_options_{.client_bytes = 4 << 20};
  std::unique_ptr<BlockStore> owned_;
  std::unique_ptr<StoreServer> server_;
  std::thread thread_;
};

TEST_F(SocketStoreTest, ClientsShareBlocks) {
  StartOwner();
  const auto a = Connect();
  const auto b = Connect();
  const Bytes block = TestBlock(1, 300'001);
  PutOne(*a, "ns", "key", block);
  EXPECT_EQ(GetOne(*b, "ns", "key", 400'000), block);
  EXPECT_EQ(GetOne(*b, "ns", "key", 300'000), std::nullopt);
  EXPECT_EQ(GetOne(*b, "other", "key", 400'000), std::nullopt);
  PutOne(*b, "", "empty", {});
  EXPECT_EQ(GetOne(*a, "", "empty", 0), Bytes());
  const std::vector<std::string_view> keys = {"key", "none"};
  EXPECT_THAT(
      a->Wait(a->Exists("ns", keys))->results,
      testing::ElementsAre(testing::Field(&BlockResult::outcome, kOk), BlockResult{kAbsent}));
  EXPECT_THAT(b->Wait(b->Remove("ns", keys))->results,
              testing::ElementsAre(BlockResult{kOk}, BlockResult{kAbsent}));
  EXPECT_EQ(GetOne(*a, "ns", "key", 400'000), std::nullopt);
  EXPECT_TRUE(a->Wait(a->Flush()));
  const BlockStoreStats stats = a->stats();
  EXPECT_EQ(stats.clients, 2);
  EXPECT_EQ(stats.puts, 2);
  EXPECT_EQ(stats.removed, 1);
  EXPECT_EQ(stats.block_bytes_max, options_.block_bytes_max);
}

TEST_F(SocketStoreTest, BatchesLongerThanTheSharedMemoryEnd) {
  StartOwner();
  const auto store = Connect();
  constexpr uint64_t kBlocks = 60;
  std::vector<Bytes> blocks;
  std::vector<std::string> keys;
  for (uint64_t i = 0; i < kBlocks; ++i) blocks.push_back(TestBlock(i, 300'000 + i));
  for (uint64_t i = 0; i < kBlocks; ++i) keys.push_back(std::to_string(i));
  std::vector<BlockPut> puts;
  for (uint64_t i = 0; i < kBlocks; ++i) puts.push_back({keys[i], blocks[i]});
  const Bytes too_large(options_.block_bytes_max + 1);
  puts.push_back({"too large", too_large});
  const auto put = store->Wait(store->Put("", puts));
  for (uint64_t i = 0; i < kBlocks; ++i) EXPECT_EQ(put->results[i], BlockResult{kOk});
  EXPECT_EQ(put->results.back().outcome, kTooLarge);

  std::vector<Bytes> outs(kBlocks, Bytes(400'000));
  std::vector<BlockGet> gets;
  for (uint64_t i = 0; i < kBlocks; ++i) gets.push_back({keys[i], outs[i]});
  const uint64_t id = store->Get("", gets);
  std::vector<BlockBatch> drained;
  while (drained.empty()) drained = store->Drain();
  EXPECT_EQ(drained[0].id, id);
  for (uint64_t i = 0; i < kBlocks; ++i) {
    EXPECT_EQ(drained[0].results[i], (BlockResult{kOk, blocks[i].size()}));
    outs[i].resize(blocks[i].size());
    EXPECT_EQ(outs[i], blocks[i]);
  }
}

TEST_F(SocketStoreTest, ManyKeysAndWhatNoPacketTakes) {
  StartOwner();
  const auto store = Connect();
  const std::string longest(kKeyBytesMax, 'k');
  const std::string longer(kKeyBytesMax + 1, 'k');
  PutOne(*store, std::string(kNameBytesMax, 'n'), longest, TestBlock(1, 10));
  std::vector<std::string_view> keys(5000, longest);
  keys.push_back(longer);
  const auto ended = store->Wait(store->Exists(std::string(kNameBytesMax, 'n'), keys));
  EXPECT_THAT(std::span(ended->results).first(5000),
              testing::Each(testing::Field(&BlockResult::outcome, kOk)));
  EXPECT_EQ(ended->results.back().outcome, kTooLarge);
  const std::string long_name(kNameBytesMax + 1, 'n');
  EXPECT_EQ(store->Wait(store->Erase(long_name))->results[0].outcome, kTooLarge);
  EXPECT_THAT(store->Wait(store->Remove(long_name, keys))->results,
              testing::Each(BlockResult{kTooLarge}));
  EXPECT_EQ(store->Usage(long_name).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(store->Wait(store->Put("", {}))->results.empty());
}

TEST_F(SocketStoreTest, NamespacesHaveLimitsAndAreErased) {
  StartOwner();
  const auto store = Connect();
  ASSERT_TRUE(store->SetLimits("small", {.bytes_quota = 8 << 20}));
  for (uint64_t i = 0; i < 20; ++i) {
    PutOne(*store, "small", std::to_string(i), TestBlock(i, 1'000'000));
    ASSERT_LE(store->Usage("small")->bytes, 8 << 20);
  }
  EXPECT_GT(store->Usage("small")->blocks, 0);
  EXPECT_EQ(store->Wait(store->Erase("small"))->results[0], BlockResult{kOk});
  EXPECT_EQ(store->Usage("small")->blocks, 0);
  EXPECT_EQ(GetOne(*store, "small", "19", 1'000'000), std::nullopt);
}

TEST_F(SocketStoreTest, AnyThreadMayCall) {
  StartOwner();
  const auto store = Connect();
  std::atomic<uint64_t> hits = 0;
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      Prng prng(thread);
      for (uint64_t step = 0; step < 60; ++step) {
        const uint64_t number = prng.NextBelow(20);
        const std::string key = std::to_string(number);
        const Bytes block = TestBlock(number, 1000 + number * 5011);
        Bytes out(120'000);
        const BlockPut put = {key, block};
        const BlockGet get = {key, out};
        EXPECT_TRUE(store->Wait(store->Put("ns", {&put, 1})));
        const auto ended = store->Wait(store->Get("ns", {&get, 1}));
        ASSERT_TRUE(ended);
        if (ended->results[0].outcome == kOk) {
          out.resize(ended->results[0].bytes);
          EXPECT_EQ(out, block);
          ++hits;
        }
        if (step % 10 == 0) {
          const std::string_view view = key;
          EXPECT_TRUE(store->Wait(store->Remove("ns", {&view, 1})));
          EXPECT_GT(store->stats().bytes_cap, 0);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(hits, 0);
}

TEST_F(SocketStoreTest, ClosingEndsEverything) {
  StartOwner();
  const auto store = Connect();
  const Bytes block = TestBlock(1, 100'000);
  const BlockPut put = {"key", block};
  const uint64_t id = store->Put("", {&put, 1});
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) threads.emplace_back([&] { store->Close(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store->Wait(id, 0)->results[0], BlockResult{kOk});
  EXPECT_EQ(store->Wait(store->Put("", {&put, 1}))->results[0].outcome, kClosed);
  EXPECT_EQ(store->stats().puts, 1);
  StopOwner();
  const auto again = BlockStore::Open(options_);
  EXPECT_EQ(GetOne(**again, "", "key", 100'000), block);
}

TEST_F(SocketStoreTest, WhatIsUnderWayWhenTheOwnerGoesIsUnreachable) {
  StartOwner();
  const auto store = Connect();
  PutOne(*store, "", "key", TestBlock(1, 5000));
  StopOwner();
  const Bytes block = TestBlock(2, 5000);
  const BlockPut put = {"other", block};
  EXPECT_EQ(store->Wait(store->Put("", {&put, 1}))->results[0].outcome, kUnreachable);
  EXPECT_EQ(store->Wait(store->Erase(""))->results[0].outcome, kUnreachable);
  EXPECT_TRUE(store->Wait(store->Flush()));
  EXPECT_EQ(store->Usage("").error().code, ErrorCode::kIo);
  EXPECT_EQ(TryConnect().error().code, ErrorCode::kNotFound);

  StartOwner();
  std::optional<Bytes> found;
  while (!found) found = GetOne(*store, "", "key", 5000);
  EXPECT_EQ(found, TestBlock(1, 5000));
}

TEST_F(SocketStoreTest, TooManyClientsAreRefused) {
  server_options_.clients_max = 1;
  StartOwner();
  auto first = Connect();
  const auto second = TryConnect();
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kBusy);
  EXPECT_THAT(second.error().message, testing::HasSubstr("1 clients"));
  first.reset();
  while (!TryConnect()) {
  }
}

TEST_F(SocketStoreTest, TheNameHasItsModeAndReplacesWhatADeadOwnerLeft) {
  StartOwner();
  struct stat status{};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600);
  EXPECT_EQ(UnixListener::Listen(path_, {}).error().code, ErrorCode::kBusy);
  StopOwner();
  EXPECT_NE(::stat(path_.c_str(), &status), 0);
  {  // as after kill -9
    const auto left = UnixListener::Listen(path_ + ".left", {});
    ASSERT_TRUE(left);
    ASSERT_EQ(::link((path_ + ".left").c_str(), path_.c_str()), 0);
  }
  server_options_.access.mode = 0660;
  StartOwner();
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0660);
  const auto store = Connect();
  PutOne(*store, "", "key", TestBlock(1, 10));
  EXPECT_EQ(UnixListener::Listen(options_.directory, {}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(UnixListener::Listen(std::string(200, 'x'), {}).error().code,
            ErrorCode::kInvalidArgument);
}

// Packets that a client of ours never sends cost that client its connection, and no other.
TEST_F(SocketStoreTest, GarbageEndsItsConnectionAlone) {
  StartOwner();
  const auto good = Connect();
  PutOne(*good, "", "key", TestBlock(1, 5000));
  Prng prng(1);
  for (int round = 0; round < 60; ++round) {
    UnixSocket socket = ConnectRaw();
    PacketWriter hello;
    hello.Add(Hello{.version = round % 3 == 0 ? 2 : kProtocolVersion});
    if (round % 3 < 2) (void)socket.Send(hello.Take());
    for (int i = 0; i < 20; ++i) {
      Bytes packet(1 + prng.NextBelow(200));
      for (std::byte& byte : packet) byte = static_cast<std::byte>(prng.NextBelow(256));
      packet[0] = static_cast<std::byte>(1 + prng.NextBelow(9));
      if (packet.size() > 4) std::fill(packet.begin() + 1, packet.begin() + 4, std::byte{0});
      if (!socket.Send(packet)) break;
    }
    EXPECT_TRUE(IsLeft(socket));
  }
  EXPECT_EQ(GetOne(*good, "", "key", 5000), TestBlock(1, 5000));
  EXPECT_EQ(good->stats().blocks, 1);
}

// A client that asks for more at once than it may; one that asks and never reads.
TEST_F(SocketStoreTest, LimitsOfAClientHold) {
  server_options_.client_blocks_max = 10;
  StartOwner();
  {
    const auto store = Connect();
    const std::vector<std::string_view> keys(100, "key");
    EXPECT_EQ(store->Wait(store->Exists("", keys))->results.size(), 100);
  }
  UnixSocket socket = ConnectRaw();
  PacketWriter hello;
  hello.Add(Hello{});
  ASSERT_TRUE(socket.Send(hello.Take()));
  PacketWriter many;
  many.Add(RequestHeader{.kind = static_cast<uint32_t>(PacketKind::kExists), .count = 11});
  for (int i = 0; i < 11; ++i) many.Add(PacketItem{});
  ASSERT_TRUE(socket.Send(many.Take()));
  EXPECT_TRUE(IsLeft(socket));

  UnixSocket silent = ConnectRaw();
  hello.Add(Hello{});
  ASSERT_TRUE(silent.Send(hello.Take()));
  PacketWriter one;
  one.Add(RequestHeader{.kind = static_cast<uint32_t>(PacketKind::kExists), .count = 1});
  one.Add(PacketItem{});
  const auto packet = one.Take();
  for (int i = 0; i < 100'000; ++i) {
    // The owner reads no more, as its answers are not read; or leaves it: over 10 are under way.
    if (!silent.Send(packet).value_or(false)) break;
  }
  const auto other = Connect();
  PutOne(*other, "", "key", TestBlock(1, 100));
}

// Puts blocks for ever, and says so after the first one.
[[noreturn]] void PutUntilKilled(const std::string& path, int told) {
  auto store = BlockStore::Open({.directory = "unix:" + path});
  if (!store) ::_exit(1);
  for (uint64_t number = 0;; ++number) {
    std::vector<std::string> keys;
    std::vector<BlockPut> puts;
    const Bytes block = TestBlock(number, 200'000);
    for (int i = 0; i < 30; ++i) keys.push_back(std::to_string(number) + "/" + std::to_string(i));
    for (const std::string& key : keys) puts.push_back({key, block});
    const uint64_t id = (*store)->Put("dead", puts);
    if (::write(told, "x", 1) != 1) ::_exit(2);
    if (!(*store)->Wait(id)) ::_exit(3);
  }
}

TEST_F(SocketStoreTest, AClientThatIsKilledLeavesNothingBehind) {
  for (int round = 0; round < 5; ++round) {
    int told[2];
    ASSERT_EQ(::pipe(told), 0);
    StopOwner();  // no threads while this process forks
    const pid_t client = ::fork();
    if (client == 0) {
      ::usleep(100'000);
      while (!BlockStore::Open({.directory = "unix:" + path_})) ::usleep(10'000);
      PutUntilKilled(path_, told[1]);
    }
    StartOwner();
    char one = 0;
    ASSERT_EQ(::read(told[0], &one, 1), 1);
    ::usleep(static_cast<useconds_t>(round * 3000));
    ASSERT_EQ(::kill(client, SIGKILL), 0);
    ASSERT_EQ(::waitpid(client, nullptr, 0), client);
    ::close(told[0]);
    ::close(told[1]);
    const auto other = Connect();
    while (other->stats().clients > 1) std::this_thread::yield();
    EXPECT_EQ(other->Wait(other->Erase("dead"))->results[0], BlockResult{kOk});
    PutOne(*other, "dead", "0/0", TestBlock(7, 1000));
    EXPECT_EQ(GetOne(*other, "dead", "0/0", 1000), TestBlock(7, 1000));
  }
}

}  // namespace
}  // namespace quire::store
