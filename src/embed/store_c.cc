// The C functions of stores.
#include <algorithm>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "embed/boundary.h"
#include "quire/quire.h"
#include "quire/store.h"

using quire::BlockBatch;
using quire::BlockResult;
using quire::ErrorCode;
using quire::Fail;
using quire::Result;
using quire::embed::Boundary;
using quire::embed::CheckArray;
using quire::embed::NotNull;

struct quire_store {
  explicit quire_store(std::unique_ptr<quire::BlockStore> opened) : store(std::move(opened)) {}

  std::unique_ptr<quire::BlockStore> store;
  quire::Mutex mutex{quire::LockRank::kBlockStoreC};
  std::deque<BlockBatch> drained QUIRE_GUARDED_BY(mutex);  // for quire_store_next
};

namespace quire::embed {
namespace {

static_assert(QUIRE_BLOCK_OK == int{static_cast<uint8_t>(BlockOutcome::kOk)});
static_assert(QUIRE_BLOCK_DAMAGED == int{static_cast<uint8_t>(BlockOutcome::kDamaged)});
static_assert(QUIRE_BLOCK_CLOSED == int{static_cast<uint8_t>(BlockOutcome::kClosed)});
static_assert(QUIRE_BLOCK_UNREACHABLE == int{static_cast<uint8_t>(BlockOutcome::kUnreachable)});

BlockStoreOptions ToStoreOptions(const quire_store_options& asked) {
  BlockStoreOptions options = {.directory = Text(asked.directory),
                               .block_bytes_max = asked.block_bytes_max,
                               .accepts_puts = asked.accepts_puts != 0,
                               .keys = ToStoreKeys(asked)};
  const auto set = [](auto& to, auto from) {
    if (from != 0) to = from;
  };
  set(options.bytes_cap, asked.bytes_cap);
  set(options.commit_interval_us, asked.commit_interval_us);
  set(options.scrub_bytes_per_s, asked.scrub_bytes_per_s);
  set(options.disk_requests_max, asked.disk_requests_max);
  set(options.memory_bytes, asked.memory_bytes);
  if (options.scrub_bytes_per_s == UINT64_MAX) options.scrub_bytes_per_s = 0;
  if (options.memory_bytes == UINT64_MAX) options.memory_bytes = 0;
  return options;
}

quire_store_stats ToC(const BlockStoreStats& stats) {
  return {.size = 0,
          .blocks = stats.blocks,
          .bytes = stats.bytes,
          .bytes_cap = stats.bytes_cap,
          .bytes_live = stats.bytes_live,
          .block_bytes_max = stats.block_bytes_max,
          .memory_bytes = stats.memory_bytes,
          .bytes_written = stats.bytes_written,
          .bytes_read = stats.bytes_read,
          .evicted = stats.evicted,
          .damaged = stats.damaged,
          .puts = stats.puts,
          .puts_present = stats.puts_present,
          .puts_failed = stats.puts_failed,
          .hits = stats.hits,
          .misses = stats.misses,
          .gets_failed = stats.gets_failed,
          .removed = stats.removed,
          .disk_full = stats.disk_full ? uint64_t{1} : 0,
          .puts_lost = stats.puts_lost,
          .memory_hits = stats.memory_hits,
          .clients = stats.clients};
}

void WriteResults(std::span<const BlockResult> from, quire_block_result* to) {
  for (size_t i = 0; i < from.size(); ++i) {
    to[i] = {.outcome = static_cast<quire_block_outcome>(from[i].outcome),
             .reserved = 0,
             .bytes = from[i].bytes};
  }
}

Result<std::string_view> ToKey(const void* key, size_t bytes) {
  QUIRE_TRY(CheckArray(key, bytes, SIZE_MAX, "a block's key"));
  return std::string_view(static_cast<const char*>(key), bytes);
}

Result<BlockPut> ToRequest(const quire_put_block& block) {
  QUIRE_ASSIGN(const std::string_view key, ToKey(block.key, block.key_bytes));
  QUIRE_TRY(CheckArray(block.data, block.data_bytes, SIZE_MAX, "a block's data"));
  return BlockPut{.key = key,
                  .data = {static_cast<const std::byte*>(block.data), block.data_bytes}};
}

Result<BlockGet> ToRequest(const quire_get_block& block) {
  QUIRE_ASSIGN(const std::string_view key, ToKey(block.key, block.key_bytes));
  QUIRE_TRY(CheckArray(block.out, block.out_bytes, SIZE_MAX, "a block's out"));
  return BlockGet{.key = key, .out = {static_cast<std::byte*>(block.out), block.out_bytes}};
}

Result<std::string_view> ToRequest(const quire_block_key& key) {
  return ToKey(key.key, key.key_bytes);
}

/// Hands in a batch: `submit(store, name_space, requests)` returns its number.
template <typename Block, typename Submit>
quire_code SubmitBatch(quire_store* store, const char* name_space, const Block* blocks,
                       size_t count, uint64_t* batch, quire_error* error, Submit&& submit) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(store, "store"));
    QUIRE_TRY(NotNull(batch, "batch"));
    QUIRE_TRY(CheckArray(blocks, count, QUIRE_STORE_BATCH_MAX, "blocks"));
    std::vector<typename decltype(ToRequest(*blocks))::value_type> requests;
    requests.reserve(count);
    for (const Block& block : std::span(blocks, count)) {
      QUIRE_ASSIGN(requests.emplace_back(), ToRequest(block));
    }
    *batch = submit(*store->store, Text(name_space), requests);
    return {};
  });
}

}  // namespace
}  // namespace quire::embed

using quire::embed::SubmitBatch;

quire_code quire_store_open(const quire_store_options* options, quire_store** store,
                            quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(store, "store"));
    QUIRE_ASSIGN(const quire_store_options asked, quire::embed::ReadStruct(options, "options"));
    QUIRE_ASSIGN(auto opened, quire::BlockStore::Open(quire::embed::ToStoreOptions(asked)));
    *store = new quire_store(std::move(opened));
    return {};
  });
}

void quire_store_free(quire_store* store) { delete store; }

quire_code quire_store_close(quire_store* store, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(store, "store"));
    store->store->Close();
    return {};
  });
}

const char* quire_block_outcome_name(quire_block_outcome outcome) {
  if (outcome < 0 || outcome > QUIRE_BLOCK_UNREACHABLE) return "unknown";
  return quire::BlockOutcomeName(static_cast<quire::BlockOutcome>(outcome)).data();
}

quire_code quire_store_put(quire_store* store, const char* name_space,
                           const quire_put_block* blocks, size_t count, uint64_t* batch,
                           quire_error* error) {
  return SubmitBatch(
      store, name_space, blocks, count, batch, error,
      [](auto& to, const auto& name, const auto& puts) { return to.Put(name, puts); });
}

quire_code quire_store_get(quire_store* store, const char* name_space,
                           const quire_get_block* blocks, size_t count, uint64_t* batch,
                           quire_error* error) {
  return SubmitBatch(
      store, name_space, blocks, count, batch, error,
      [](auto& to, const auto& name, const auto& gets) { return to.Get(name, gets); });
}

quire_code quire_store_exists(quire_store* store, const char* name_space,
                              const quire_block_key* keys, size_t count, uint64_t* batch,
                              quire_error* error) {
  return SubmitBatch(
      store, name_space, keys, count, batch, error,
      [](auto& to, const auto& name, const auto& found) { return to.Exists(name, found); });
}

quire_code quire_store_remove(quire_store* store, const char* name_space,
                              const quire_block_key* keys, size_t count, uint64_t* batch,
                              quire_error* error) {
  return SubmitBatch(
      store, name_space, keys, count, batch, error,
      [](auto& to, const auto& name, const auto& found) { return to.Remove(name, found); });
}

quire_code quire_store_erase(quire_store* store, const char* name_space, uint64_t* batch,
                             quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(store, "store"));
    QUIRE_TRY(NotNull(batch, "batch"));
    *batch = store->store->Erase(quire::embed::Text(name_space));
    return {};
  });
}

quire_code quire_store_flush(quire_store* store, uint64_t* batch, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(store, "store"));
    QUIRE_TRY(NotNull(batch, "batch"));
    *batch = store->store->Flush();
    return {};
  });
}

quire_code quire_store_wait(quire_store* store, uint64_t batch, uint64_t timeout_us,
                            quire_block_result* results, size_t count, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(store, "store"));
    QUIRE_TRY(CheckArray(results, count, QUIRE_STORE_BATCH_MAX, "results"));
    QUIRE_ASSIGN(const BlockBatch ended, store->store->Wait(batch, timeout_us));
    if (ended.results.size() != count) {
      return Fail(ErrorCode::kInvalidArgument, "the batch has " +
                                                   std::to_string(ended.results.size()) +
                                                   " results, not " + std::to_string(count));
    }
    quire::embed::WriteResults(ended.results, results);
    return {};
  });
}

quire_code quire_store_next(quire_store* store, uint64_t* batch, quire_block_result* results,
                            size_t results_max, size_t* count, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(store, "store"));
    QUIRE_TRY(NotNull(batch, "batch"));
    QUIRE_TRY(NotNull(count, "count"));
    QUIRE_TRY(CheckArray(results, results_max, QUIRE_STORE_BATCH_MAX, "results"));
    quire::MutexLock lock(store->mutex);
    if (store->drained.empty()) {
      for (BlockBatch& ended : store->store->Drain()) store->drained.push_back(std::move(ended));
    }
    *batch = 0;
    *count = 0;
    if (store->drained.empty()) return {};
    const BlockBatch ended = std::move(store->drained.front());
    store->drained.pop_front();
    *batch = ended.id;
    *count = ended.results.size();
    quire::embed::WriteResults(
        std::span(ended.results).first(std::min(results_max, ended.results.size())), results);
    return {};
  });
}

int32_t quire_store_event_fd(const quire_store* store) {
  return store == nullptr ? -1 : store->store->event_fd();
}

quire_code quire_store_get_stats(const quire_store* store, quire_store_stats* stats,
                                 quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(store, "store"));
    QUIRE_TRY(quire::embed::CheckOutput(stats, "stats"));
    quire::embed::WriteStruct(stats, quire::embed::ToC(store->store->stats()));
    return {};
  });
}

quire_code quire_store_set_limits(quire_store* store, const char* name_space, uint64_t quota_bytes,
                                  uint64_t floor_bytes, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(store, "store"));
    const uint64_t quota = quota_bytes == 0 ? UINT64_MAX : quota_bytes;
    return store->store->SetLimits(quire::embed::Text(name_space),
                                   {.bytes_quota = quota, .bytes_floor = floor_bytes});
  });
}

quire_code quire_store_get_usage(const quire_store* store, const char* name_space,
                                 quire_store_usage* usage, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(store, "store"));
    QUIRE_TRY(quire::embed::CheckOutput(usage, "usage"));
    QUIRE_ASSIGN(const auto found, store->store->Usage(quire::embed::Text(name_space)));
    quire::embed::WriteStruct(usage, quire_store_usage{.size = 0,
                                                       .blocks = found.blocks,
                                                       .bytes_live = found.bytes_live,
                                                       .bytes = found.bytes});
    return {};
  });
}
