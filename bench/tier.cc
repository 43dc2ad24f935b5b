// The store on a disk beside fio: bringing a context of 16,384 tokens back (Qwen3-0.6B in f16),
// writing records, and what writing behind a cache costs the processor.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/prng.h"
#include "bench/bench.h"
#include "bench/fio.h"
#include "bench/must.h"
#include "env/clock.h"
#include "env/files.h"
#include "quire/cache.h"
#include "quire/disk_store.h"
#include "tier/cold.h"

namespace quire::bench {
namespace {

constexpr uint32_t kLayers = 28;
constexpr uint32_t kKvHeads = 8;
constexpr uint32_t kDim = 128;
constexpr uint64_t kTokens = 16 * 1024;
constexpr uint64_t kStepTokens = 512;
constexpr uint64_t kStoreBytes = uint64_t{8} << 30;
constexpr uint64_t kWriteBytes = uint64_t{512} << 20;

double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double ProcessCpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// A directory on the disk of temporary files, which goes with everything in it.
class Directory {
 public:
  Directory() {
    path_ = (std::filesystem::temp_directory_path() / "quire-bench-XXXXXX").string();
    QUIRE_CHECK(::mkdtemp(path_.data()) != nullptr);
  }
  ~Directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  std::string operator/(std::string_view name) const { return fmt::format("{}/{}", path_, name); }

 private:
  std::string path_;
};

/// A cache that holds the context once, and its store.
struct Context {
  explicit Context(bool with_store) {
    Prng prng(1);
    for (TokenId& token : tokens) token = static_cast<TokenId>(prng.NextBelow(50'000));
    for (uint16_t& value : rows) value = static_cast<uint16_t>(0x3000 + prng.NextBelow(0x800));
    if (with_store) {
      store = Must(DiskStore::Open({.directory = directory / "store", .bytes_cap = kStoreBytes}));
    }
    cache = Must(Cache::Create({.geometry = Geometry::Uniform(kLayers, kKvHeads, kDim),
                                .profile = NumericProfile::Uniform(Codec::kF16),
                                .hot_bytes = uint64_t{2200} << 20,
                                .store = store.get()}));
  }

  void Compute() {
    auto sequence = Must(cache->Open(Must(Acquire()), {.reserve_tokens = kTokens + 1}));
    const RowsView view = {.data = rows.data(),
                           .dtype = Codec::kF16,
                           .token_stride = int64_t{kKvHeads} * kDim,
                           .head_stride = kDim};
    for (uint64_t done = 0; done < kTokens; done += kStepTokens) {
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        Must(sequence->Append(layer, {.key = view, .value = view, .tokens = kStepTokens}));
      }
      Must(sequence->Commit(std::span(tokens).subspan(done, kStepTokens)));
    }
  }
  Result<Plan> Acquire() { return cache->Acquire({.identity = &identity, .tokens = tokens}); }
  void EvictAll() {
    while (cache->Evict(1024) > 0) {
    }
  }
  uint64_t bytes() const { return kTokens / kBlockTokensDefault * cache->block_bytes(); }

  const Directory directory;
  const Identity identity{.weights = {1}, .domain = {.name = "bench"}};
  std::vector<TokenId> tokens = std::vector<TokenId>(kTokens + 1);
  std::vector<uint16_t> rows = std::vector<uint16_t>(kStepTokens * kKvHeads * kDim);
  std::unique_ptr<DiskStore> store;
  std::unique_ptr<Cache> cache;
};

Result<Subject> Restore() {
  auto context = std::make_shared<Context>(/*with_store=*/true);
  context->Compute();
  QUIRE_TRY(context->store->Flush());
  FioJob job = {.file = context->directory / "fio", .writes = true, .bytes = context->bytes()};
  QUIRE_TRY(FioSeconds(job));  // makes the file
  job.writes = false;
  QUIRE_ASSIGN(job.depth, BestFioDepth(job));
  return Timed{.unit = "GB/s",
               .amount = static_cast<double>(context->bytes()) * 1e-9,
               .slice = fmt::format(
                   "brings {} tokens back into an empty cache: Acquire, Load, Take", kTokens),
               .work =
                   [context](uint32_t) {
                     context->EvictAll();
                     const double begin_s = WallSeconds();
                     Plan plan = Must(context->cache->Load(Must(context->Acquire()), {})).Take();
                     QUIRE_CHECK(plan.resident_tokens() == kTokens);
                     return WallSeconds() - begin_s;
                   },
               .floor = [job](uint32_t) { return Must(FioSeconds(job)); },
               .note = [job] { return fmt::format("fio reads as much, depth {}", job.depth); }};
}

/// Records of the same shape put into a store as fast as it takes them.
struct Writer {
  Writer()
      : layout(Must(tier::RecordLayout::Create(
            kBlockTokensDefault,
            std::vector<tier::SectionSpec>(
                size_t{2} * kLayers,
                {.layer_count = 1, .bytes = kBlockTokensDefault * kKvHeads * kDim * 2})))),
        bytes(layout.payload_bytes()),
        tokens(kBlockTokensDefault, 1) {
    Prng prng(3);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng.NextBelow(256));
    for (size_t i = 0; i < layout.sections().size(); ++i) {
      sections.push_back(std::span(bytes).subspan(layout.offset(i), layout.sections()[i].bytes));
    }
    files = Must(MakeFiles());
    store = Must(tier::ColdStore::Open(
        {.directory = directory / "store", .bytes_cap = kStoreBytes, .scrub_bytes_per_s = 0},
        *files, SystemClock()));
  }

  double Write(uint64_t records) {
    const double begin_s = WallSeconds();
    std::vector<tier::StoreCompletion> done;
    uint64_t ended = 0;
    const auto turn = [&](uint64_t wait_us) {
      done.clear();
      store->Tick(done, wait_us);
      uint64_t busy = 0;
      for (const tier::StoreCompletion& each : done) {
        busy += each.outcome == tier::StoreOutcome::kBusy ? 1 : 0;
        QUIRE_CHECK(each.outcome == tier::StoreOutcome::kOk ||
                    each.outcome == tier::StoreOutcome::kBusy);
      }
      ended += done.size() - busy;
      return busy;
    };
    for (uint64_t put = 0; put < records;) {
      std::memcpy(key.data(), &next, sizeof(next));
      const tier::PutRequest request = {.identity = {.key = key, .tokens = tokens},
                                        .layout = &layout,
                                        .sections = sections,
                                        .tag = next};
      store->Put({&request, 1});
      const uint64_t busy = turn(0);
      ++next;
      if (busy == 0) {
        ++put;
      } else {
        turn(200);
      }
    }
    store->Flush(UINT64_MAX);
    while (ended < records + 1) turn(1000);
    return WallSeconds() - begin_s;
  }

  const Directory directory;
  const tier::RecordLayout layout;
  std::vector<std::byte> bytes;
  std::vector<TokenId> tokens;
  std::vector<std::span<const std::byte>> sections;
  Digest key{};
  uint64_t next = 1;
  std::unique_ptr<Files> files;
  std::unique_ptr<tier::ColdStore> store;
};

Result<Subject> Write() {
  auto writer = std::make_shared<Writer>();
  const uint64_t records = kWriteBytes / writer->layout.record_bytes();
  FioJob job = {.file = writer->directory / "fio",
                .writes = true,
                .bytes = records * writer->layout.record_bytes() >> 20 << 20};
  QUIRE_TRY(FioSeconds(job));
  QUIRE_ASSIGN(job.depth, BestFioDepth(job));
  writer->Write(records);  // segments are made
  return Timed{
      .unit = "GB/s",
      .amount = static_cast<double>(job.bytes) * 1e-9,
      .slice = fmt::format("puts {} records and flushes them", records),
      .work = [writer, records](uint32_t) { return writer->Write(records); },
      .floor = [job](uint32_t) { return Must(FioSeconds(job)); },
      .note = [job] { return fmt::format("fio writes as much and syncs, depth {}", job.depth); }};
}

// Of the whole process, with a store less without one, the lowest of a few.
Result<Subject> WriteCpu() {
  constexpr int kRuns = 3;
  double least[2] = {1e9, 1e9};
  double bytes = 0;
  for (int run = 0; run < kRuns; ++run) {
    for (const bool with_store : {false, true}) {
      Context context(with_store);
      const double begin_s = ProcessCpuSeconds();
      context.Compute();
      if (with_store) Must(context.store->Flush());
      least[with_store] = std::min(least[with_store], ProcessCpuSeconds() - begin_s);
      bytes = static_cast<double>(context.bytes());
    }
  }
  // The least that has to be done with every byte: it is checked in memory, and copied with a
  // checksum.
  std::vector<std::byte> from(64 << 20, std::byte{1});
  std::vector<std::byte> to(from.size());
  double floor_s = 1e9;
  uint32_t crc = 0;
  for (int run = 0; run < kRuns; ++run) {
    const double begin_s = ProcessCpuSeconds();
    crc += Crc32c(from);
    std::memcpy(to.data(), from.data(), from.size());
    crc += Crc32c(to);
    floor_s = std::min(floor_s, ProcessCpuSeconds() - begin_s);
  }
  return Exact{.unit = "s/GB",
               .less_is_better = true,
               .value = (least[1] - least[0]) / bytes * 1e9,
               .floor = floor_s / static_cast<double>(from.size()) * 1e9,
               .note = fmt::format("processor time of writing behind; two checksums and a copy "
                                   "({:08x})",
                                   crc)};
}

}  // namespace

std::vector<Case> TierCases(const Options&) {
  return {{.name = "restore/f16/16384", .prepare = Restore},
          {.name = "write/f16", .prepare = Write},
          {.name = "write_cpu/f16", .prepare = WriteCpu}};
}

}  // namespace quire::bench
