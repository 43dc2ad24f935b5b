#include "apps/quire/replayer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/prng.h"
#include "bench/pairs.h"
#include "bench/trace_tokens.h"
#include "evict/baselines/baselines.h"
#include "evict/classic_policies.h"
#include "evict/policies.h"
#include "evict/reuse_estimator.h"
#include "index/radix_tree.h"
#include "quota/ledger.h"

namespace quire::app {

void BeladyPolicy::Start(uint64_t blocks) {
  first_ = next_;
  next_ += blocks;
  QUIRE_CHECK(next_ <= next_uses_.size());
}

void BeladyPolicy::Add(BlockId block, const evict::BlockFacts& facts) {
  order_.Add(block, facts.parent, {.queue = 0, .weight = RankOf(facts.depth), .stamp = ++added_});
}

bool BeladyPolicy::Admits(uint32_t depth) const {
  const auto victim = order_.First();
  return victim && order_.rank(*victim).weight < RankOf(depth);
}

namespace {

using bench::kTraceBlockTokens;

constexpr uint64_t kBlockBytes = kTraceBlockTokens * sizeof(TokenId);
constexpr uint64_t kFnvBasis = 0xcbf29ce484222325;  // FNV-1a, a block id at a time
constexpr uint64_t kFnvPrime = 0x100000001b3;
constexpr std::string_view kBelady = "belady";
constexpr size_t kRequestsPerTurn = 64;

// How long after each request another one goes on from it; 0: none within `ms_most`. What fills no
// block at a prompt's end has an id of its own, which nothing goes on from.
std::vector<uint64_t> GapsOf(const ReplayInput& input, uint64_t ms_most) {
  const std::vector<uint64_t> next_uses = input.NextUses();
  std::vector<uint64_t> gaps;
  for (const ReplayInput::Request& request : input.requests()) {
    uint64_t gap_ms = 0;
    const uint64_t end = request.first_block + request.blocks;
    const uint64_t first = std::max(request.first_block, end - std::min<uint64_t>(end, 2));
    const uint64_t next = request.blocks == 0
                              ? UINT64_MAX
                              : *std::min_element(next_uses.begin() + static_cast<int64_t>(first),
                                                  next_uses.begin() + static_cast<int64_t>(end));
    if (next != UINT64_MAX) gap_ms = input.requests()[next].time_ms - request.time_ms + 1;
    gaps.push_back(gap_ms <= ms_most ? gap_ms : 0);
  }
  return gaps;
}

// Paths that are kept, each until its time.
class Retained {
 public:
  explicit Retained(uint64_t blocks_max) : blocks_max_(blocks_max) {}

  bool Has(BlockId block) const {
    return block.number() < pins_.size() && pins_[block.number()] > 0;
  }
  // Calls drop(block, key, parent, depth) for each block that nothing keeps any more, the deepest
  // first.
  template <typename Drop>
  void EndBy(uint64_t time_ms, const Drop& drop) {
    while (!paths_.empty() && paths_.begin()->first <= time_ms) {
      const Path path = std::move(paths_.begin()->second);
      paths_.erase(paths_.begin());
      for (size_t i = path.blocks.size(); i-- > 0;) {
        if (--pins_[path.blocks[i].number()] > 0) continue;
        --blocks_;
        drop(path.blocks[i], path.keys[i], i == 0 ? BlockId::None() : path.blocks[i - 1], i);
      }
    }
  }
  // The front of the path, as far as there is room. False: not all of it.
  bool Keep(std::span<const BlockId> path, std::span<const uint64_t> keys, uint64_t until_ms) {
    size_t count = 0;
    for (; count < path.size(); ++count) {
      const size_t number = path[count].number();
      if (number >= pins_.size()) pins_.resize(number + 1);
      if (pins_[number] == 0 && blocks_ == blocks_max_) break;
      blocks_ += pins_[number]++ == 0 ? 1 : 0;
    }
    if (count > 0) {
      paths_.emplace(until_ms, Path{.blocks = {path.begin(), path.begin() + count},
                                    .keys = {keys.begin(), keys.begin() + count}});
    }
    return count == path.size();
  }

 private:
  struct Path {
    std::vector<BlockId> blocks;
    std::vector<uint64_t> keys;
  };

  const uint64_t blocks_max_;
  uint64_t blocks_ = 0;
  std::vector<uint32_t> pins_;  // by block id
  std::multimap<uint64_t, Path> paths_;
};

class Replayer {
 public:
  Replayer(uint64_t capacity_blocks, std::unique_ptr<evict::Policy> policy, BeladyPolicy* bound,
           ReplayRemote* remote, const ReplayOptions& options)
      : remote_(remote),
        remote_writes_(options.remote_writes),
        ledger_(capacity_blocks * kBlockBytes),
        policy_(std::move(policy)),
        bound_(bound),
        log_(options.log),
        retained_(static_cast<uint64_t>(options.hint_share * static_cast<double>(capacity_blocks))),
        has_ladder_(options.ladder.has_value()),
        sealed_bytes_(
            static_cast<uint64_t>(options.ladder.value_or(ReplayLadder{}).memory * kBlockBytes)),
        twin_bytes_(has_ladder_ ? kBlockBytes : 0) {
    if (options.store_blocks == 0) return;
    const auto in_store = [&](uint64_t blocks) {
      const double share = options.ladder.value_or(ReplayLadder{}).store;
      return static_cast<uint64_t>(static_cast<double>(blocks) / share);
    };
    store_.emplace(in_store(options.store_blocks), in_store(options.segment_blocks));
    // As a cache writes back: where memory holds about as much, each would push out the other's
    // blocks.
    writes_again_ = capacity_blocks <= options.store_blocks / 2;
  }

  // Blocks hit, in memory and below.
  struct Hits {
    uint32_t memory = 0;
    uint32_t store = 0;
    uint32_t remote = 0;
    uint32_t approximate = 0;  // of all these
  };

  // Shape: prompt [request.blocks * kTraceBlockTokens], keys
  // [request.blocks]; hint_ms: how long it is to be kept, 0: no longer than others
  Hits Run(const ReplayInput::Request& request, std::span<const TokenId> prompt,
           std::span<const uint64_t> keys, uint64_t hint_ms) {
    path_.clear();
    const uint32_t found = tree_.Find(root_, prompt, path_);
    uint32_t approximate = 0;
    for (const BlockId block : path_) {
      approximate += has_ladder_ && !has_twin_[block.number()] ? 1 : 0;
      if (!retained_.Has(block)) Unlist(block);
    }
    uint32_t loaded = 0;
    while (store_ && found + loaded < keys.size() && store_->Has(keys[found + loaded])) ++loaded;
    const uint32_t here = found + loaded;
    uint32_t fetched = 0;
    while (remote_ != nullptr && here + fetched < keys.size() &&
           remote_->Has(keys[here + fetched])) {
      ++fetched;
    }
    policy_->Advance(request.time_ms);
    retained_.EndBy(request.time_ms, [&](BlockId block, uint64_t key, BlockId parent,
                                         size_t depth) {
      // What this request holds comes back when it ends.
      if (depth < path_.size() && path_[depth] == block) return;
      policy_->Add(block, {.key = key, .parent = parent, .depth = static_cast<uint32_t>(depth)});
    });
    if (bound_ != nullptr) bound_->Start(keys.size());
    if (has_ladder_) approximate += loaded + fetched;
    const bool is_exact = approximate == 0;
    while (path_.size() < request.blocks && Charge(is_exact)) {
      path_.push_back(NewId(keys[path_.size()], is_exact));
    }
    if (path_.size() > found) {
      tree_.Insert(root_, found == 0 ? BlockId::None() : path_[found - 1],
                   prompt.first(path_.size() * kTraceBlockTokens)
                       .subspan(uint64_t{found} * kTraceBlockTokens),
                   std::span(path_).subspan(found));
    }
    policy_->Begin({.time_ms = request.time_ms,
                    .keys = keys,
                    .prompt_tokens = request.prompt_tokens,
                    .output_tokens = request.output_tokens,
                    .asked_blocks = request.blocks,
                    .hit_blocks = found});
    if (hint_ms > 0) {
      ++hints_;
      const bool all = retained_.Keep(path_, keys, request.time_ms + hint_ms);
      hints_clipped_ += all ? 0 : 1;
    }
    // As a lease ends: deepest first.
    for (size_t i = path_.size(); i-- > 0;) {
      if (retained_.Has(path_[i])) continue;
      policy_->Add(path_[i], {.key = keys[i],
                              .parent = i == 0 ? BlockId::None() : path_[i - 1],
                              .depth = static_cast<uint32_t>(i)});
      ListTwin(path_[i]);
    }
    policy_->End();
    if (store_) TellStore(keys, found, loaded);
    if (remote_ != nullptr) TellRemote(keys, here, fetched);
    if (log_ != nullptr) log_->hits.push_back(found);
    return {.memory = found, .store = loaded, .remote = fetched, .approximate = approximate};
  }

  const std::optional<ReplayStore>& store() const { return store_; }
  uint64_t evicted() const { return evicted_; }
  uint64_t evicted_twins() const { return evicted_twins_; }
  uint64_t hints() const { return hints_; }
  uint64_t hints_clipped() const { return hints_clipped_; }
  uint64_t digest() const { return digest_; }

 private:
  // What was found in memory is in use below, too; what was found below is read; the rest is
  // written, also what memory has no room for.
  void TellStore(std::span<const uint64_t> keys, uint32_t found, uint32_t loaded) {
    for (uint32_t i = 0; i < keys.size(); ++i) {
      const bool lost = i < found + loaded && !store_->Use(keys[i], i);
      if (i >= found + loaded || (lost && writes_again_)) store_->Put(keys[i], i);
    }
  }

  void TellRemote(std::span<const uint64_t> keys, uint32_t here, uint32_t fetched) {
    const bool all = remote_writes_ == ReplayRemoteWrites::kAll;
    for (const uint64_t key : all ? keys.subspan(here + fetched) : keys.first(here)) {
      remote_->Put(key);
    }
    if (remote_writes_ != ReplayRemoteWrites::kRecycled || !store_) return;
    for (const uint64_t key : store_->TakeRecycled()) remote_->Put(key);
  }

  // Pays for one more block of the path, if need be with what is not held.
  bool Charge(bool with_twin) {
    while (!ledger_.TryCharge(sealed_bytes_ + (with_twin ? twin_bytes_ : 0))) {
      const auto victim = policy_->Victim();
      if (!victim) return false;
      if (bound_ != nullptr && !bound_->Admits(static_cast<uint32_t>(path_.size()))) return false;
      if (EvictTwin()) continue;
      ++evicted_;
      digest_ = (digest_ ^ victim->number()) * kFnvPrime;
      if (log_ != nullptr) log_->victims.push_back(key_of_[victim->number()]);
      ledger_.Refund(BytesOf(*victim));
      UnlistTwin(*victim);
      policy_->Evict(*victim);
      tree_.Remove(*victim);
      unused_.push_back(*victim);
    }
    return true;
  }

  // The oldest one. False: a whole block goes.
  bool EvictTwin() {
    if (!evict::TwinsGoFirst(twins_.size() * twin_bytes_, listed_bytes_)) return false;
    const BlockId block = *twins_.Victim();
    UnlistTwin(block);
    has_twin_[block.number()] = false;
    listed_bytes_ += sealed_bytes_;
    ledger_.Refund(twin_bytes_);
    ++evicted_twins_;
    return true;
  }

  uint64_t BytesOf(BlockId block) const {
    return sealed_bytes_ + (has_ladder_ && has_twin_[block.number()] ? twin_bytes_ : 0);
  }
  void ListTwin(BlockId block) {
    if (!has_ladder_) return;
    listed_bytes_ += BytesOf(block);
    if (has_twin_[block.number()]) twins_.Add(block);
  }
  void UnlistTwin(BlockId block) {
    if (!has_ladder_) return;
    listed_bytes_ -= BytesOf(block);
    if (has_twin_[block.number()]) twins_.Remove(block);
  }
  void Unlist(BlockId block) {
    policy_->Remove(block);
    UnlistTwin(block);
  }

  BlockId NewId(uint64_t key, bool has_twin) {
    BlockId block(next_);
    if (unused_.empty()) {
      ++next_;
    } else {
      block = unused_.back();
      unused_.pop_back();
    }
    if (has_ladder_) {
      has_twin_.resize(std::max<size_t>(has_twin_.size(), block.number() + size_t{1}));
      has_twin_[block.number()] = has_twin;
    }
    if (log_ != nullptr) {
      key_of_.resize(std::max<size_t>(key_of_.size(), block.number() + size_t{1}));
      key_of_[block.number()] = key;
    }
    return block;
  }

  ReplayRemote* const remote_;  // or null
  const std::optional<ReplayRemoteWrites> remote_writes_;
  index::RadixTree tree_{kTraceBlockTokens};
  const index::RootId root_ = tree_.Root({});
  quota::Ledger ledger_;
  const std::unique_ptr<evict::Policy> policy_;
  BeladyPolicy* const bound_;  // policy_, if it may refuse a block
  ReplayLog* const log_;       // or null
  std::optional<ReplayStore> store_;
  bool writes_again_ = false;     // what is used in memory and was lost below
  std::vector<uint64_t> key_of_;  // by block id, for the log
  std::vector<BlockId> path_;     // of the request at hand
  std::vector<BlockId> unused_;
  uint32_t next_ = 0;
  Retained retained_;
  uint64_t hints_ = 0;
  uint64_t hints_clipped_ = 0;
  uint64_t evicted_ = 0;
  uint64_t digest_ = kFnvBasis;
  // With a precision ladder.
  const bool has_ladder_;
  const uint64_t sealed_bytes_;  // of a block; without a ladder all of its bytes
  const uint64_t twin_bytes_;    // of its first form
  std::vector<bool> has_twin_;   // by block id
  evict::LruPolicy twins_;       // of blocks that are not held
  uint64_t listed_bytes_ = 0;    // of all of these blocks
  uint64_t evicted_twins_ = 0;
};

}  // namespace

ReplayInput::ReplayInput(const Trace& trace)
    : ReplayInput(trace, [](uint64_t id) { return Prng(id).Next64(); }) {}

ReplayInput::ReplayInput(const Trace& trace, const std::function<uint64_t(uint64_t)>& key_of) {
  std::unordered_map<uint64_t, uint32_t> numbers;
  uint64_t time_ms = 0;
  for (const TraceRequest& request : trace) {
    time_ms = std::max(time_ms, request.timestamp_ms);  // recorders may disagree by a little
    requests_.push_back({.first_block = blocks_.size(),
                         .blocks = static_cast<uint32_t>(request.block_ids.size()),
                         .time_ms = time_ms,
                         .prompt_tokens = request.input_tokens,
                         .output_tokens = request.output_tokens});
    for (const uint64_t id : request.block_ids) {
      const auto [number, is_new] = numbers.try_emplace(id, numbers.size());
      blocks_.push_back(number->second);
      if (!is_new) continue;
      bench::AppendTraceBlock(id, tokens_);
      keys_.push_back(key_of(id));
    }
  }
}

std::vector<uint64_t> ReplayInput::NextUses() const {
  std::vector<uint64_t> next_uses(blocks_.size());
  std::vector<uint64_t> next_of(unique_blocks(), UINT64_MAX);
  for (uint64_t r = requests_.size(); r-- > 0;) {
    const uint64_t first = requests_[r].first_block;
    for (uint64_t i = first + requests_[r].blocks; i-- > first;) {
      next_uses[i] = std::exchange(next_of[blocks_[i]], r);
    }
  }
  return next_uses;
}

void ReplayInput::AppendPrompt(const Request& request, std::vector<TokenId>& tokens,
                               std::vector<uint64_t>& keys) const {
  for (uint64_t i = 0; i < request.blocks; ++i) {
    const uint64_t block = blocks_[request.first_block + i];
    const auto begin = tokens_.begin() + static_cast<int64_t>(block * kTraceBlockTokens);
    tokens.insert(tokens.end(), begin, begin + kTraceBlockTokens);
    keys.push_back(keys_[block]);
  }
}

double ReplayResult::hit_ratio() const {
  return blocks == 0 ? 0 : static_cast<double>(hit_blocks) / static_cast<double>(blocks);
}

double ReplayResult::blocks_per_second() const {
  return seconds == 0 ? 0 : static_cast<double>(blocks) / seconds;
}

ReplayResult Replay(const ReplayInput& input, uint64_t capacity_blocks, const std::string& policy,
                    const ReplayOptions& options) {
  QUIRE_CHECK_MSG(options.machines == 1 || policy != kBelady, "the bound knows one machine");
  const std::vector<uint64_t> next_uses =
      policy == kBelady ? input.NextUses() : std::vector<uint64_t>();
  capacity_blocks = std::min(capacity_blocks, input.unique_blocks());
  ReplayRemote remote;
  std::vector<std::unique_ptr<Replayer>> machines;
  for (uint32_t i = 0; i < options.machines; ++i) {
    std::unique_ptr<evict::Policy> object;
    BeladyPolicy* bound = nullptr;
    if (policy == kBelady) {
      auto belady = std::make_unique<BeladyPolicy>(next_uses);
      bound = belady.get();
      object = std::move(belady);
    } else {
      object = evict::MakePolicy(policy);
      if (object == nullptr) object = evict::MakeBaseline(policy);
    }
    QUIRE_CHECK_MSG(object != nullptr, "no such policy");
    object->SetHistory(
        options.history_bytes.value_or(capacity_blocks * evict::HistoryBytesPerSlot(UINT64_MAX)));
    machines.push_back(std::make_unique<Replayer>(capacity_blocks, std::move(object), bound,
                                                  options.remote_writes ? &remote : nullptr,
                                                  options));
  }
  ReplayResult result;
  std::vector<TokenId> tokens;
  std::vector<uint64_t> keys;
  const std::vector<ReplayInput::Request>& requests = input.requests();
  const std::vector<uint64_t> gaps = options.hint_share > 0
                                         ? GapsOf(input, options.hint_ms_most)
                                         : std::vector<uint64_t>(requests.size());
  for (size_t begin = 0; begin < requests.size(); begin += kRequestsPerTurn) {
    // A service has a prompt's tokens at hand: to make them is not timed.
    const std::span turn =
        std::span(requests).subspan(begin, std::min(kRequestsPerTurn, requests.size() - begin));
    tokens.clear();
    keys.clear();
    for (const ReplayInput::Request& request : turn) input.AppendPrompt(request, tokens, keys);
    const double begin_s = bench::ThreadSeconds();
    uint64_t first = 0;
    for (size_t i = 0; i < turn.size(); ++i) {
      const ReplayInput::Request& request = turn[i];
      const auto hits = machines[(begin + i) % machines.size()]->Run(
          request,
          std::span(tokens).subspan(first * kTraceBlockTokens,
                                    uint64_t{request.blocks} * kTraceBlockTokens),
          std::span(keys).subspan(first, request.blocks), gaps[begin + i]);
      result.hit_blocks += hits.memory + hits.store + hits.remote;
      result.approximate_hit_blocks += hits.approximate;
      result.store_hit_blocks += hits.store;
      result.remote_hit_blocks += hits.remote;
      first += request.blocks;
    }
    result.seconds += bench::ThreadSeconds() - begin_s;
    result.blocks += first;
    result.requests += turn.size();
    options.progress(result.requests);
  }
  for (const auto& machine : machines) {
    result.evicted_blocks += machine->evicted();
    result.evicted_twins += machine->evicted_twins();
    result.digest = result.digest * kFnvPrime ^ machine->digest();
    result.hints += machine->hints();
    result.hints_clipped += machine->hints_clipped();
    if (!machine->store()) continue;
    result.store_written_blocks += machine->store()->written();
    result.store_recycled_blocks += machine->store()->recycled();
  }
  result.remote_written_blocks = remote.written();
  return result;
}

std::vector<CurvePoint> EstimateCurve(const ReplayInput& input,
                                      const std::vector<uint64_t>& capacities) {
  evict::ReuseEstimator reuse;
  std::vector<TokenId> tokens;
  std::vector<uint64_t> keys;
  for (const ReplayInput::Request& request : input.requests()) {
    tokens.clear();
    keys.clear();
    input.AppendPrompt(request, tokens, keys);
    reuse.Use(keys);
  }
  std::vector<CurvePoint> curve;
  curve.reserve(capacities.size());
  for (const uint64_t capacity : capacities) {
    curve.push_back({.capacity_blocks = capacity, .hit_ratio = reuse.HitRatio(capacity)});
  }
  return curve;
}

std::vector<std::string> ReplayPolicies() {
  std::vector<std::string> names;
  for (const std::string_view name : evict::PolicyNames()) names.emplace_back(name);
  for (const std::string_view name : evict::BaselineNames()) names.emplace_back(name);
  names.emplace_back(kBelady);
  return names;
}

namespace {

// Of the drawing and, inside it, of the axes, in pixels.
constexpr double kWidth = 720;
constexpr double kHeight = 420;
constexpr double kLeft = 60;
constexpr double kRight = 690;
constexpr double kTop = 20;
constexpr double kBottom = 370;

}  // namespace

std::string CurveSvg(const std::vector<CurvePoint>& curve) {
  const double first = curve.empty() ? 0 : std::log2(curve.front().capacity_blocks);
  const double last = curve.empty() ? 1 : std::log2(curve.back().capacity_blocks);
  const double doublings = std::max(1e-9, last - first);
  const auto x = [&](double log2) { return kLeft + (log2 - first) / doublings * (kRight - kLeft); };
  const auto y = [](double ratio) { return kBottom - ratio * (kBottom - kTop); };

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"{}\" height=\"{}\" fill=\"white\"/>\n",
      kWidth, kHeight, kWidth, kHeight);
  const auto out = std::back_inserter(svg);
  for (int tenths = 0; tenths <= 10; tenths += 2) {
    const double at = y(tenths / 10.0);
    fmt::format_to(out,
                   "<path d=\"M{} {:.1f}H{}\" stroke=\"#ddd\"/>\n<text x=\"{}\" y=\"{:.1f}\" "
                   "text-anchor=\"end\">{:.1f}</text>\n",
                   kLeft, at, kRight, kLeft - 8, at + 4, tenths / 10.0);
  }
  for (double log2 = std::ceil(first); log2 <= last; log2 += 2) {
    fmt::format_to(out,
                   "<path d=\"M{:.1f} {}V{}\" stroke=\"#ddd\"/>\n<text x=\"{:.1f}\" y=\"{}\" "
                   "text-anchor=\"middle\">{:.0f}</text>\n",
                   x(log2), kTop, kBottom, x(log2), kBottom + 18, std::exp2(log2));
  }
  fmt::format_to(
      out,
      "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">capacity in blocks</text>\n"
      "<text x=\"16\" y=\"{}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {})\">hit "
      "ratio, least recently used first</text>\n",
      (kLeft + kRight) / 2, kHeight - 10, (kTop + kBottom) / 2, (kTop + kBottom) / 2);
  svg += "<polyline fill=\"none\" stroke=\"#1f5fa8\" stroke-width=\"2\" points=\"";
  for (const CurvePoint& point : curve) {
    fmt::format_to(out, "{:.1f},{:.1f} ", x(std::log2(point.capacity_blocks)), y(point.hit_ratio));
  }
  svg += "\"/>\n</svg>\n";
  return svg;
}

}  // namespace quire::app
