// A context of 16,384 tokens (Qwen3-0.6B in f16) in a cache, and a store below it.
#ifndef QUIRE_BENCH_CONTEXT_H_
#define QUIRE_BENCH_CONTEXT_H_

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "bench/must.h"
#include "quire/cache.h"
#include "quire/disk_store.h"

namespace quire::bench {

inline constexpr uint32_t kContextLayers = 28;
inline constexpr uint32_t kContextKvHeads = 8;
inline constexpr uint32_t kContextDim = 128;
inline constexpr uint64_t kContextTokens = 16 * 1024;
inline constexpr uint64_t kContextStepTokens = 512;
inline constexpr uint64_t kStoreBytes = uint64_t{8} << 30;
inline constexpr uint32_t kContextVocab = 8192;

inline double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
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
  explicit Context(bool with_store) : Context(kContextLayers, kContextTokens) { Open(with_store); }
  /// With its blocks on a device, and a warm tier for twice as many. Published blocks are written
  /// when they are flushed. choose(options) names the device, for the cache and for the store.
  template <typename Choose>
  Context(const Choose& choose, uint32_t of_layers, uint64_t of_count)
      : Context(of_layers, of_count) {
    CacheOptions options{.geometry = Geometry::Uniform(layers, kContextKvHeads, kContextDim),
                         .profile = NumericProfile::Uniform(Codec::kF16)};
    const uint64_t value_bytes =
        2 * count * layers * kContextKvHeads * kContextDim * sizeof(uint16_t);
    options.hot_bytes = value_bytes / 4 * 5 + (uint64_t{4} << 20);
    choose(options);
    DiskStoreOptions below{.commit_interval_us = uint64_t{3600} * 1'000'000,
                           .warm_bytes = value_bytes / 4 * 10 + (uint64_t{4} << 20)};
    choose(below);
    store = Must(DiskStore::Open(below));
    options.store = store.get();
    cache = Must(Cache::Create(options));
  }

  void Open(bool with_store) {
    if (with_store) {
      store = Must(DiskStore::Open({.directory = directory / "store", .bytes_cap = kStoreBytes}));
    }
    cache = Must(Cache::Create({.geometry = Geometry::Uniform(layers, kContextKvHeads, kContextDim),
                                .profile = NumericProfile::Uniform(Codec::kF16),
                                .hot_bytes = uint64_t{2200} << 20,
                                .store = store.get()}));
  }
  /// Like a process that ends and starts again.
  void Restart() {
    Must(store->Flush());
    cache.reset();
    store.reset();
    Open(/*with_store=*/true);
  }
  /// Another text.
  void Draw(uint64_t seed) {
    Prng prng(seed);
    for (TokenId& token : tokens) token = static_cast<TokenId>(prng.NextBelow(kContextVocab));
  }

  void Compute() { Compute(count); }
  void Compute(uint64_t first) {
    auto sequence = Must(cache->Open(Must(Acquire()), {.reserve_tokens = count + 1}));
    const RowsView view = {.data = rows.data(),
                           .dtype = Codec::kF16,
                           .token_stride = int64_t{kContextKvHeads} * kContextDim,
                           .head_stride = kContextDim};
    const auto step = static_cast<uint32_t>(std::min(kContextStepTokens, first));
    for (uint64_t done = 0; done < first; done += step) {
      for (uint32_t layer = 0; layer < layers; ++layer) {
        Must(sequence->Append(layer, {.key = view, .value = view, .tokens = step}));
      }
      Must(sequence->Commit(std::span(tokens).subspan(done, step)));
    }
  }
  Result<Plan> Acquire() { return cache->Acquire({.identity = &identity, .tokens = tokens}); }
  void EvictAll() {
    while (cache->Evict(1024) > 0) {
    }
  }
  /// Seconds that it takes to write a new text below.
  double WriteBelow() {
    EvictAll();
    Draw(++text_);
    Compute();
    const double begin_s = WallSeconds();
    Must(store->Flush());
    return WallSeconds() - begin_s;
  }
  /// Seconds that it takes to bring the last text back.
  double Load() {
    EvictAll();
    const double begin_s = WallSeconds();
    const Plan plan = Must(cache->Load(Must(Acquire()), {})).Take();
    const double seconds = WallSeconds() - begin_s;
    QUIRE_CHECK(plan.resident_tokens() == count);
    return seconds;
  }
  uint64_t bytes() const { return count / kBlockTokensDefault * cache->block_bytes(); }

  const uint32_t layers;
  const uint64_t count;  // tokens
  const Directory directory;
  const Identity identity{.weights = {1}, .domain = {.name = "bench"}};
  std::vector<TokenId> tokens = std::vector<TokenId>(count + 1);
  std::vector<uint16_t> rows =
      std::vector<uint16_t>(kContextStepTokens * kContextKvHeads * kContextDim);
  std::unique_ptr<DiskStore> store;
  std::unique_ptr<Cache> cache;

 private:
  Context(uint32_t of_layers, uint64_t of_count) : layers(of_layers), count(of_count) {
    Draw(1);
    Prng prng(2);
    for (uint16_t& value : rows) value = static_cast<uint16_t>(0x3000 + prng.NextBelow(0x800));
  }

  uint64_t text_ = 1;
};

}  // namespace quire::bench

#endif  // QUIRE_BENCH_CONTEXT_H_
