// Streaming reads and multiply-adds, in plain loops.
#include "bench/roofline.h"

#include <algorithm>
#include <atomic>

#include "base/bits.h"
#include "base/check.h"
#include "bench/pairs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/roofline.cc"
#include <hwy/foreach_target.h>  // must come before highway.h

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace quire::bench::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Sums `words`, a multiple of 8, so that every byte must be read. No software prefetch: measured on
// Zen 3 it costs 8 to 29 %, the hardware's own is better.
uint64_t StreamSum(const uint64_t* data, uint64_t words) {
  const hn::ScalableTag<uint64_t> d;
  const size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d);
  auto sum1 = hn::Zero(d);
  auto sum2 = hn::Zero(d);
  auto sum3 = hn::Zero(d);
  uint64_t i = 0;
  for (; i + 4 * lanes <= words; i += 4 * lanes) {
    sum0 = hn::Add(sum0, hn::Load(d, data + i));
    sum1 = hn::Add(sum1, hn::Load(d, data + i + lanes));
    sum2 = hn::Add(sum2, hn::Load(d, data + i + 2 * lanes));
    sum3 = hn::Add(sum3, hn::Load(d, data + i + 3 * lanes));
  }
  for (; i < words; i += lanes) sum0 = hn::Add(sum0, hn::Load(d, data + i));
  const auto sum = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Twelve independent chains hide the latency of two FMA units with room to spare, and fit in the
// sixteen registers of AVX2. Every chain tends to `addend / (1 - factor)`. Returns the operations.
double FmaChains(uint64_t rounds, float factor, float addend, float* out) {
  constexpr int kChains = 12;
  const hn::ScalableTag<float> d;
  const auto f = hn::Set(d, factor);
  const auto a = hn::Set(d, addend);
  auto c0 = hn::Set(d, 0.0f), c1 = hn::Set(d, 0.1f), c2 = hn::Set(d, 0.2f);
  auto c3 = hn::Set(d, 0.3f), c4 = hn::Set(d, 0.4f), c5 = hn::Set(d, 0.5f);
  auto c6 = hn::Set(d, 0.6f), c7 = hn::Set(d, 0.7f), c8 = hn::Set(d, 0.8f);
  auto c9 = hn::Set(d, 0.9f), c10 = hn::Set(d, 1.0f), c11 = hn::Set(d, 1.1f);
  for (uint64_t round = 0; round < rounds; ++round) {
    c0 = hn::MulAdd(c0, f, a);
    c1 = hn::MulAdd(c1, f, a);
    c2 = hn::MulAdd(c2, f, a);
    c3 = hn::MulAdd(c3, f, a);
    c4 = hn::MulAdd(c4, f, a);
    c5 = hn::MulAdd(c5, f, a);
    c6 = hn::MulAdd(c6, f, a);
    c7 = hn::MulAdd(c7, f, a);
    c8 = hn::MulAdd(c8, f, a);
    c9 = hn::MulAdd(c9, f, a);
    c10 = hn::MulAdd(c10, f, a);
    c11 = hn::MulAdd(c11, f, a);
  }
  const auto low = hn::Add(hn::Add(hn::Add(c0, c1), hn::Add(c2, c3)), hn::Add(c4, c5));
  const auto high = hn::Add(hn::Add(hn::Add(c6, c7), hn::Add(c8, c9)), hn::Add(c10, c11));
  *out = hn::GetLane(hn::SumOfLanes(d, hn::Add(low, high)));
  return 2.0 * kChains * static_cast<double>(hn::Lanes(d)) * static_cast<double>(rounds);
}

}  // namespace quire::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::bench {

HWY_EXPORT(StreamSum);
HWY_EXPORT(FmaChains);

namespace {

constexpr uint64_t kChunkBytes = 1 << 20;  // what a thread takes at a time

// Results that are not needed go here, so that no compiler leaves the work out.
std::atomic<uint64_t> sink = 0;

}  // namespace

double ReadSeconds(const Runs& runs, Executor& executor) {
  QUIRE_CHECK(!runs.empty() && !runs[0].empty() && runs[0].size() % 64 == 0);
  const uint64_t runs_per_item = std::max<uint64_t>(1, kChunkBytes / runs[0].size());
  const auto items = static_cast<uint32_t>(DivUp(runs.size(), runs_per_item));
  return SecondsOf(executor, [&] {
    executor.ParallelFor(items, [&](uint32_t item, uint32_t) {
      const uint64_t begin = item * runs_per_item;
      const uint64_t end = std::min<uint64_t>(begin + runs_per_item, runs.size());
      uint64_t sum = 0;
      for (uint64_t i = begin; i < end; ++i) {
        sum += HWY_DYNAMIC_DISPATCH(StreamSum)(reinterpret_cast<const uint64_t*>(runs[i].data()),
                                               runs[i].size() / sizeof(uint64_t));
      }
      sink += sum;
    });
  });
}

Stream::Stream(uint64_t bytes) : memory_(MakeHostMemory(/*huge_pages=*/true)) {
  auto arena = Reservation::CreateCommitted(*memory_, RoundUp(bytes, kChunkBytes));
  QUIRE_CHECK_MSG(arena.has_value(), arena.error().message);
  arena_.emplace(*std::move(arena));
  // Untouched pages are all one page of zeros, which never leaves the cache.
  auto* const words = reinterpret_cast<uint64_t*>(arena_->base());
  for (uint64_t word = 0; word < arena_->bytes() / sizeof(uint64_t); ++word) words[word] = word;
  runs_.reserve(arena_->bytes() / kChunkBytes);
  for (uint64_t at = 0; at < arena_->bytes(); at += kChunkBytes) {
    runs_.emplace_back(arena_->base() + at, kChunkBytes);
  }
}

double SecondsPerGigaflop(Executor& executor) {
  constexpr uint64_t kRounds = 100'000;  // about a quarter of a millisecond
  constexpr uint32_t kItemsPerThread = 20;
  // Operands the compiler cannot know.
  const std::atomic<float> factor = 0.5f;
  const std::atomic<float> addend = 1.0f;
  std::atomic<double> operations = 0;
  const double seconds = SecondsOf(executor, [&] {
    executor.ParallelFor(kItemsPerThread * executor.worker_count(), [&](uint32_t, uint32_t) {
      float result = 0;
      operations += HWY_DYNAMIC_DISPATCH(FmaChains)(kRounds, factor, addend, &result);
      sink += static_cast<uint64_t>(result);
    });
  });
  return seconds / operations * 1e9;
}

}  // namespace quire::bench
#endif  // HWY_ONCE
