// The oracle of the caches' simulator: which tenant computed which prefix and was not erased since,
// and the values of every prefix computed anew.
#ifndef QUIRE_SIM_CACHE_ORACLE_H_
#define QUIRE_SIM_CACHE_ORACLE_H_

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/test_util.h"
#include "quire/cache.h"
#include "sim/sim.h"

namespace quire::sim {

/// A tenant that asks, and the account that pays for its blocks.
struct Party {
  const char* name = "";
  uint32_t account = 0;  // index of the account that pays: the party itself, or its domain
  const char* domain = "";
  bool shared = false;
  bool has_quota = false;
  uint64_t ttl_us = 0;
};
inline constexpr std::array<Party, 7> kParties = {{
    {},
    {.name = "alice", .account = 1, .has_quota = true},
    {.name = "bob", .account = 2},
    {.name = "team", .account = 3, .shared = true},
    {.name = "ann", .account = 3, .domain = "team"},
    {.name = "ben", .account = 3, .domain = "team"},
    {.name = "shy", .account = 6, .ttl_us = 300'000},
}};

/// The other member of a domain.
inline uint32_t MateOf(uint32_t party) { return party == 4 ? 5 : 4; }

/// Under which of the accounts and identities a text was computed. Values differ between any two
/// of them, so that bytes which cross over show.
struct Origin {
  uint32_t party = 0;
  uint32_t variant = 0;  // of the identity
  uint32_t account() const { return kParties[party].account; }
};

inline uint64_t MixNumbers(uint64_t hash, uint64_t number) {
  hash = (hash ^ number) * 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 29);
}

/// Blocks that may be found: a member of their account computed them, and was not erased since.
class Computed {
 public:
  explicit Computed(uint32_t block_tokens) : block_tokens_(block_tokens) {}

  uint32_t block_tokens() const { return block_tokens_; }
  /// Blocks [first, tokens.size() / block_tokens) were computed by a party.
  void Add(const Origin& origin, std::span<const TokenId> tokens, uint64_t first) {
    uint64_t key = Root(origin);
    for (uint64_t i = 0; i < tokens.size() / block_tokens_; ++i) {
      const uint64_t parent = key;
      key = Next(key, tokens, i);
      if (i < first) continue;
      Entry& entry = accounts_[origin.account()][key];
      entry.parent = parent;
      entry.writers |= uint32_t{1} << origin.party;
    }
  }
  /// How many of the first `count` blocks may be found.
  uint64_t Allowed(const Origin& origin, std::span<const TokenId> tokens, uint64_t count) const {
    if (anything_goes_.contains(origin.account())) return count;
    uint64_t key = Root(origin);
    const auto account = accounts_.find(origin.account());
    if (account == accounts_.end()) return 0;
    for (uint64_t i = 0; i < count; ++i) {
      key = Next(key, tokens, i);
      if (!account->second.contains(key)) return i;
    }
    return count;
  }
  /// The blocks that a party computed, and their descendants, may not be found any more. `durable`:
  /// for good; else a restart may bring it back.
  void Erase(uint32_t party, bool durable) {
    const uint32_t account = kParties[party].account;
    auto& blocks = accounts_[account];
    auto& all_erased = erased_[account];
    for (auto& [key, entry] : blocks) {
      all_erased[key] = entry;
      entry.writers &= ~(uint32_t{1} << party);
    }
    // A child may come before its parent, so this repeats until nothing more is removed.
    size_t before = 0;
    do {
      before = blocks.size();
      std::erase_if(blocks, [&](const auto& item) {
        const Entry& entry = item.second;
        const bool is_orphan = all_erased.contains(entry.parent) && !blocks.contains(entry.parent);
        return entry.writers == 0 || is_orphan;
      });
    } while (blocks.size() != before);
    undone_[account] = !durable;
  }
  /// The process starts anew: blocks whose erasure is not durable may be back.
  void Restart(uint32_t account) {
    if (undone_[account]) accounts_[account].merge(std::map(erased_[account]));
    undone_[account] = false;
  }
  /// The disk lied about writing an account's epoch: from now on any of its blocks may be back.
  void LoseEpoch(uint32_t account) { anything_goes_.insert(account); }

 private:
  struct Entry {
    uint64_t parent = 0;
    uint32_t writers = 0;  // a bit for each party
  };
  static uint64_t Root(const Origin& origin) {
    return MixNumbers(MixNumbers(1, origin.account()), origin.variant);
  }
  uint64_t Next(uint64_t key, std::span<const TokenId> tokens, uint64_t block) const {
    for (const TokenId token : tokens.subspan(block * block_tokens_, block_tokens_)) {
      key = MixNumbers(key, static_cast<uint64_t>(token));
    }
    return key;
  }

  const uint32_t block_tokens_;
  std::map<uint32_t, std::map<uint64_t, Entry>> accounts_;  // by key of the chain
  std::map<uint32_t, std::map<uint64_t, Entry>> erased_;    // blocks that were there when a member
                                                            // was erased
  std::map<uint32_t, bool> undone_;                         // the last erasure is not durable
  std::set<uint32_t> anything_goes_;                        // accounts
};

/// What a plan for a party's tokens must not say: the counter of the report, and words.
inline std::optional<std::pair<uint64_t SimReport::*, std::string>> WrongWith(
    const Plan& plan, const Origin& origin, std::span<const TokenId> tokens,
    const Computed& computed) {
  const uint32_t block = computed.block_tokens();
  const uint64_t count = (plan.resident_tokens() + plan.loadable_tokens()) / block;
  if (computed.Allowed(origin, tokens, count) < count) {
    return {
        {&SimReport::wrong_bytes,
         fmt::format("\"{}\" is given {} + {} tokens, which were erased",
                     kParties[origin.party].name, plan.resident_tokens(), plan.loadable_tokens())}};
  }
  if (kParties[origin.account()].ttl_us > 0 && plan.loadable_tokens() > 0) {
    return {{&SimReport::wrong_bytes, "what has a ttl is below memory"}};
  }
  uint64_t missing = 0;
  const Origin elsewhere = {.party = origin.party, .variant = 1 - origin.variant};
  for (const MissRun& run : plan.missing()) {
    missing += run.tokens;
    const uint64_t said = (plan.resident_tokens() + missing) / block;
    if (run.reason != MissReason::kOtherProfile) continue;
    // A load that began before an erasure counts as misses blocks computed after it under another
    // key.
    if (std::max(computed.Allowed(elsewhere, tokens, said),
                 computed.Allowed(origin, tokens, said)) < said) {
      return {{&SimReport::wrong_bytes, "a miss tells of what was erased, or of another tenant's"}};
    }
  }
  if (missing == plan.missing_tokens()) return std::nullopt;
  return {{&SimReport::unexplained, "misses without a reason"}};
}

/// The values of sequences that were computed without any cached block.
class ColdAnswers {
 public:
  explicit ColdAnswers(CacheOptions options) : geometry_(options.geometry) {
    options.hot_bytes = uint64_t{4} << 20;
    options.hot_bytes_max = 0;
    options.store = nullptr;
    cache_ = cache::MakeCache(std::move(options));
  }

  const cache::FakeModel& ModelOf(const Origin& origin) {
    const uint64_t weights = 1 + origin.account() * 2 + origin.variant;
    auto& model = models_[weights];
    if (model == nullptr) model = std::make_unique<cache::FakeModel>(geometry_, weights);
    return *model;
  }
  /// The values that the next query of a sequence sees.
  std::vector<float> Seen(const Sequence& sequence, const cache::FakeModel& model) const {
    std::vector<float> all;
    for (uint32_t layer = 0; layer < geometry_.layer_count(); ++layer) {
      const LayerGroup& group = model.GroupOf(layer);
      const uint64_t length = sequence.length();
      const uint64_t seen = group.window_tokens == 0 ? length : group.window_tokens - 1;
      const uint64_t begin = length - std::min(seen, length);
      for (const Stream& stream : group.streams) {
        std::vector<float> rows((length - begin) * stream.heads * stream.dim);
        cache::Must(sequence.Gather(layer, stream.role, begin, length, rows));
        all.insert(all.end(), rows.begin(), rows.end());
      }
    }
    return all;
  }
  const std::vector<float>& Of(const Origin& origin, std::span<const TokenId> tokens) {
    const cache::FakeModel& model = ModelOf(origin);
    auto& answer = answers_[{origin.account() * 2 + origin.variant,
                             std::vector<TokenId>(tokens.begin(), tokens.end())}];
    if (!answer.empty() || tokens.empty()) return answer;
    const Identity identity = cache::SomeIdentity();
    auto sequence = cache::Must(cache_->Open(
        cache::Must(cache_->Acquire({.identity = &identity, .tokens = tokens, .reuse = false})),
        {.publish = false}));
    cache::Must(model.Feed(*sequence, tokens));
    return answer = Seen(*sequence, model);
  }

 private:
  const Geometry geometry_;
  std::unique_ptr<Cache> cache_;
  std::map<uint64_t, std::unique_ptr<cache::FakeModel>> models_;
  std::map<std::pair<uint64_t, std::vector<TokenId>>, std::vector<float>> answers_;
};

}  // namespace quire::sim

#endif  // QUIRE_SIM_CACHE_ORACLE_H_
