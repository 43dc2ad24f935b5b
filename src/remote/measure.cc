#include "remote/measure.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "remote/epochs.h"
#include "remote/open.h"

namespace quire::remote {
namespace {

constexpr uint64_t kMeasureAnswerUs = 5'000'000;
constexpr uint64_t kMeasureWaitUs = 1000;
constexpr uint32_t kTokens = 16;

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

tier::RecordIdentity IdentityOf(uint64_t number, std::span<const TokenId> tokens) {
  const auto digest = [&](std::string_view what) {
    Blake2b<32> hash;
    hash.Update(what);
    hash.UpdateNumber(number);
    return hash.Finish();
  };
  return {.key = digest("key"), .parent = digest("parent"), .tokens = tokens};
}

/// Has `depth` of them under way until all have ended.
RemoteRate Measure(RemoteRecords& records, const MeasureOptions& options, const Clock& clock,
                   const std::function<void(uint64_t number)>& begin) {
  RemoteRate rate;
  uint64_t begun = 0;
  uint64_t ended = 0;
  std::vector<tier::StoreCompletion> done;
  const uint64_t begin_us = clock.NowMicros();
  const double cpu_s = CpuSeconds();
  while (ended < options.records) {
    for (; begun < options.records && begun - ended < options.depth; ++begun) begin(begun);
    done.clear();
    records.Tick(done, kMeasureWaitUs);
    ended += done.size();
    for (const tier::StoreCompletion& end : done) {
      rate.failed += end.outcome == tier::StoreOutcome::kOk ? 0 : 1;
    }
  }
  const double gb = static_cast<double>(options.records * options.record_bytes) / 1e9;
  rate.gb_per_s = gb * 1e6 / static_cast<double>(clock.NowMicros() - begin_us);
  rate.cpu_s_per_gb = (CpuSeconds() - cpu_s) / gb;
  return rate;
}

}  // namespace

Result<RemoteRates> MeasureRemote(const RemoteAddress& address, const MeasureOptions& options,
                                  const Clock& clock) {
  FleetKey key{};
  FillRandom(key);
  QUIRE_ASSIGN(auto objects, OpenObjects(address));
  RemoteRecords records(std::move(objects), key,
                        {.request_us = 30'000'000,
                         .writing_bytes_max = ~uint64_t{0},
                         .seed = static_cast<uint64_t>(key[0])},
                        clock);
  if (!records.Await(kMeasureAnswerUs)) {
    return Fail(ErrorCode::kIo, fmt::format("{}: it does not answer", Describe(address)));
  }
  QUIRE_ASSIGN(const auto layout,
               tier::RecordLayout::Create(kTokens, {{.bytes = options.record_bytes}}));
  const std::vector<TokenId> tokens(kTokens, 1);
  std::vector<std::byte> bytes(options.record_bytes);
  Prng prng(1);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng.Next64());
  const std::span<const std::byte> section = bytes;
  RemoteRates rates;
  rates.put = Measure(records, options, clock, [&](uint64_t number) {
    records.Put({.identity = IdentityOf(number, tokens),
                 .layout = &layout,
                 .sections = {&section, 1},
                 .tag = number});
  });
  std::vector<std::vector<std::byte>> memory(options.depth);
  std::vector<std::span<std::byte>> out(options.depth);
  std::vector<uint32_t> crcs(options.depth);
  for (size_t i = 0; i < memory.size(); ++i) {
    memory[i].resize(options.record_bytes);
    out[i] = memory[i];
  }
  // Answers may come in another order: two may be read into one memory, one after the other.
  rates.get = Measure(records, options, clock, [&](uint64_t number) {
    const size_t at = number % options.depth;
    records.Get({.identity = IdentityOf(number, tokens),
                 .layout = &layout,
                 .section_count = 1,
                 .out = {&out[at], 1},
                 .crcs = {&crcs[at], 1},
                 .tag = number},
                0);
  });
  Measure(records, options, clock,
          [&](uint64_t number) { records.Remove(IdentityOf(number, tokens).key, number); });
  QUIRE_ASSIGN(objects, OpenObjects(address));
  objects->Ask({.verb = ObjectVerb::kRemove, .name = EpochsName(FleetKeys(key))});
  std::vector<ObjectReply> replies;
  objects->Take(replies, kMeasureAnswerUs);
  return rates;
}

}  // namespace quire::remote
