#include "serve/retainer.h"

#include <algorithm>
#include <utility>

#include "base/bits.h"

namespace quire::serve {

namespace {

RetainOutcome Ignored(std::string why) {
  return {.what = Retained::kIgnored, .why = std::move(why)};
}

}  // namespace

std::string_view RetainedName(Retained what) {
  switch (what) {
    case Retained::kAccepted: return "accepted";
    case Retained::kClipped: return "clipped";
    case Retained::kIgnored: return "ignored";
  }
  return "unknown";
}

void Retainer::SetDomain(TenantId tenant, TenantId domain) {
  if (domain.is_none()) {
    domains_.erase(tenant);
  } else {
    domains_[tenant] = domain;
  }
}

std::vector<RetainOutcome> Retainer::Apply(const Request& request, TenantId tenant,
                                           const ServedAdapter* adapter,
                                           std::span<const TokenId> computed) {
  const Identity& identity = adapter == nullptr ? identity_ : adapter->identity;
  std::vector<RetainOutcome> outcomes;
  for (const RetainHint& hint : request.retain) {
    outcomes.push_back(request.publishes() ? ApplyOne(hint, tenant, identity, computed)
                                           : Ignored("nothing of the call is shared"));
  }
  return outcomes;
}

RetainOutcome Retainer::ApplyOne(const RetainHint& hint, TenantId tenant, const Identity& identity,
                                 std::span<const TokenId> computed) {
  const uint64_t block = cache_.options().profile.block_tokens;
  const uint64_t asked = std::min<uint64_t>(hint.tokens, computed.size());
  const uint64_t whole = RoundDown<uint64_t>(asked, block);
  if (whole == 0) return Ignored("it has not a whole block");
  RetainOutcome outcome = {.what = Retained::kAccepted,
                           .tokens = whole,
                           .ttl_us = std::min(hint.ttl_us, limits_.ttl_us_max)};
  if (outcome.ttl_us < hint.ttl_us) {
    outcome.what = Retained::kClipped;
    outcome.why = "it is kept for less long";
  }
  const auto pin = [&](uint64_t tokens) {
    return cache_.Pin({.tenant = tenant, .identity = &identity, .tokens = computed.first(tokens)},
                      outcome.ttl_us);
  };
  // What it adds to what is kept is known once it is kept: what was kept before costs nothing.
  if (const auto pinned = pin(whole); !pinned) return Ignored(pinned.error().message);
  const uint64_t over = BlocksTooMany(tenant) * block;
  if (over == 0) return outcome;
  (void)cache_.Unpin({.tenant = tenant, .identity = &identity, .tokens = computed.first(whole)});
  if (over >= whole) return Ignored("the tenant keeps as much as hints may");
  outcome.tokens = whole - over;
  outcome.what = Retained::kClipped;
  outcome.why = "the tenant keeps as much as hints may";
  if (const auto pinned = pin(outcome.tokens); !pinned) return Ignored(pinned.error().message);
  return outcome;
}

// That the tenant's pins keep beyond its share.
uint64_t Retainer::BlocksTooMany(TenantId tenant) const {
  const auto domain = domains_.find(tenant);
  const auto stats = cache_.tenant_stats(domain == domains_.end() ? tenant : domain->second);
  if (!stats) return UINT64_MAX / cache_.options().profile.block_tokens;
  uint64_t most_bytes = cache_.stats().hot_bytes_limit;
  if (stats->quota_bytes != 0) most_bytes = std::min(most_bytes, stats->quota_bytes);
  const auto limit_bytes = static_cast<uint64_t>(static_cast<double>(most_bytes) * limits_.share);
  if (stats->pinned_bytes <= limit_bytes) return 0;
  const uint64_t bytes_a_block = stats->pinned_bytes / std::max<uint64_t>(stats->pinned_blocks, 1);
  return DivUp(stats->pinned_bytes - limit_bytes, std::max<uint64_t>(bytes_a_block, 1));
}

}  // namespace quire::serve
