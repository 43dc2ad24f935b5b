// The store on a disk beside fio: bringing a context of 16,384 tokens back (Qwen3-0.6B in f16),
// writing records, and what write-behind costs the processor and a request that decodes meanwhile;
// and the time to the first token of a prompt that long, by where its context comes from.
#include <fmt/format.h>
#include <sys/resource.h>

#include <cstring>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/prng.h"
#include "bench/bench.h"
#include "bench/context.h"
#include "bench/fio.h"
#include "bench/must.h"
#include "bench/quiet.h"
#include "bench/record_writer.h"
#include "bench/roofline.h"
#include "bench/shapes.h"
#include "env/clock.h"
#include "model/model.h"
#include "quire/attention.h"
#include "quire/cache.h"
#include "quire/disk_store.h"

namespace quire::bench {
namespace {

constexpr uint64_t kWrittenTokens = 8 * 1024;  // behind a slice that decodes
constexpr uint32_t kDecodeLayers = 4;          // of the model that decodes: beyond any cache
constexpr uint32_t kDecodeTokens = 12;
constexpr uint64_t kComputedTokens = 512;  // of a prompt, where all of it would take minutes

double ProcessCpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Result<Subject> Restore() {
  auto context = std::make_shared<Context>(/*with_store=*/true);
  context->Compute();
  QUIRE_TRY(context->store->Flush());
  FioJob job = {.file = context->directory / "fio", .writes = true, .bytes = context->bytes()};
  QUIRE_TRY(FioSeconds(job));  // makes the file
  job.writes = false;
  QUIRE_ASSIGN(job.depth, BestFioDepth(job));
  return Timed{
      .unit = "GB/s",
      .amount = static_cast<double>(context->bytes()) * 1e-9,
      .slice = fmt::format("brings {} tokens back into an empty cache: Acquire, Load, Take",
                           kContextTokens),
      .work =
          [context](uint32_t) {
            context->EvictAll();
            const double begin_s = WallSeconds();
            Plan plan = Must(context->cache->Load(Must(context->Acquire()), {})).Take();
            QUIRE_CHECK(plan.resident_tokens() == kContextTokens);
            return WallSeconds() - begin_s;
          },
      .floor = [job](uint32_t) { return Must(FioSeconds(job)); },
      .note = [job] { return fmt::format("fio reads as much, depth {}", job.depth); }};
}

Result<Subject> Write() {
  auto writer = std::make_shared<RecordWriter>();
  const uint64_t records = kWriterBytes / writer->layout.record_bytes();
  FioJob job = {.file = writer->directory / "fio",
                .writes = true,
                .bytes = records * writer->layout.record_bytes() >> 20 << 20};
  QUIRE_TRY(FioSeconds(job));
  QUIRE_ASSIGN(job.depth, BestFioDepth(job));
  // All segments are made and full, as those of a store that has run for a while.
  for (int run = 0; run < 4; ++run) writer->Write(records);
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
  // The least work for every byte: it is checked in memory, and copied with a checksum.
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

/// A model of the contexts' shape with random weights.
struct Runner {
  Runner(uint32_t layers, uint32_t threads) : executor(MakePinnedPool(threads)) {
    const model::ModelConfig config = LargeShape(layers);
    model =
        Must(model::Model::Create(config, model::RandomTensors(config, ComputeType::kBf16, 1), {}));
    logits.resize(config.vocab);
  }
  /// Logits after tokens that follow what the sequence holds.
  void Step(Sequence& sequence, std::span<const TokenId> tokens) {
    const model::StepItem item = {.sequence = &sequence, .tokens = tokens, .logits = logits.data()};
    Must(model->Step({&item, 1}, *attention, *executor));
  }

  std::unique_ptr<model::Model> model;
  std::unique_ptr<AttentionBackend> attention = Must(MakeCpuAttention());
  std::unique_ptr<Executor> executor;
  std::vector<float> logits;
};

/// One thread that decodes, in a cache of its own.
struct Decoder {
  Decoder()
      : cache(Must(Cache::Create({.geometry = model::GeometryOf(LargeShape(kDecodeLayers)),
                                  .profile = NumericProfile::Uniform(Codec::kF16),
                                  .hot_bytes = uint64_t{64} << 20}))) {
    const Identity identity{.weights = {1}};
    sequence = Must(
        cache->Open(Must(cache->Acquire({.identity = &identity, .tokens = tokens, .reuse = false})),
                    {.publish = false}));
  }
  double Decode() {
    sequence->Reset();
    const double begin_s = WallSeconds();
    for (uint32_t i = 0; i < kDecodeTokens; ++i) {
      runner.Step(*sequence, std::span(tokens).subspan(i, 1));
    }
    return WallSeconds() - begin_s;
  }

  Runner runner{kDecodeLayers, /*threads=*/1};
  const std::vector<TokenId> tokens = std::vector<TokenId>(kDecodeTokens, 7);
  std::unique_ptr<Cache> cache;
  std::unique_ptr<Sequence> sequence;
};

/// Blocks that wait to be written, all at once. They are published in the callback of a load, which
/// delays the thread that ticks the store, so nothing is written meanwhile.
struct Backlog {
  Backlog() {
    context.Draw(0);
    context.Compute(kContextStepTokens);
    Must(context.store->Flush());
  }
  void Publish() {
    context.EvictAll();
    context.Draw(0);
    std::binary_semaphore published{0};
    Plan plan = Must(context.Acquire());
    QUIRE_CHECK(plan.loadable_tokens() > 0);
    Ticket ticket = Must(
        context.cache->Load(std::move(plan), {.on_done = [&published] { published.acquire(); }}));
    while (!ticket.IsDone()) std::this_thread::yield();
    context.Draw(++seed);
    context.Compute(kWrittenTokens);
    published.release();
  }

  Context context{/*with_store=*/true};
  uint64_t seed = 0;
};

// More blocks wait than are written while the slice decodes; the note says in how many slices that
// was so.
Result<Subject> DecodeBesideWriting() {
  struct State {
    Backlog backlog;
    Decoder decoder;
    uint64_t slices = 0;
    uint64_t covered = 0;
  };
  auto state = std::make_shared<State>();
  return Timed{
      .unit = "ms/token",
      .less_is_better = true,
      .amount = 1e3 / kDecodeTokens,
      .slice = fmt::format("decodes {} tokens on one thread ({} layers) while {} tokens of another "
                           "context are written",
                           kDecodeTokens, kDecodeLayers, kWrittenTokens),
      .work =
          [state](uint32_t) {
            state->backlog.Publish();
            const double seconds = state->decoder.Decode();
            ++state->slices;
            state->covered += state->backlog.context.cache->stats().unwritten_blocks > 0 ? 1 : 0;
            Must(state->backlog.context.store->Flush());
            return seconds;
          },
      .floor = [state](uint32_t) { return state->decoder.Decode(); },
      .note =
          [state] {
            return fmt::format(
                "the same while nothing is written; in {} of {} slices something was "
                "left to write at the end",
                state->covered, state->slices);
          }};
}

/// A prompt of 16,384 tokens and one more, of a model with all layers.
struct FirstToken {
  FirstToken() {
    context.Compute();
    Must(context.store->Flush());
  }
  /// Of a plan, to the logits after the prompt.
  void Finish(Plan plan) {
    const uint64_t resident = plan.resident_tokens();
    QUIRE_CHECK(resident == kContextTokens);
    const auto sequence = Must(context.cache->Open(std::move(plan), {}));
    runner.Step(*sequence, std::span(context.tokens).subspan(resident));
  }
  double FromMemory() {
    const double begin_s = WallSeconds();
    Finish(Must(context.Acquire()));
    return WallSeconds() - begin_s;
  }
  double FromStore() {
    context.Restart();
    const double begin_s = WallSeconds();
    Finish(Must(context.cache->Load(Must(context.Acquire()), {})).Take());
    return WallSeconds() - begin_s;
  }
  double Computed() {
    const auto tokens = std::span<const TokenId>(context.tokens).first(kComputedTokens);
    const double begin_s = WallSeconds();
    const auto sequence = Must(
        context.cache->Open(Must(context.cache->Acquire(
                                {.identity = &context.identity, .tokens = tokens, .reuse = false})),
                            {.publish = false}));
    runner.Step(*sequence, tokens);
    return WallSeconds() - begin_s;
  }
  // Multiply-adds of the layers' matrix products, twice; attention is not counted.
  double gigaflops(uint64_t count) const {
    const double head_bytes = 2.0 * kContextVocab * LargeShape(1).hidden;
    return (static_cast<double>(runner.model->weight_bytes()) - head_bytes) * 1e-9 *
           static_cast<double>(count);
  }

  Context context{/*with_store=*/true};
  Runner runner{kContextLayers, /*threads=*/2};
};

Timed Milliseconds(std::string slice) {
  Timed timed;
  timed.unit = "ms";
  timed.less_is_better = true;
  timed.amount = 1e3;
  timed.slice = std::move(slice);
  return timed;
}

Result<Subject> FirstTokenComputed() {
  auto first = std::make_shared<FirstToken>();
  Timed timed = Milliseconds(fmt::format(
      "computes the first {} of {} tokens; all of them take that many times as long, and more",
      kComputedTokens, kContextTokens));
  timed.work = [first](uint32_t) { return first->Computed(); };
  timed.floor = [first](uint32_t) {
    return first->gigaflops(kComputedTokens) * SecondsPerGigaflop(*first->runner.executor);
  };
  timed.note = [] { return "the multiply-adds of the matrix products, in registers"; };
  return timed;
}

Result<Subject> FirstTokenFromMemory() {
  auto first = std::make_shared<FirstToken>();
  auto sequence = std::shared_ptr<Sequence>(
      Must(first->context.cache->Open(Must(first->context.Acquire()), {.publish = false})));
  Timed timed = Milliseconds(
      fmt::format("{} tokens are in memory: Acquire, Open, one token computed", kContextTokens));
  timed.work = [first](uint32_t) { return first->FromMemory(); };
  timed.floor = [first, sequence](uint32_t) {
    const double begin_s = WallSeconds();
    first->runner.Step(*sequence, std::span(first->context.tokens).subspan(kContextTokens));
    const double seconds = WallSeconds() - begin_s;
    Must(sequence->Rollback(kContextTokens));
    return seconds;
  };
  timed.note = [] { return "that token, computed behind an open sequence"; };
  return timed;
}

Result<Subject> FirstTokenFromStore() {
  auto first = std::make_shared<FirstToken>();
  Timed timed = Milliseconds(fmt::format(
      "{} tokens are in the store of an earlier process: Acquire, Load, Open, one token computed",
      kContextTokens));
  timed.work = [first](uint32_t) { return first->FromStore(); };
  timed.floor = [first](uint32_t) { return first->FromMemory(); };
  timed.note = [] { return "the same from memory"; };
  return timed;
}

}  // namespace

std::vector<Case> TierCases(const Options&) {
  std::vector<Case> cases = {{.name = "restore/f16/16384", .prepare = Restore},
                             {.name = "write/f16", .prepare = Write},
                             {.name = "write_cpu/f16", .prepare = WriteCpu},
                             {.name = "decode_beside_writing/t1", .prepare = DecodeBesideWriting},
                             {.name = "first_token/computed/512", .prepare = FirstTokenComputed},
                             {.name = "first_token/memory/16384", .prepare = FirstTokenFromMemory},
                             {.name = "first_token/restart/16384", .prepare = FirstTokenFromStore}};
  for (Case& each : SealedTierCases()) cases.push_back(std::move(each));
  for (Case& each : HostOfMoveCases()) cases.push_back(std::move(each));
  return cases;
}

}  // namespace quire::bench
