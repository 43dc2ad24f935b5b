#include "ranks/sequence/share_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/hash.h"

namespace quire::ranks::sequence {
namespace {

constexpr uint32_t kIdBits = 32;
constexpr uint32_t kStampBitsMin = 128;
constexpr uint32_t kDigestBits = 8 * sizeof(Digest);

}  // namespace

Result<Stamps> Stamps::Create(uint32_t vocab, uint32_t block_tokens, const Digest& secret) {
  const auto token_bits = static_cast<uint32_t>(std::bit_width(vocab - 1));
  const uint32_t stamp_bits = (kIdBits - token_bits) * block_tokens;
  if (stamp_bits >= kStampBitsMin) return Stamps(vocab, token_bits, block_tokens, secret);
  return Fail(
      ErrorCode::kUnsupported,
      fmt::format("ranks: token ids of {} bits leave {} bits of a block of {} tokens, {} are "
                  "needed; take larger blocks (--block-tokens)",
                  token_bits, stamp_bits, block_tokens, kStampBitsMin));
}

Result<void> Stamps::Check(std::span<const TokenId> tokens) const {
  const auto is_outside = [&](TokenId token) {
    return token < 0 || static_cast<uint32_t>(token) >= vocab_;
  };
  const auto outside = std::ranges::find_if(tokens, is_outside);
  if (outside == tokens.end()) return {};
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("ranks: token {} at {} is outside the vocabulary of {}", *outside,
                          outside - tokens.begin(), vocab_));
}

Digest Stamps::First() const { return Next({}, {}); }

Digest Stamps::Next(const Digest& before, std::span<const TokenId> split) const {
  Blake2b<sizeof(Digest)> hasher(secret_);
  hasher.Update("quire share");
  hasher.Update(std::as_bytes(std::span(before)));
  hasher.Update(std::as_bytes(split));
  return hasher.Finish();
}

TokenId Stamps::Stamp(const Digest& before, uint64_t i, TokenId token) const {
  if (i >= block_tokens_) return token;
  const uint32_t bits = kIdBits - token_bits_;
  uint32_t stamp = 0;
  for (uint32_t bit = 0; bit < bits; ++bit) {
    const uint64_t at = i * bits + bit;
    if (at >= kDigestBits) break;
    stamp |= (uint32_t{before[at / 8]} >> (at % 8) & 1U) << bit;
  }
  return static_cast<TokenId>(static_cast<uint32_t>(token) | stamp << token_bits_);
}

ShareText::ShareText(const LaneShare& share, const Stamps& stamps)
    : share_(share), stamps_(stamps), before_{stamps.First()} {}

void ShareText::Append(std::span<const TokenId> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  while (before_.size() * kSplitTokens <= tokens_.size()) {
    const uint64_t begin = (before_.size() - 1) * kSplitTokens;
    before_.push_back(
        stamps_.Next(before_.back(), std::span(tokens_).subspan(begin, kSplitTokens)));
  }
}

void ShareText::Cut(uint64_t tokens) {
  QUIRE_CHECK(tokens <= tokens_.size());
  tokens_.resize(tokens);
  before_.resize(tokens / kSplitTokens + 1);
}

std::vector<TokenId> ShareText::Share(uint64_t begin, uint64_t end) const {
  std::vector<TokenId> ids;
  ids.reserve(end - begin);
  for (uint64_t i = begin; i < end; ++i) {
    const uint64_t position = share_.PositionOf(i);
    QUIRE_DCHECK(position < tokens_.size());
    ids.push_back(stamps_.Stamp(before_[position / kSplitTokens], position % kSplitTokens,
                                tokens_[position]));
  }
  return ids;
}

}  // namespace quire::ranks::sequence
