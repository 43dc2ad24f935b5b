#include "apps/quire/selftest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "apps/quire/command.h"
#include "base/prng.h"

namespace quire::app {

namespace {

constexpr uint32_t kLayers = 2;
constexpr uint32_t kHeads = 2;
constexpr uint32_t kDim = 64;
constexpr uint64_t kBlock = kBlockTokensDefault;
constexpr uint64_t kBudgetBytes = 1 << 20;

/// Host memory whose arenas (the first reservation of each pool, before its bookkeeping) can be
/// searched.
class SeenMemory final : public DeviceMemory {
 public:
  explicit SeenMemory(std::vector<std::span<const std::byte>>& seen) : seen_(seen) {}
  std::string_view name() const override { return inner_->name(); }
  bool host_accessible() const override { return true; }
  Result<std::byte*> Reserve(uint64_t bytes) override {
    QUIRE_ASSIGN(std::byte* const base, inner_->Reserve(bytes));
    if (reserves_++ % 2 == 0) seen_.emplace_back(base, bytes);
    return base;
  }
  Result<void> Commit(std::byte* begin, uint64_t bytes) override {
    return inner_->Commit(begin, bytes);
  }
  void Decommit(std::byte* begin, uint64_t bytes) override { inner_->Decommit(begin, bytes); }
  void Release(std::byte* base, uint64_t bytes) override { inner_->Release(base, bytes); }
  void Discard(std::byte* begin, uint64_t bytes) override { inner_->Discard(begin, bytes); }

 private:
  const std::unique_ptr<DeviceMemory> inner_ = MakeHostMemory(/*huge_pages=*/false);
  std::vector<std::span<const std::byte>>& seen_;
  uint64_t reserves_ = 0;
};

std::vector<TokenId> Tokens(uint64_t count, uint64_t seed) {
  Prng prng(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(prng.NextBelow(50'000));
  return tokens;
}

/// One cache and what the checks do with it.
class Bench {
 public:
  static Result<std::unique_ptr<Bench>> Create(const MakeCache& make, Codec codec) {
    auto bench = std::make_unique<Bench>();
    NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
    for (CodecRule& rule : profile.codecs) rule.codec = codec;
    QUIRE_ASSIGN(bench->cache, make({.geometry = Geometry::Uniform(kLayers, kHeads, kDim),
                                     .profile = profile,
                                     .hot_bytes = kBudgetBytes,
                                     .memory = &bench->memory}));
    return bench;
  }

  Result<TenantId> Add(std::string name, uint64_t quota_bytes = 0, uint64_t floor_bytes = 0,
                       std::string domain = "") const {
    return cache->AddTenant({.name = std::move(name),
                             .quota_bytes = quota_bytes,
                             .floor_bytes = floor_bytes,
                             .domain = std::move(domain)});
  }
  Result<Plan> Acquire(TenantId tenant, std::span<const TokenId> prompt) const {
    return cache->Acquire({.tenant = tenant, .identity = &identity, .tokens = prompt});
  }
  Result<uint64_t> Resident(TenantId tenant, std::span<const TokenId> prompt) const {
    QUIRE_ASSIGN(const Plan plan, Acquire(tenant, prompt));
    return plan.resident_tokens();
  }
  /// A sequence of the prompt whose every value is not zero.
  Result<std::unique_ptr<Sequence>> Run(TenantId tenant, std::span<const TokenId> prompt) const {
    QUIRE_ASSIGN(Plan plan, Acquire(tenant, prompt));
    QUIRE_ASSIGN(auto sequence, cache->Open(std::move(plan), {}));
    const uint64_t begin = sequence->length();
    const std::vector<float> values((prompt.size() - begin) * kHeads * kDim, 1.25f);
    const RowsView rows{.data = values.data(),
                        .dtype = Codec::kF32,
                        .token_stride = int64_t{kHeads} * kDim,
                        .head_stride = kDim};
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      QUIRE_TRY(sequence->Append(
          layer,
          {.key = rows, .value = rows, .tokens = static_cast<uint32_t>(prompt.size() - begin)}));
    }
    QUIRE_TRY(sequence->Commit(prompt.subspan(begin)));
    return sequence;
  }
  uint64_t BytesNotZero() const {
    uint64_t found = 0;
    for (const auto& arena : arenas) {
      found += static_cast<uint64_t>(
          std::ranges::count_if(arena, [](std::byte byte) { return byte != std::byte{0}; }));
    }
    return found;
  }

  std::vector<std::span<const std::byte>> arenas{};
  SeenMemory memory{arenas};  // the cache's
  std::unique_ptr<Cache> cache;
  Identity identity{.weights = {1}, .position_encoding = "rope", .domain = {.secret = {7}}};
};

IsolationCheck Check(std::string name, bool passed, std::string detail) {
  return {.name = std::move(name), .passed = passed, .detail = std::move(detail)};
}

Result<IsolationCheck> EqualPromptsShareNothing(const Bench& bench) {
  QUIRE_ASSIGN(const TenantId a, bench.Add("a"));
  QUIRE_ASSIGN(const TenantId b, bench.Add("b"));
  const auto prompt = Tokens(4 * kBlock + 1, 1);
  QUIRE_ASSIGN(const auto sequence, bench.Run(a, prompt));
  QUIRE_ASSIGN(const uint64_t own, bench.Resident(a, prompt));
  QUIRE_ASSIGN(const Plan plan, bench.Acquire(b, prompt));
  return Check(
      "equal prompts of two tenants share nothing",
      own == 4 * kBlock && plan.resident_tokens() == 0 && plan.reason() == MissReason::kNeverSeen,
      fmt::format("own tenant finds {} tokens, another {} ({})", own, plan.resident_tokens(),
                  MissReasonName(plan.reason())));
}

Result<IsolationCheck> DomainsAreShared(const Bench& bench) {
  QUIRE_TRY(bench.cache->AddTenant({.name = "team", .shared = true}));
  QUIRE_TRY(bench.cache->AddTenant({.name = "club", .shared = true}));
  QUIRE_ASSIGN(const TenantId a, bench.Add("a", 0, 0, "team"));
  QUIRE_ASSIGN(const TenantId b, bench.Add("b", 0, 0, "team"));
  QUIRE_ASSIGN(const TenantId c, bench.Add("c", 0, 0, "club"));
  QUIRE_ASSIGN(const TenantId d, bench.Add("d"));
  const auto prompt = Tokens(4 * kBlock + 1, 1);
  QUIRE_TRY(bench.Run(a, prompt));
  QUIRE_ASSIGN(const uint64_t same, bench.Resident(b, prompt));
  QUIRE_ASSIGN(const uint64_t other, bench.Resident(c, prompt));
  QUIRE_ASSIGN(const uint64_t alone, bench.Resident(d, prompt));
  return Check("only tenants that name the same domain share",
               same == 4 * kBlock && other == 0 && alone == 0,
               fmt::format("the same domain finds {} tokens, another domain {}, no domain {}", same,
                           other, alone));
}

Result<IsolationCheck> QuotasRefuse(const Bench& bench) {
  QUIRE_ASSIGN(const TenantId a, bench.Add("a", kBudgetBytes / 4));
  QUIRE_ASSIGN(const TenantId b, bench.Add("b"));
  const auto others = Tokens(4 * kBlock + 1, 9);
  QUIRE_TRY(bench.Run(b, others));
  std::vector<std::unique_ptr<Sequence>> open;
  std::string message;
  for (uint64_t i = 0; message.empty(); ++i) {
    auto sequence = bench.Run(a, Tokens(kBlock, i));
    if (!sequence) message = sequence.error().message;
    if (sequence) open.push_back(*std::move(sequence));
  }
  QUIRE_ASSIGN(const TenantStats stats, bench.cache->tenant_stats(a));
  QUIRE_ASSIGN(const uint64_t left, bench.Resident(b, others));
  return Check("a quota is hard and costs nobody else",
               stats.bytes_peak <= kBudgetBytes / 4 && left == 4 * kBlock &&
                   message.find("tenant \"a\"") != std::string::npos,
               fmt::format("at most {} bytes of {}; another tenant keeps {} tokens; {}",
                           stats.bytes_peak, kBudgetBytes / 4, left, message));
}

Result<IsolationCheck> FloorsHold(const Bench& bench) {
  QUIRE_ASSIGN(const TenantId a, bench.Add("a", 0, kBudgetBytes / 4));
  QUIRE_ASSIGN(const TenantId b, bench.Add("b"));
  for (uint64_t i = 0; i < 200; ++i) QUIRE_TRY(bench.Run(a, Tokens(2 * kBlock + 1, i)));
  std::vector<std::unique_ptr<Sequence>> open;
  while (true) {
    auto sequence = bench.Run(b, Tokens(kBlock, 1000 + open.size()));
    if (!sequence) break;
    open.push_back(*std::move(sequence));
  }
  QUIRE_ASSIGN(const TenantStats stats, bench.cache->tenant_stats(a));
  return Check("the needs of others evict nobody below the floor",
               stats.bytes_used >= kBudgetBytes / 4 && stats.evicted_total > 0,
               fmt::format("{} bytes left, the floor is {}; {} blocks evicted", stats.bytes_used,
                           kBudgetBytes / 4, stats.evicted_total));
}

Result<IsolationCheck> ErasedIsForgottenAndZeroed(const Bench& bench) {
  QUIRE_ASSIGN(const TenantId a, bench.Add("a"));
  const auto prompt = Tokens(6 * kBlock + 1, 1);
  QUIRE_TRY(bench.Run(a, prompt));
  QUIRE_ASSIGN(auto holder, bench.Run(a, prompt));
  const uint64_t before = bench.BytesNotZero();
  QUIRE_ASSIGN(const EraseReport report, bench.cache->Erase(a));
  QUIRE_ASSIGN(const uint64_t found, bench.Resident(a, prompt));
  holder.reset();
  QUIRE_ASSIGN(const TenantStats stats, bench.cache->tenant_stats(a));
  const uint64_t after = bench.BytesNotZero();
  return Check("what is erased is not found again and leaves no byte",
               before > 0 && report.slots_pending > 0 && found == 0 && after == 0 &&
                   stats.erase_pending_slots == 0,
               fmt::format("{} bytes before; {} tokens found after; {} bytes left when the last of "
                           "{} held slots is given back",
                           before, found, after, report.slots_pending));
}

Result<IsolationCheck> SlotsAreZeroedInBetween(const Bench& bench) {
  QUIRE_ASSIGN(const TenantId a, bench.Add("a"));
  QUIRE_ASSIGN(const TenantId b, bench.Add("b"));
  for (uint64_t i = 0; i < 20; ++i) QUIRE_TRY(bench.Run(a, Tokens(4 * kBlock + 1, i)));
  const uint64_t before = bench.BytesNotZero();
  // As much as there is, so that every slot of the other tenant passes on; nothing is written.
  QUIRE_ASSIGN(Plan plan, bench.Acquire(b, Tokens(1, 99)));
  QUIRE_ASSIGN(const auto sequence,
               bench.cache->Open(
                   std::move(plan),
                   {.reserve_tokens = 1 << 20, .step_tokens = 1 << 20, .on_full = OnFull::kFewer}));
  const SequenceStats stats = sequence->stats();
  QUIRE_ASSIGN(const TenantStats of_a, bench.cache->tenant_stats(a));
  const uint64_t after = bench.BytesNotZero();
  // What the other tenant still holds, or gave back and none took, may stay.
  QUIRE_TRY(bench.cache->Erase(a));
  return Check("slots are zeroed when they pass from one tenant to another",
               before > 0 && after < before && bench.BytesNotZero() == 0,
               fmt::format("{} bytes before, {} after another took {} blocks ({} bytes are still "
                           "the first's); none after it was erased",
                           before, after, stats.blocks_own, of_a.bytes_used));
}

/// All that tenant a can read while b, beside it, caches the very same prompts or others as long.
Result<std::string> WhatOneReads(const Bench& bench, bool same_prompts) {
  QUIRE_ASSIGN(const TenantId a, bench.Add("a", kBudgetBytes / 2, kBudgetBytes / 8));
  QUIRE_ASSIGN(const TenantId b, bench.Add("b"));
  Prng prng(7);
  std::string all;
  for (uint64_t step = 0; step < 100; ++step) {
    const uint64_t which = prng.NextBelow(8);
    const uint64_t tokens = 1 + prng.NextBelow(20 * kBlock);
    const auto of_a = Tokens(tokens, which);
    if (prng.NextChance(2)) {
      const auto done = bench.Run(b, same_prompts ? of_a : Tokens(tokens, which + 100));
      if (!done && done.error().code != ErrorCode::kNoSpace) return Fail(done.error().code, "");
    }
    QUIRE_ASSIGN(const Plan plan, bench.Acquire(a, of_a));
    for (const MissRun& run : plan.missing()) {
      all += fmt::format("{} {} ", MissReasonName(run.reason), run.tokens);
    }
    const auto done = bench.Run(a, of_a);
    all += done ? ToJson((*done)->stats()) : done.error().message;
    QUIRE_ASSIGN(const TenantStats stats, bench.cache->tenant_stats(a));
    all += ToJson(stats) + "\n";
  }
  return all;
}

}  // namespace

Result<std::vector<IsolationCheck>> CheckIsolation(const MakeCache& make, Codec codec) {
  std::vector<IsolationCheck> checks;
  for (const auto check : {EqualPromptsShareNothing, DomainsAreShared, QuotasRefuse, FloorsHold,
                           ErasedIsForgottenAndZeroed, SlotsAreZeroedInBetween}) {
    QUIRE_ASSIGN(const auto bench, Bench::Create(make, codec));
    QUIRE_ASSIGN(checks.emplace_back(), check(*bench));
  }
  QUIRE_ASSIGN(const auto one, Bench::Create(make, codec));
  QUIRE_ASSIGN(const auto two, Bench::Create(make, codec));
  QUIRE_ASSIGN(const std::string same, WhatOneReads(*one, /*same_prompts=*/true));
  QUIRE_ASSIGN(const std::string other, WhatOneReads(*two, /*same_prompts=*/false));
  checks.push_back(Check("nothing a tenant reads depends on what another cached", same == other,
                         fmt::format("{} characters of answers, {}", same.size(),
                                     same == other ? "equal" : "different")));
  return checks;
}

Result<std::vector<IsolationCheck>> CheckIsolation(Codec codec) {
  return CheckIsolation(&Cache::Create, codec);
}

namespace {

int Isolation(bool json) {
  constexpr std::array kTested = {Codec::kF16, Codec::kInt8, Codec::kNf4};
  auto report = nlohmann::ordered_json::array();
  uint64_t failed = 0;
  for (const Codec codec : kTested) {
    const auto checks = CheckIsolation(codec);
    if (!checks) return Report("selftest", checks.error());
    for (const IsolationCheck& check : *checks) {
      failed += check.passed ? 0 : 1;
      report.push_back({{"codec", CodecName(codec)},
                        {"name", check.name},
                        {"passed", check.passed},
                        {"detail", check.detail}});
      if (json) continue;
      fmt::print("{}  {:<5} {}\n            {}\n", check.passed ? "ok  " : "FAIL", CodecName(codec),
                 check.name, check.detail);
    }
  }
  if (json) PrintJson({{"selftest", "isolation"}, {"failed", failed}, {"checks", report}});
  if (!json) fmt::print("{} checks, {} failed\n", report.size(), failed);
  return failed == 0 ? kOk : kFailedCheck;
}

}  // namespace

void AddSelftest(Command& program) {
  Command selftest = program.AddCommand("selftest", "checks promises on this machine");
  selftest.NeedsCommand();
  Command isolation =
      selftest.AddCommand("isolation", "tenants are apart: sharing, quotas, erasing");
  auto json = std::make_shared<bool>(false);
  isolation.Add({.name = "--json", .value = json.get(), .help = "print one JSON object"});
  isolation.Run([json] { return Isolation(*json); });
}

}  // namespace quire::app
