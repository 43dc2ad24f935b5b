#include "store/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bits.h"
#include "base/log.h"
#include "base/wiped_vector.h"
#include "tier/sealed_store.h"

namespace quire::store {
namespace {

using tier::StoreCompletion;
using tier::StoreOutcome;

constexpr uint64_t kBlockBytesDefault = uint64_t{64} << 20;
// Of a segment of 2 GiB, which a void may begin with.
constexpr uint64_t kBlockBytesMax = (uint64_t{2} << 30) - tier::kRecordAlignment - kRecordBytesMin;
// What the record of a block is longer by in an encrypted store.
constexpr uint64_t kSealBytes = tier::kRecordAlignment;
static_assert(2 * tier::kSectionSealBytes < kSealBytes);
constexpr uint32_t kDiskRequestsMax = 4096;
constexpr uint64_t kChunkBytes = uint64_t{1} << 20;
constexpr uint64_t kStagingBytesMin = uint64_t{32} << 20;  // of reads, and of writes again
// A disk that lets nothing be put for so long fails.
constexpr uint64_t kPatienceUs = 10'000'000;
constexpr uint64_t kBusyPauseUs = 1000;  // a Put that was refused tries again
constexpr uint64_t kDiskWaitUs = 200;    // what is handed in waits so long for its turn

// Two of the longest records in a segment where the cap has room for that, else one.
Result<void> ChooseSegments(uint64_t record_bytes, tier::ColdOptions& cold) {
  const auto sizes = tier::ResolveSizes(cold);
  for (const uint64_t records : {2, 1}) {
    const uint64_t wanted = records * record_bytes + tier::kRecordAlignment;
    if (sizes && sizes->segment_bytes >= wanted) return {};
    tier::ColdOptions longer = cold;
    longer.segment_bytes = wanted;
    if (!tier::ResolveSizes(longer)) continue;
    cold.segment_bytes = wanted;
    return {};
  }
  QUIRE_TRY(sizes);
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("store: a cap of {} bytes has no room for two blocks of {} bytes",
                          cold.bytes_cap, BlockBytesIn(record_bytes)));
}

// Those were for opening it, and are not kept in memory for longer.
BlockStoreOptions WithoutKeys(const BlockStoreOptions& options) {
  BlockStoreOptions without = options;
  Wipe(std::span(without.keys.key));
  without.keys = {};
  return without;
}

}  // namespace

Result<tier::ColdOptions> ToColdOptions(const BlockStoreOptions& options) {
  if (options.directory.empty()) return Fail(ErrorCode::kInvalidArgument, "store: no directory");
  if (options.commit_interval_us == 0) {
    return Fail(ErrorCode::kInvalidArgument, "store: a commit interval of 0");
  }
  if (options.disk_requests_max == 0 || options.disk_requests_max > kDiskRequestsMax) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("store: {} requests of the disk at the same time, at most {}",
                            options.disk_requests_max, kDiskRequestsMax));
  }
  if (options.block_bytes_max > kBlockBytesMax) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("store: blocks of {} bytes, at most {}",
                                                         options.block_bytes_max, kBlockBytesMax));
  }
  uint64_t block_bytes = options.block_bytes_max;
  if (block_bytes == 0) block_bytes = std::min(kBlockBytesDefault, options.bytes_cap / 16);
  tier::ColdOptions cold = {.directory = options.directory,
                            .bytes_cap = options.bytes_cap,
                            .commit_interval_us = options.commit_interval_us,
                            .chunk_bytes = kChunkBytes,
                            .reads_max = options.disk_requests_max,
                            .scrub_bytes_per_s = options.scrub_bytes_per_s};
  const bool is_sealed = !options.keys.empty();
  if (is_sealed) cold.bytes_beside = keys::KeyFileBytesMax(keys::KeysMax(options.bytes_cap));
  if (options.accepts_puts && options.memory_bytes == 0) {
    return Fail(ErrorCode::kInvalidArgument, "store: accepts_puts without memory_bytes");
  }
  const uint64_t record_bytes = RecordBytesOf(block_bytes) + (is_sealed ? kSealBytes : 0);
  QUIRE_TRY(ChooseSegments(record_bytes, cold));
  // A record is whole in memory while it is checked; some chunks more let others be under way.
  const uint64_t half =
      std::max(kStagingBytesMin, RoundUp(record_bytes, kChunkBytes) + 8 * kChunkBytes);
  cold.staging_bytes = 2 * half;
  return cold;
}

Result<std::unique_ptr<BlockEngine>> BlockEngine::Open(const BlockStoreOptions& options,
                                                       Files& files, const Clock& clock) {
  QUIRE_ASSIGN(const tier::ColdOptions cold, ToColdOptions(options));
  std::unique_ptr<tier::Store> opened;
  const tier::ColdStore* disk = nullptr;
  if (options.keys.empty()) {
    QUIRE_ASSIGN(auto plain, tier::ColdStore::Open(cold, files, clock));
    disk = plain.get();
    opened = std::move(plain);
  } else {
    QUIRE_ASSIGN(auto sealed, tier::SealedStore::Open(cold, files, clock, options.keys));
    disk = &sealed->cold();
    opened = std::move(sealed);
  }
  // What fits the segments of this store, and its staging.
  uint64_t record_max = std::min(disk->record_bytes_max(),
                                 RoundDown(cold.staging_bytes / 2, kChunkBytes) - 8 * kChunkBytes);
  if (!options.keys.empty()) record_max -= kSealBytes;
  uint64_t block_max = BlockBytesIn(record_max);
  if (options.block_bytes_max != 0) block_max = std::min(block_max, options.block_bytes_max);
  if (block_max < options.block_bytes_max) {
    LogWarn("store {}: its segments of {} bytes hold blocks of {} bytes at most, not {}",
            cold.directory, disk->segment_bytes(), block_max, options.block_bytes_max);
  }
  std::unique_ptr<tier::WarmStore> memory;
  try {
    memory = std::make_unique<tier::WarmStore>(tier::WarmOptions{.bytes_cap = options.memory_bytes},
                                               clock, std::move(opened));
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("store: there are no {} bytes of memory for blocks (memory_bytes)",
                            options.memory_bytes));
  }
  return std::unique_ptr<BlockEngine>(
      new BlockEngine(options, clock, std::move(memory), block_max));
}

BlockEngine::BlockEngine(const BlockStoreOptions& options, const Clock& clock,
                         std::unique_ptr<tier::WarmStore> memory, uint64_t block_bytes_max)
    : options_(WithoutKeys(options)),
      clock_(clock),
      memory_(*memory),
      transfers_(std::move(memory), clock, {.disk_wait_us = kDiskWaitUs, .steps_back = false}),
      block_bytes_max_(block_bytes_max) {}

std::optional<uint64_t> BlockEngine::Find(const Digest& key) const {
  const auto bytes = transfers_.RecordBytesOf(key);
  if (!bytes || *bytes < kRecordBytesMin) return std::nullopt;
  return BlockBytesIn(*bytes);
}

void BlockEngine::Begin(Request& request) {
  ++under_way_;
  switch (request.kind) {
    case RequestKind::kPut:
      if (request.data.size() > block_bytes_max_) return End(request, BlockOutcome::kTooLarge);
      return waiting_.push_back(&request);
    case RequestKind::kFlush: ++flushes_waiting_; return waiting_.push_back(&request);
    case RequestKind::kGet: return Get(request);
    case RequestKind::kRemove:
      transfers_.Begin([key = request.identity.key](tier::Store& store,
                                                    uint64_t tag) { store.Remove(key, tag); },
                       ends_,
                       [this, &request](const StoreCompletion& end) {
                         if (end.outcome == StoreOutcome::kIo)
                           return End(request, BlockOutcome::kIo);
                         End(request, end.outcome == StoreOutcome::kOk ? BlockOutcome::kOk
                                                                       : BlockOutcome::kAbsent);
                       });
      return;
    case RequestKind::kErase:
      transfers_.Begin(
          [publisher = request.identity.publisher](tier::Store& store, uint64_t tag) {
            store.Erase(publisher, store.EpochOf(publisher) + 1, tag);
          },
          ends_,
          [this, &request](const StoreCompletion& end) {
            End(request, end.outcome == StoreOutcome::kOk ? BlockOutcome::kOk : BlockOutcome::kIo);
          });
  }
}

transfer::Worker::Turned BlockEngine::Turn(std::vector<Request*>& ended) {
  ends_.Run();
  GiveWaiting();
  transfer::Worker::Turned turned = {.worked = !ended_.empty()};
  ended.insert(ended.end(), ended_.begin(), ended_.end());
  ended_.clear();
  if (options_.scrub_bytes_per_s > 0) turned.wait_us = 20'000;
  if (under_way_ + accepted_.size() > 0)
    turned.wait_us = std::min<uint64_t>(options_.commit_interval_us / 8, 5'000);
  if (!waiting_.empty()) turned.wait_us = kBusyPauseUs;
  return turned;
}

// In their order, so that a Flush comes after what was put before it.
void BlockEngine::GiveWaiting() {
  while (!waiting_.empty() && transfers_.MayWrite()) {
    Request& request = *waiting_.front();
    waiting_.pop_front();
    if (request.kind == RequestKind::kPut) {
      Put(request);
      continue;
    }
    --flushes_waiting_;
    transfers_.Flush(ends_,
                     [this, &request](const StoreCompletion&) { End(request, BlockOutcome::kOk); });
  }
  if (!waiting_.empty() && flushes_waiting_ > 0) transfers_.Hurry();
}

void BlockEngine::Put(Request& request) {
  const Digest key = request.identity.key;
  if (accepted_.contains(key)) return End(request, BlockOutcome::kPresent);
  const uint64_t body_bytes = RoundDown(uint64_t{request.data.size()}, tier::kRecordAlignment);
  const tier::RecordLayout layout = LayoutOf(body_bytes);
  EncodeLastPage(request.data.subspan(body_bytes), last_page_);
  const std::array<std::span<const std::byte>, 2> sections = {request.data.first(body_bytes),
                                                              last_page_};
  const size_t count = layout.sections().size();
  std::array<uint32_t, 2> crcs{};
  std::ranges::transform(sections, crcs.begin(), [](auto section) { return Crc32c(section); });
  const auto write = std::make_shared<Request*>(&request);  // null: it has ended
  transfers_.Write({.identity = request.identity,
                    .layout = &layout,
                    .sections = std::span(sections).last(count),
                    .crcs = std::span(crcs).last(count)},
                   ends_, [this, key, write](const StoreCompletion& end) {
                     Request* const put = std::exchange(*write, nullptr);
                     put != nullptr ? TakePut(*put, end.outcome) : TakeAccepted(key, end.outcome);
                   });
  ends_.Run();  // one that was refused is the next one again
  // What is not durable yet and can be found is in memory.
  if (!options_.accepts_puts || *write == nullptr || !transfers_.RecordBytesOf(key)) return;
  accepted_.insert(key);
  *write = nullptr;
  End(request, BlockOutcome::kOk);
}

void BlockEngine::Get(Request& request) {
  const auto record_bytes = transfers_.RecordBytesOf(request.identity.key);
  if (!record_bytes) return End(request, BlockOutcome::kAbsent);
  const auto body_bytes = BodyBytesOf(*record_bytes);
  if (!body_bytes) return End(request, BlockOutcome::kDamaged);
  if (*body_bytes > request.out.size()) {
    return End(request, BlockOutcome::kTooSmall, BlockBytesIn(*record_bytes));
  }
  request.body_bytes = *body_bytes;
  request.layout = LayoutOf(*body_bytes);
  request.sections = {request.out.first(*body_bytes), *request.last_page};
  const size_t count = request.layout->sections().size();
  transfers_.Read({.identity = request.identity,
                   .layout = &*request.layout,
                   .section_count = static_cast<uint32_t>(count),
                   .out = std::span(request.sections).last(count),
                   .crcs = std::span(request.crcs).last(count)},
                  /*deadline_us=*/0, ends_,
                  [this, &request](const StoreCompletion& end) { TakeGet(request, end.outcome); });
}

void BlockEngine::TakePut(Request& request, StoreOutcome outcome) {
  switch (outcome) {
    case StoreOutcome::kOk:
    case StoreOutcome::kErased: return End(request, BlockOutcome::kOk);  // written, then erased
    case StoreOutcome::kPresent: return End(request, BlockOutcome::kPresent);
    case StoreOutcome::kQuota:
    case StoreOutcome::kNoSpace: return End(request, BlockOutcome::kNoSpace);
    case StoreOutcome::kTooLarge: return End(request, BlockOutcome::kTooLarge);
    case StoreOutcome::kBusy: {
      const uint64_t now_us = clock_.NowMicros();
      if (!request.refused_us) request.refused_us = now_us;
      if (now_us - *request.refused_us > kPatienceUs) break;
      return waiting_.push_front(&request);
    }
    default: break;  // the disk failed, or (kUnknownEpoch) lost the table of erasures
  }
  End(request, BlockOutcome::kIo);
}

// A disk that takes nothing says so once: callers were told that their blocks were accepted.
void BlockEngine::TakeAccepted(const Digest& key, StoreOutcome outcome) {
  const bool is_lost = outcome != StoreOutcome::kOk && outcome != StoreOutcome::kPresent &&
                       outcome != StoreOutcome::kErased;
  if (is_lost) ++puts_lost_;
  if (is_lost && !loses_puts_) {
    LogWarn("store {}: blocks that were accepted are not written: the disk is full, or fails",
            options_.directory);
  }
  loses_puts_ = is_lost;
  accepted_.erase(key);
}

void BlockEngine::TakeGet(Request& request, StoreOutcome outcome) {
  switch (outcome) {
    case StoreOutcome::kOk: break;
    case StoreOutcome::kAbsent:
    case StoreOutcome::kErased: return End(request, BlockOutcome::kAbsent);
    case StoreOutcome::kMiss: return End(request, BlockOutcome::kDamaged);
    case StoreOutcome::kTooLarge: return End(request, BlockOutcome::kTooLarge);
    default: return End(request, BlockOutcome::kIo);
  }
  const auto rest = RestOf(*request.last_page);
  if (!rest) return End(request, BlockOutcome::kDamaged);
  const uint64_t bytes = request.body_bytes + *rest;
  if (bytes > request.out.size()) return End(request, BlockOutcome::kTooSmall, bytes);
  std::ranges::copy(std::span(*request.last_page).first(*rest),
                    request.out.begin() + static_cast<ptrdiff_t>(request.body_bytes));
  End(request, BlockOutcome::kOk, bytes);
}

void BlockEngine::End(Request& request, BlockOutcome outcome, uint64_t bytes) {
  request.result = {.outcome = outcome, .bytes = bytes};
  --under_way_;
  ended_.push_back(&request);
}

}  // namespace quire::store
