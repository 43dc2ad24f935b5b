// The store of opaque blocks, in batches of eight: putting beside as many files, each written past
// the page cache and synced, by threads; reading out of memory beside a copy; and all of it through
// a socket beside the process that owns the store.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "bench/bench.h"
#include "bench/context.h"
#include "bench/must.h"
#include "bench/quiet.h"
#include "env/host_buffer.h"
#include "quire/store.h"
#include "store/socket/server.h"

namespace quire::bench {
namespace {

constexpr uint64_t kBatch = 8;               // blocks
constexpr uint64_t kBatchesMax = 8;          // that a store holds
constexpr uint64_t kBesideBytes = 16 << 10;  // other bytes that a block takes in memory, rounded up

/// A store, and a batch of blocks to put under new names each time.
struct OpaqueBlocks {
  OpaqueBlocks(uint64_t bytes, BlockStoreOptions options)
      : memory(PlainHostAllocator(), 2 * kBatch * bytes, "blocks"),
        from(memory.bytes().first(kBatch * bytes)),
        to(memory.bytes().last(kBatch * bytes)),
        block_bytes(bytes) {
    Prng prng(3);
    for (uint64_t at = 0; at < from.size(); at += sizeof(uint64_t)) {
      const uint64_t number = prng.Next64();
      std::memcpy(from.data() + at, &number, sizeof(number));
    }
    options.directory = directory / "store";
    options.bytes_cap = kBatchesMax * kBatch * bytes;
    options.block_bytes_max = bytes;
    options.scrub_bytes_per_s = 0;
    store = Must(BlockStore::Open(options));
  }

  /// Makes all segments, as in a store that has run for a while.
  void Fill() {
    for (uint64_t i = 0; i < kBatchesMax + 1; ++i) Put();
  }
  double Put() {
    ++batches;
    const std::vector<std::string> keys = Keys();
    std::vector<BlockPut> puts;
    for (uint64_t i = 0; i < kBatch; ++i) puts.push_back({.key = keys[i], .data = Block(from, i)});
    const double begin_s = WallSeconds();
    Check(store->Put("bench", puts));
    return WallSeconds() - begin_s;
  }
  /// The batch that was put last.
  double Get() {
    const std::vector<std::string> keys = Keys();
    std::vector<BlockGet> gets;
    for (uint64_t i = 0; i < kBatch; ++i) gets.push_back({.key = keys[i], .out = Block(to, i)});
    const double begin_s = WallSeconds();
    Check(store->Get("bench", gets));
    return WallSeconds() - begin_s;
  }
  double Copy() {
    const double begin_s = WallSeconds();
    std::memcpy(to.data(), from.data(), from.size());
    return WallSeconds() - begin_s;
  }
  /// The same blocks as files, each by a thread of its own.
  double WriteFiles() {
    const double begin_s = WallSeconds();
    std::vector<std::jthread> threads;
    for (uint64_t i = 0; i < kBatch; ++i) {
      threads.emplace_back([this, i] {
        const std::string path = directory / fmt::format("file-{}", i);
        const int file = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_DIRECT, 0600);
        QUIRE_CHECK_MSG(file >= 0, path);
        const std::span<std::byte> block = Block(from, i);
        QUIRE_CHECK(::write(file, block.data(), block.size()) ==
                    static_cast<ssize_t>(block.size()));
        QUIRE_CHECK(::fsync(file) == 0);
        QUIRE_CHECK(::close(file) == 0);
      });
    }
    threads.clear();
    return WallSeconds() - begin_s;
  }

  std::vector<std::string> Keys() const {
    std::vector<std::string> keys;
    for (uint64_t i = 0; i < kBatch; ++i) keys.push_back(fmt::format("{}/{}", batches, i));
    return keys;
  }
  std::span<std::byte> Block(std::span<std::byte> of, uint64_t i) const {
    return of.subspan(i * block_bytes, block_bytes);
  }
  void Check(uint64_t batch) const {
    for (const BlockResult& result : Must(store->Wait(batch)).results) {
      QUIRE_CHECK_MSG(result.outcome == BlockOutcome::kOk, BlockOutcomeName(result.outcome));
    }
  }

  const Directory directory;
  const HostBuffer memory;
  const std::span<std::byte> from;
  const std::span<std::byte> to;
  const uint64_t block_bytes;
  uint64_t batches = 0;
  std::unique_ptr<BlockStore> store;
};

/// The same store behind a socket: `store` is a client, and the owner serves on a thread.
struct ServedBlocks : OpaqueBlocks {
  ServedBlocks(uint64_t bytes, const BlockStoreOptions& options) : OpaqueBlocks(bytes, options) {
    owned = std::move(store);
    const std::string socket = directory / "socket";
    server = Must(store::StoreServer::Create(*owned, {.socket = socket}));
    thread = std::thread([this] { server->Run(); });
    store = Must(BlockStore::Open({.directory = "unix:" + socket}));
  }
  ~ServedBlocks() {
    store.reset();
    server->Stop();
    thread.join();
  }

  std::unique_ptr<BlockStore> owned;
  std::unique_ptr<store::StoreServer> server;
  std::thread thread;
};

Timed InGigabytes(const OpaqueBlocks& blocks, std::string slice) {
  Timed timed;
  timed.unit = "GB/s";
  timed.amount = static_cast<double>(blocks.from.size()) * 1e-9;
  timed.slice = std::move(slice);
  return timed;
}

Result<Subject> PutDurable(uint64_t bytes) {
  auto blocks = std::make_shared<OpaqueBlocks>(bytes, BlockStoreOptions{});
  blocks->Fill();
  Timed timed = InGigabytes(*blocks, "puts eight blocks, until they are durable");
  timed.work = [blocks](uint32_t) { return blocks->Put(); };
  timed.floor = [blocks](uint32_t) { return blocks->WriteFiles(); };
  timed.note = [] { return "eight threads write each a file, past the page cache, and sync it"; };
  return timed;
}

Result<Subject> PutAccepted(uint64_t bytes) {
  auto blocks = std::make_shared<OpaqueBlocks>(
      bytes,
      BlockStoreOptions{.memory_bytes = 4 * kBatch * (bytes + kBesideBytes), .accepts_puts = true});
  blocks->Fill();
  Timed timed = InGigabytes(*blocks,
                            "puts eight blocks, until they can be found; nothing is under "
                            "way before");
  timed.work = [blocks](uint32_t) {
    blocks->Check(blocks->store->Flush());
    return blocks->Put();
  };
  timed.floor = [blocks](uint32_t) { return blocks->Copy(); };
  timed.note = [] { return "memcpy of as much"; };
  return timed;
}

Result<Subject> GetWarm(uint64_t bytes) {
  auto blocks = std::make_shared<OpaqueBlocks>(
      bytes, BlockStoreOptions{.memory_bytes = 4 * kBatch * (bytes + kBesideBytes)});
  blocks->Put();
  Timed timed = InGigabytes(*blocks, "gets eight blocks out of memory");
  timed.work = [blocks](uint32_t) { return blocks->Get(); };
  timed.floor = [blocks](uint32_t) { return blocks->Copy(); };
  timed.note = [blocks] {
    QUIRE_CHECK(blocks->store->stats().memory_hits > 0 && blocks->store->stats().bytes_read == 0);
    return "memcpy of as much";
  };
  return timed;
}

BlockStoreOptions InMemory(uint64_t bytes) {
  return {.memory_bytes = 4 * kBatch * (bytes + kBesideBytes), .accepts_puts = true};
}

Result<Subject> PutServed(uint64_t bytes, bool accepts) {
  BlockStoreOptions options = InMemory(bytes);
  options.accepts_puts = accepts;
  auto served = std::make_shared<ServedBlocks>(bytes, options);
  auto local = std::make_shared<OpaqueBlocks>(bytes, options);
  served->Fill();
  local->Fill();
  Timed timed =
      InGigabytes(*served, accepts ? "a client puts eight blocks, until they can be found"
                                   : "a client puts eight blocks, until they are durable");
  const auto put = [](OpaqueBlocks& blocks) {
    blocks.Check(blocks.store->Flush());
    return blocks.Put();
  };
  timed.work = [served, put](uint32_t) { return put(*served); };
  timed.floor = [local, put](uint32_t) { return put(*local); };
  timed.note = [] { return "the process that owns a store puts as much"; };
  return timed;
}

Result<Subject> GetServed(uint64_t bytes) {
  auto served = std::make_shared<ServedBlocks>(bytes, InMemory(bytes));
  auto local = std::make_shared<OpaqueBlocks>(bytes, InMemory(bytes));
  served->Put();
  local->Put();
  Timed timed = InGigabytes(*served, "a client gets eight blocks out of the owner's memory");
  timed.work = [served](uint32_t) { return served->Get(); };
  timed.floor = [local](uint32_t) { return local->Get(); };
  timed.note = [] { return "the process that owns a store gets as much"; };
  return timed;
}

}  // namespace

std::vector<Case> BlocksCases(const Options& /*options*/) {
  std::vector<Case> cases;
  for (const uint64_t mib : {1, 4, 32}) {
    const uint64_t bytes = mib << 20;
    cases.push_back({fmt::format("put/durable/{}MiB", mib), [bytes] { return PutDurable(bytes); }});
    cases.push_back(
        {fmt::format("put/accepted/{}MiB", mib), [bytes] { return PutAccepted(bytes); }});
    cases.push_back({fmt::format("get/memory/{}MiB", mib), [bytes] { return GetWarm(bytes); }});
    cases.push_back({fmt::format("served/put/durable/{}MiB", mib),
                     [bytes] { return PutServed(bytes, /*accepts=*/false); }});
    cases.push_back({fmt::format("served/put/accepted/{}MiB", mib),
                     [bytes] { return PutServed(bytes, /*accepts=*/true); }});
    cases.push_back({fmt::format("served/get/{}MiB", mib), [bytes] { return GetServed(bytes); }});
  }
  return cases;
}

}  // namespace quire::bench
