#include "sim/engine_outsiders.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bits.h"
#include "cache/test_util.h"

namespace quire::sim {
namespace {

// What a sequence is charged besides its blocks, at most.
constexpr uint64_t kSequenceBytes = 2048;

}  // namespace

void EngineOutsiders::Begin(Cache& cache, const Identity& pinned_as) {
  cache_ = &cache;
  pinned_as_ = &pinned_as;
}

void EngineOutsiders::End() {
  held_.clear();
  for (const std::vector<TokenId>& text : std::exchange(pins_, {})) {
    cache::Must(cache_->Unpin(RequestFor(text)));
  }
}

AcquireRequest EngineOutsiders::RequestFor(const std::vector<TokenId>& text) const {
  return {.identity = pinned_as_, .tokens = text};
}

bool EngineOutsiders::Take(uint64_t tokens) {
  const std::vector<TokenId> text(tokens);
  auto plan = cache_->Acquire({.identity = &own_, .tokens = text});
  if (!plan) return false;
  auto sequence = cache_->Open(*std::move(plan), {.step_tokens = 16, .publish = false});
  if (!sequence) return false;
  held_.push_back(
      {.sequence = *std::move(sequence), .blocks = DivUp(tokens, uint64_t{setup_.block_tokens()})});
  return true;
}

void EngineOutsiders::GiveBack() {
  if (held_.empty()) return;
  held_.erase(held_.begin() + static_cast<ptrdiff_t>(prng_.NextBelow(held_.size())));
}

void EngineOutsiders::Pin(const std::vector<TokenId>& text) {
  const auto known = std::ranges::find(pins_, text);
  if (known != pins_.end()) {
    cache::Must(cache_->Unpin(RequestFor(text)));
    pins_.erase(known);
  } else if (cache_->Pin(RequestFor(text), /*ttl_us=*/0)) {
    pins_.push_back(text);
  }
}

uint64_t EngineOutsiders::bytes() const {
  uint64_t blocks = cache::Must(cache_->tenant_stats(kDefaultTenant)).pinned_blocks;
  for (const Held& held : held_) blocks += held.blocks;
  return blocks * setup_.charge_bytes + held_.size() * kSequenceBytes;
}

std::string EngineOutsiders::WrongPin() const {
  for (std::vector<TokenId> text : pins_) {
    const uint64_t whole = RoundDown(text.size(), uint64_t{setup_.block_tokens()});
    text.push_back(0);  // so that all of its blocks can be reused
    const auto plan = cache_->Acquire(RequestFor(text));
    if (!plan) return "of a pinned text: " + plan.error().message;
    if (plan->resident_tokens() < whole) {
      return fmt::format("{} of {} pinned tokens are there", plan->resident_tokens(), whole);
    }
  }
  return {};
}

}  // namespace quire::sim
