// The cache in lock step with a naive one, under random calls: tiny budgets, so that it evicts and
// refuses all the time, and prompts that share beginnings and branch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <set>

#include "cache/sequence/view_test_util.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

/// Slots of three pages: what five sequences take besides their slots is less than one more, so the
/// naive cache can count slots alone.
Geometry WideGeometry() { return Geometry::Uniform(/*layers=*/2, /*kv_heads=*/2, /*head_dim=*/40); }

using Path = std::vector<TokenId>;

// The cache said naively: slots are shared pointers, the index is a map from whole prefixes, a
// block is leased if anything else has its slot or the slot of a block after it.
class NaiveCache {
 public:
  struct Slot {
    explicit Slot(uint64_t& live_count) : live(live_count) { ++live; }
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;
    ~Slot() { --live; }
    uint64_t& live;
    bool damaged = false;
  };
  using SlotRef = std::shared_ptr<Slot>;
  struct Published {
    SlotRef slot;
    bool quarantined = false;
  };
  struct Sequence {
    Path written;  // committed, then not yet
    uint64_t length = 0;
    bool publish = true;
    std::vector<SlotRef> slots{};
    uint64_t published = 0;
  };

  explicit NaiveCache(uint64_t slots_max) : slots_max_(slots_max) {}

  /// Blocks that a prompt finds; leases none of them yet.
  std::vector<SlotRef> Find(const Path& prompt, MissReason& reason) const {
    std::vector<SlotRef> found;
    reason = MissReason::kPartialBlock;
    for (uint64_t end = kBlock; end < prompt.size(); end += kBlock) {
      const auto block = index_.find(Path(prompt.begin(), prompt.begin() + end));
      if (block == index_.end() || block->second.quarantined) {
        reason = block == index_.end() ? MissReason::kNeverSeen : MissReason::kDamaged;
        break;
      }
      found.push_back(block->second.slot);
    }
    return found;
  }

  /// Whether the block after the first `blocks` blocks of a prompt was ever in the index.
  bool Ever(const Path& prompt, uint64_t blocks) const {
    return ever_.contains(Path(prompt.begin(), prompt.begin() + (blocks + 1) * kBlock));
  }

  bool Grow(Sequence& sequence, uint64_t tokens) {
    const uint64_t blocks = (tokens + kBlock - 1) / kBlock;
    if (blocks <= sequence.slots.size()) return true;
    const uint64_t added = blocks - sequence.slots.size();
    if (!FreeCapacity(added)) return false;
    for (uint64_t i = 0; i < added; ++i) sequence.slots.push_back(NewSlot());
    return true;
  }

  void Commit(Sequence& sequence, uint64_t tokens) {
    sequence.length += tokens;
    while (sequence.publish && (sequence.published + 1) * kBlock <= sequence.length) {
      SlotRef& own = sequence.slots[sequence.published];
      const auto path = [&](uint64_t blocks) {
        return Path(sequence.written.begin(), sequence.written.begin() + blocks * kBlock);
      };
      if (own->damaged) return;
      if (sequence.published > 0 && index_.at(path(sequence.published)).quarantined) return;
      const auto present = index_.find(path(sequence.published + 1));
      if (present == index_.end()) {
        index_[path(sequence.published + 1)] = {.slot = own};
        ever_.insert(path(sequence.published + 1));
      } else {
        if (present->second.quarantined) return;
        own = present->second.slot;
        ++deduplicated;
      }
      ++sequence.published;
      Settle();
    }
  }

  bool Rollback(Sequence& sequence, uint64_t position) {
    if (position == sequence.written.size()) return true;
    const uint64_t whole = position / kBlock;
    const uint64_t kept = (position + kBlock - 1) / kBlock;
    const auto is_mine = [&](uint64_t i) {
      return i >= sequence.published && sequence.slots[i].use_count() == 1;
    };
    if (kept > whole && !is_mine(whole)) {
      if (!FreeCapacity(1)) return false;
      SlotRef copy = NewSlot();
      copy->damaged = sequence.slots[whole]->damaged;
      sequence.slots[whole] = std::move(copy);
    }
    std::vector<SlotRef> slots(sequence.slots.begin(), sequence.slots.begin() + kept);
    for (uint64_t i = kept; i < sequence.slots.size(); ++i) {
      if (!is_mine(i)) continue;
      slots.push_back(sequence.slots[i]);
      slots.back()->damaged = false;  // written anew
    }
    sequence.slots = std::move(slots);
    sequence.written.resize(position);
    sequence.length = std::min(sequence.length, position);
    sequence.published = std::min(sequence.published, whole);
    Settle();
    return true;
  }

  bool Fork(const Sequence& parent, Sequence& child) {
    child = parent;
    child.written.resize(parent.length);
    child.slots.resize(parent.length / kBlock);
    if (parent.length % kBlock == 0) return true;
    if (!FreeCapacity(1)) return false;
    child.slots.push_back(NewSlot());
    child.slots.back()->damaged = parent.slots[parent.length / kBlock]->damaged;
    return true;
  }

  void Resize(uint64_t slots) {
    slots_max_ = slots;
    while (live > slots_max_) EvictOne();
  }

  /// Slots that neither leave nor move: all but those of published blocks that nothing else has,
  /// although a descendant may lease them.
  uint64_t pinned() const {
    return live - static_cast<uint64_t>(std::ranges::count_if(
                      index_, [](const auto& item) { return item.second.slot.use_count() == 1; }));
  }

  uint64_t Evict(uint64_t blocks) {
    const uint64_t count = std::min<uint64_t>(blocks, evictable.size());
    for (uint64_t i = 0; i < count; ++i) EvictOne();
    return count;
  }

  /// The block at the end of `path` is damaged and a re-check has found it.
  void Damage(const Path& path) {
    index_.at(path).slot->damaged = true;
    for (auto& [candidate, block] : index_) {
      if (candidate.size() >= path.size() &&
          std::ranges::equal(std::span(candidate).first(path.size()), path)) {
        block.quarantined = true;
      }
    }
    Settle();
  }

  /// Updates the list of evictable blocks after holders came or went: blocks that lost their last
  /// lease join at the end, deepest first. One call releases one path.
  void Settle() {
    std::vector<Path> newly;
    for (const auto& [path, block] : index_) {
      if (!IsLeased(path) && std::ranges::find(evictable, path) == evictable.end()) {
        newly.push_back(path);
      }
    }
    std::ranges::sort(newly, std::greater(), [](const Path& path) { return path.size(); });
    evictable.remove_if([this](const Path& path) { return IsLeased(path); });
    for (Path& path : newly) evictable.push_back(std::move(path));
    // A quarantined block stays only while it is leased.
    evictable.remove_if(
        [this](const Path& path) { return index_.at(path).quarantined && index_.erase(path) > 0; });
  }

  uint64_t free_slots() const { return slots_max_ - live; }
  uint64_t slots_max() const { return slots_max_; }
  uint64_t published() const { return index_.size(); }
  uint64_t leased() const { return index_.size() - evictable.size(); }
  uint64_t damaged() const {
    return std::ranges::count_if(index_,
                                 [](const auto& item) { return item.second.slot->damaged; });
  }
  bool quarantined(const Path& path) const { return index_.at(path).quarantined; }

  uint64_t live = 0;  // slots in use
  std::list<Path> evictable{};
  uint64_t evicted = 0;
  uint64_t deduplicated = 0;
  uint64_t refused = 0;

 private:
  SlotRef NewSlot() { return std::make_shared<Slot>(live); }

  bool IsLeased(const Path& path) const {
    // Prefixes sort before the paths that continue them, without other paths between.
    for (auto it = index_.lower_bound(path); it != index_.end(); ++it) {
      if (it->first.size() < path.size() ||
          !std::equal(path.begin(), path.end(), it->first.begin())) {
        break;
      }
      if (it->second.slot.use_count() > 1) return true;
    }
    return false;
  }

  bool FreeCapacity(uint64_t slots) {
    if (slots > free_slots() + evictable.size()) {
      ++refused;
      return false;
    }
    while (free_slots() < slots) EvictOne();
    return true;
  }

  void EvictOne() {
    index_.erase(evictable.front());
    evictable.pop_front();
    ++evicted;
  }

  uint64_t slots_max_;
  std::map<Path, Published> index_;
  std::set<Path> ever_;  // all that were in it at some time
};

// One run: the real cache, the naive one, and the random calls.
class CacheLockStep {
 public:
  explicit CacheLockStep(uint64_t seed)
      : prng_(seed),
        real_(3 + seed % 12, WideGeometry(), NumericProfile::Uniform(Codec::kF16), kSlotsMost),
        naive_(3 + seed % 12) {
    // Each run has its own mixture.
    for (size_t i = 0; i < std::size(kCalls); ++i) {
      weights_[i] = kCalls[i].weight * prng_.NextBelow(8);
    }
    weights_[0] += 1;
  }

  void Step() {
    uint64_t total = 0;
    for (const uint64_t weight : weights_) total += weight;
    uint64_t pick = prng_.NextBelow(total);
    size_t call = 0;
    while (pick >= weights_[call]) pick -= weights_[call++];
    (this->*kCalls[call].call)();
    Check();
  }

  void Finish() {
    // In random order: the last holder frees a path.
    while (!open_.empty()) Close();
    while (!views_.empty()) ReleaseView();
    Check();
    EXPECT_EQ(real_.slots_used(), naive_.published()) << "only published blocks are left";
    EXPECT_EQ(real_.cache->Verify().damaged, 0u);
    EXPECT_EQ(real_.cache->Evict(1000), naive_.Evict(1000));
    EXPECT_EQ(real_.slots_used(), 0u);
    EXPECT_EQ(real_.cache->stats().hot_bytes_used, 0u);
  }

  const NaiveCache& naive() const { return naive_; }
  uint64_t resized() const { return resized_; }
  uint64_t busy() const { return busy_; }

 private:
  static constexpr uint64_t kSlotsMost = 18;

  struct Open {
    std::unique_ptr<Sequence> real;
    NaiveCache::Sequence naive;
  };
  struct Held {
    std::unique_ptr<BlockListView> real;
    std::vector<std::byte> bytes;  // what the slots held, as far as tokens were written
    std::vector<NaiveCache::SlotRef> naive;
  };

  // A small trie of scripts: two ways to begin, four from the second block on, then eight.
  static TokenId ScriptToken(uint64_t script, uint64_t position) {
    const uint64_t block = position / kBlock;
    const uint64_t branch = script >> (block < 2 ? 2 - block : 0);
    return static_cast<TokenId>(1000 * block + 20 * branch + position % kBlock);
  }

  Open* Any() { return open_.empty() ? nullptr : &open_[prng_.NextBelow(open_.size())]; }

  void OpenOne() {
    if (open_.size() >= 5) return;
    const uint64_t script = prng_.NextBelow(8);
    Path prompt(1 + prng_.NextBelow(5 * kBlock));
    for (uint64_t t = 0; t < prompt.size(); ++t) prompt[t] = ScriptToken(script, t);
    const bool reuse = !prng_.NextChance(8);
    const SequenceOptions options{
        .reserve_tokens = prng_.NextBelow(2) * prng_.NextBelow(6 * kBlock),
        .on_full = kOnFull[prng_.NextBelow(std::size(kOnFull))],
        .publish = !prng_.NextChance(6)};
    NaiveCache::Sequence naive{.written = {}, .publish = options.publish};
    MissReason reason = MissReason::kNotAsked;
    if (reuse) naive.slots = naive_.Find(prompt, reason);
    naive.published = naive.slots.size();
    naive.length = naive.published * kBlock;
    naive.written.assign(prompt.begin(), prompt.begin() + naive.length);
    naive_.Settle();
    Plan plan = real_.Acquire(prompt, reuse);
    EXPECT_EQ(plan.resident_tokens(), naive.length);
    EXPECT_EQ(plan.missing_tokens(), prompt.size() - naive.length);
    if (reason == MissReason::kNeverSeen && naive_.Ever(prompt, naive.published)) {
      // How many are remembered is bounded.
      EXPECT_THAT(plan.reason(),
                  ::testing::AnyOf(MissReason::kEvicted, MissReason::kDamaged, reason));
    } else {
      EXPECT_EQ(plan.reason(), reason);
    }
    Check();

    const uint64_t reserve = options.on_full == OnFull::kHalt
                                 ? prompt.size()
                                 : std::max<uint64_t>(prompt.size(), options.reserve_tokens);
    const bool fits = naive_.Grow(naive, reserve);
    auto opened = real_.cache->Open(std::move(plan), options);
    ASSERT_EQ(opened.has_value(), fits) << (opened ? std::string() : opened.error().message);
    if (!fits) {
      const bool never = (reserve + kBlock - 1) / kBlock > naive_.slots_max();
      EXPECT_EQ(opened.error().code, never ? ErrorCode::kTooLarge : ErrorCode::kNoSpace);
      EXPECT_EQ(opened.error().message.find("can never fit") != std::string::npos, never);
      naive.slots.clear();
      naive_.Settle();
      return;
    }
    open_.push_back({.real = *std::move(opened), .naive = std::move(naive)});
    if (prng_.NextChance(3)) return;
    // Its prompt is within the reservation.
    Open& one = open_.back();
    Must(real_.model.Feed(*one.real, prompt));
    one.naive.written = prompt;
    naive_.Commit(one.naive, prompt.size() - one.naive.length);
  }

  void Append() {
    Open* const one = Any();
    if (one == nullptr || one->naive.written.size() > 6 * kBlock) return;
    Path written = one->naive.written;
    const uint64_t script = prng_.NextBelow(8);
    for (uint64_t n = 1 + prng_.NextBelow(2 * kBlock); n > 0; --n) {
      written.push_back(ScriptToken(script, written.size()));
    }
    const std::string before = real_.Snapshot();
    const bool fits = naive_.Grow(one->naive, written.size());
    for (uint32_t layer = 0; layer < 2; ++layer) {
      const auto appended = real_.model.AppendLayer(*one->real, layer, written);
      ASSERT_EQ(appended.has_value(), fits);
      if (fits) continue;
      EXPECT_EQ(appended.error().code, ErrorCode::kNoSpace);
      EXPECT_EQ(real_.Snapshot(), before);
      return;
    }
    one->naive.written = std::move(written);
    if (prng_.NextChance(3)) return;
    Commit(*one);
  }

  void CommitSome() {
    if (Open* const one = Any()) Commit(*one);
  }

  void Commit(Open& one) {
    const uint64_t pending = one.naive.written.size() - one.naive.length;
    const uint64_t count = prng_.NextBelow(pending + 1);
    Must(one.real->Commit(std::span(one.naive.written).subspan(one.naive.length, count)));
    naive_.Commit(one.naive, count);
  }

  void Rollback() {
    Open* const one = Any();
    if (one == nullptr) return;
    const uint64_t position = prng_.NextBelow(one->naive.written.size() + 1);
    const std::string before = real_.Snapshot();
    const bool fits = naive_.Rollback(one->naive, position);
    const auto rolled = one->real->Rollback(position);
    ASSERT_EQ(rolled.has_value(), fits);
    if (!fits) {
      EXPECT_EQ(real_.Snapshot(), before);
    }
  }

  void Fork() {
    Open* const one = Any();
    if (one == nullptr || open_.size() >= 5) return;
    const std::string before = real_.Snapshot();
    NaiveCache::Sequence naive;
    const bool fits = naive_.Fork(one->naive, naive);
    auto forked = one->real->Fork();
    ASSERT_EQ(forked.has_value(), fits);
    if (!fits) {
      EXPECT_EQ(real_.Snapshot(), before);
      return;
    }
    open_.push_back({.real = *std::move(forked), .naive = std::move(naive)});
  }

  void Reset() {
    Open* const one = Any();
    if (one == nullptr) return;
    one->real->Reset();
    one->naive = {.written = {}, .publish = one->naive.publish};
    naive_.Settle();
  }

  void Close() {
    if (open_.empty()) return;
    std::swap(open_[prng_.NextBelow(open_.size())], open_.back());
    open_.pop_back();
    naive_.Settle();
  }

  void Evict() {
    const uint64_t blocks = prng_.NextBelow(4);
    EXPECT_EQ(real_.cache->Evict(blocks), naive_.Evict(blocks));
  }

  // Whether a slot from `slots` on is private. Leased blocks do not tell: some are leased by their
  // descendants alone, and their slots can move.
  bool PrivateBeyond(uint64_t slots) const {
    const std::string map = real_.cache->BlockMap();  // one row: "0  .psS\n"
    return map.find('p', map.rfind(' ') + 1 + slots) != std::string::npos;
  }

  void Resize() {
    const uint64_t slots = 1 + prng_.NextBelow(kSlotsMost + 1);
    const std::string before = real_.Snapshot();
    const bool private_beyond = PrivateBeyond(slots);
    const auto resized = real_.cache->Resize(real_.BytesFor(slots));
    if (resized) {
      ++resized_;
      EXPECT_LE(slots, kSlotsMost);
      EXPECT_FALSE(private_beyond);
      EXPECT_LE(naive_.pinned(), slots);
      naive_.Resize(slots);
    } else if (slots > kSlotsMost) {
      EXPECT_EQ(resized.error().code, ErrorCode::kTooLarge);
      EXPECT_EQ(real_.Snapshot(), before);
    } else {
      ++busy_;
      EXPECT_EQ(resized.error().code, ErrorCode::kBusy);
      EXPECT_EQ(real_.Snapshot(), before);
      EXPECT_LT(slots, naive_.slots_max());
      const uint64_t possible = PossibleNow(resized.error().message);
      EXPECT_GT(possible, real_.BytesFor(slots)) << resized.error().message;
      Must(real_.cache->Resize(possible));
      naive_.Resize((possible - real_.cache->stats().sequence_bytes) / real_.charge_bytes);
      naive_.Resize(possible / real_.charge_bytes);
      // And room for what sequences take besides their slots, which the naive cache does not know.
      Must(real_.cache->Resize(real_.BytesFor(naive_.slots_max())));
    }
    const CacheStats stats = real_.cache->stats();
    EXPECT_EQ(stats.sealed.slots_max, naive_.slots_max());
    EXPECT_EQ(stats.hot_bytes_limit / real_.charge_bytes, naive_.slots_max());
  }

  // "...; 12345 are possible now"
  static uint64_t PossibleNow(const std::string& message) {
    return std::stoull(message.substr(message.rfind(';') + 2));
  }

  void Verify() {
    const std::string before = real_.Snapshot();
    const VerifyReport report = real_.cache->Verify();
    EXPECT_EQ(report.blocks, naive_.published());
    EXPECT_EQ(report.damaged, naive_.damaged());
    EXPECT_EQ(real_.Snapshot(), before);
    real_.cache->Trim();
  }

  void Damage() {
    Open* const one = Any();
    if (one == nullptr || one->naive.published == 0 || !prng_.NextChance(3)) return;
    const uint64_t block = prng_.NextBelow(one->naive.published);
    const Path path(one->naive.written.begin(), one->naive.written.begin() + (block + 1) * kBlock);
    if (naive_.quarantined(path)) return;
    for (Held& held : views_) {
      // The bytes it shows are damaged too and are no longer compared.
      if (std::ranges::find(held.naive, one->naive.slots[block]) != held.naive.end()) {
        held.bytes.clear();
      }
    }
    FlipBit(*one->real, block);
    real_.cache->Verify();
    naive_.Damage(path);
  }

  void HoldView() {
    Open* const one = Any();
    if (one == nullptr || views_.size() >= 3) return;
    Held held;
    held.real = std::make_unique<BlockListView>(Must(one->real->View(1, StreamRole::kValue)));
    EXPECT_EQ(held.real->tokens(), one->naive.written.size());
    held.bytes = ShownBy(*held.real);
    held.naive.assign(one->naive.slots.begin(),
                      one->naive.slots.begin() + held.real->block_count());
    views_.push_back(std::move(held));
  }

  void ReleaseView() {
    if (views_.empty()) return;
    std::swap(views_[prng_.NextBelow(views_.size())], views_.back());
    views_.pop_back();
    naive_.Settle();
  }

  void Check() {
    const CacheStats stats = real_.cache->stats();
    EXPECT_EQ(stats.sealed.slots_used, naive_.live);
    EXPECT_EQ(SlotCharges(stats), naive_.live * real_.charge_bytes);
    EXPECT_LE(stats.hot_bytes_used, stats.hot_bytes_limit);
    EXPECT_LE(stats.hot_bytes_peak, stats.hot_bytes_limit);
    EXPECT_EQ(stats.published_blocks, naive_.published());
    EXPECT_EQ(stats.evictable_blocks, naive_.evictable.size());
    EXPECT_EQ(stats.evicted_total, naive_.evicted);
    EXPECT_EQ(stats.refused_total, naive_.refused);
    EXPECT_EQ(stats.sequences, open_.size());
    const std::string map = real_.cache->BlockMap();
    EXPECT_EQ(std::ranges::count(map, 's'), static_cast<int64_t>(naive_.evictable.size()));
    EXPECT_EQ(std::ranges::count(map, 'S'), static_cast<int64_t>(naive_.leased()));
    EXPECT_EQ(std::ranges::count(map, 'p'), static_cast<int64_t>(naive_.live - naive_.published()));
    for (const Open& one : open_) CheckSequence(one);
    for (const Held& held : views_) {
      if (!held.bytes.empty()) {
        EXPECT_EQ(ShownBy(*held.real), held.bytes);
      }
    }
  }

  void CheckSequence(const Open& one) const {
    EXPECT_EQ(one.real->length(), one.naive.length);
    EXPECT_EQ(one.real->cursor(1), one.naive.written.size());
    const SequenceStats stats = one.real->stats();
    EXPECT_EQ(stats.blocks_shared, one.naive.published);
    EXPECT_EQ(stats.blocks_shared + stats.blocks_own, one.naive.slots.size());
    const bool damaged =
        std::ranges::any_of(one.naive.slots, [](const auto& slot) { return slot->damaged; });
    if (!damaged) {
      EXPECT_EQ(real_.model.RowsDiffer(*one.real, one.naive.written), "");
    }
  }

  struct Call {
    void (CacheLockStep::*call)();
    uint64_t weight;
  };
  static constexpr Call kCalls[] = {
      {&CacheLockStep::OpenOne, 6},    {&CacheLockStep::Append, 6},
      {&CacheLockStep::CommitSome, 2}, {&CacheLockStep::Rollback, 3},
      {&CacheLockStep::Fork, 2},       {&CacheLockStep::Reset, 1},
      {&CacheLockStep::Close, 5},      {&CacheLockStep::Evict, 1},
      {&CacheLockStep::Verify, 1},     {&CacheLockStep::Damage, 1},
      {&CacheLockStep::HoldView, 2},   {&CacheLockStep::ReleaseView, 3},
      {&CacheLockStep::Resize, 1}};

  static constexpr OnFull kOnFull[] = {OnFull::kHalt, OnFull::kReject};

  Prng prng_;
  TestCache real_;
  NaiveCache naive_;
  uint64_t weights_[std::size(kCalls)];
  std::vector<Open> open_;
  std::vector<Held> views_;
  uint64_t resized_ = 0;
  uint64_t busy_ = 0;
};

TEST(CacheProperty, InLockStepWithANaiveCache) {
  uint64_t evicted = 0;
  uint64_t refused = 0;
  uint64_t deduplicated = 0;
  uint64_t resized = 0;
  uint64_t busy = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    CacheLockStep run(seed);
    for (int step = 0; step < 120 && !::testing::Test::HasFailure(); ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      run.Step();
    }
    if (::testing::Test::HasFailure()) return;
    run.Finish();
    evicted += run.naive().evicted;
    refused += run.naive().refused;
    deduplicated += run.naive().deduplicated;
    resized += run.resized();
    busy += run.busy();
  }
  // A run in which nothing happens would show nothing.
  EXPECT_GT(evicted, 500u);
  EXPECT_GT(refused, 500u);
  EXPECT_GT(deduplicated, 50u);
  EXPECT_GT(resized, 200u);
  EXPECT_GT(busy, 50u);
}

}  // namespace
}  // namespace quire::cache
