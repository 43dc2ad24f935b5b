#include "ranks/sequence/share_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "cache/verbs/hit_length.h"

namespace quire::ranks::sequence {
namespace {

/// Stands for the token that a lookup leaves to be computed. No block ever has it.
constexpr TokenId kNextToken = std::numeric_limits<TokenId>::min();

bool IsCutAnywhere(const NumericProfile& profile) {
  return std::ranges::all_of(profile.codecs,
                             [](const CodecRule& rule) { return IsIdentity(rule.codec); });
}

}  // namespace

Result<ShareCache> ShareCache::Create(Cache& cache, const Identity& identity,
                                      const LaneShare& share, const Options& options) {
  QUIRE_ASSIGN(
      const Stamps stamps,
      Stamps::Create(options.vocab, cache.options().profile.block_tokens, identity.domain.secret));
  return ShareCache(cache, identity, share, stamps, options);
}

SequenceOptions ShareCache::OfShare(SequenceOptions options) const {
  options.reserve_tokens = share_.Before(options.reserve_tokens);
  return options;
}

// Where the store's blocks find no room, those in memory are all that is found.
Result<Plan> ShareCache::Find(std::span<const TokenId> own, const Request& request) const {
  SequenceOptions open_as;
  if (request.open_as != nullptr) open_as = OfShare(*request.open_as);
  const AcquireRequest asked = {.tenant = request.tenant,
                                .identity = identity_,
                                .tokens = own,
                                .reuse = request.reuse,
                                .open_as = request.open_as != nullptr ? &open_as : nullptr};
  QUIRE_ASSIGN(Plan plan, cache_->Acquire(asked));
  if (!loads_ || plan.loadable_tokens() == 0) return plan;
  auto ticket = cache_->Load(std::move(plan), {.timeout_us = load_timeout_us_});
  if (ticket) return ticket->Take();
  return cache_->Acquire(asked);
}

Result<ShareCache::Found> ShareCache::Acquire(const Request& request) const {
  if (request.prompt.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "ranks: acquire: no tokens");
  }
  QUIRE_TRY(stamps_.Check(request.prompt));
  const uint64_t block_tokens = stamps_.block_tokens();
  const uint64_t reusable =
      std::min(cache::ReusableBlocks(request.prompt.size(), stamps_.block_tokens()) * block_tokens,
               request.tokens_max / block_tokens * block_tokens);
  ShareText text(share_, stamps_);
  text.Append(request.prompt.first(reusable));
  const uint64_t own_tokens = share_.Before(reusable);
  std::vector<TokenId> own = text.Share(0, own_tokens);
  own.push_back(kNextToken);
  QUIRE_ASSIGN(Plan plan, Find(own, request));
  const uint64_t found = plan.resident_tokens();
  const MissReason reason = plan.reason();
  return Found{.plan = std::move(plan),
               .tokens = found == own_tokens ? reusable : share_.PositionOf(found),
               .reason = reason};
}

Result<std::unique_ptr<ShareSequence>> ShareCache::Open(Plan plan, std::span<const TokenId> prompt,
                                                        uint64_t tokens,
                                                        const SequenceOptions& options) const {
  if (options.contiguous || options.resident_tokens > 0) {
    return Fail(ErrorCode::kUnsupported,
                "open: a rank's share is neither contiguous nor streamed; run without --ranks");
  }
  ShareText text(share_, stamps_);
  text.Append(prompt.first(tokens));
  QUIRE_ASSIGN(auto inner, cache_->Open(std::move(plan), OfShare(options)));
  const auto layers = static_cast<uint32_t>(cache_->options().geometry.layer_count());
  return std::make_unique<ShareSequence>(std::move(inner), share_, std::move(text), layers,
                                         IsCutAnywhere(cache_->options().profile));
}

}  // namespace quire::ranks::sequence
