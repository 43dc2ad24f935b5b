// Random calls on caches of every arena, placement and kind of layers, whose budget goes up and
// down: every value that is read is the right one, views never move, views without a lease show
// what they did or fail, and the ledger is what the slots cost. (What is evicted and what is
// refused, in lock step with a naive cache: cache_prop_test.cc.)
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "cache/sequence/view_test_util.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

constexpr uint64_t kTokensMax = 9 * kBlock;

Geometry Mixed() {
  Geometry mixed = SmallGeometry();
  mixed.groups[0].layers = {0};
  mixed.groups.push_back(mixed.groups[0]);
  mixed.groups[1].layers = {1};
  mixed.groups[1].kind = LayerKind::kWindow;
  mixed.groups[1].window_tokens = 40;
  mixed.groups[1].sink_tokens = 4;
  return mixed;
}

Geometry Windowed() {
  Geometry windowed = SmallGeometry();
  windowed.groups[0].kind = LayerKind::kWindow;
  windowed.groups[0].window_tokens = 40;
  return windowed;
}

// The configuration of a seed. Codecs that encode are block-major only.
struct ResizeKind {
  ArenaLayout layout;
  Placement placement;
  Geometry geometry;
  Codec codec;
  uint32_t residual_tokens = 0;
};

ResizeKind KindOf(uint64_t seed) {
  Prng prng(1000 + seed);
  ResizeKind kind{.layout = static_cast<ArenaLayout>(1 + prng.NextBelow(3)),
                  .placement = static_cast<Placement>(prng.NextBelow(4)),
                  .geometry = SmallGeometry(),
                  .codec = Codec::kF16};
  switch (prng.NextBelow(4)) {
    case 0: kind.geometry = Mixed(); break;
    case 1: kind.geometry = Windowed(); break;
    case 2:
      kind.layout = ArenaLayout::kBlockMajor;
      kind.codec = Codec::kInt8;
      kind.residual_tokens = static_cast<uint32_t>(prng.NextBelow(3) * 20);
      if (kind.residual_tokens > 0 && prng.NextChance(3)) kind.geometry = Mixed();
      break;
    default: break;
  }
  return kind;
}

class RandomCalls {
 public:
  explicit RandomCalls(uint64_t seed) : prng_(seed), kind_(KindOf(seed)), model_(kind_.geometry) {
    NumericProfile profile = NumericProfile::Uniform(Codec::kF16);
    for (CodecRule& rule : profile.codecs) rule.codec = kind_.codec;
    profile.residual_tokens = kind_.residual_tokens;
    cache_ = MakeCache({.geometry = kind_.geometry,
                        .profile = profile,
                        .layout = kind_.layout,
                        .placement = kind_.placement,
                        .hot_bytes = kMost / 3,
                        .hot_bytes_max = kMost});
    tenants_ = {kDefaultTenant,
                Must(cache_->AddTenant({.name = "floor", .floor_bytes = kMost / 10})),
                Must(cache_->AddTenant({.name = "quota", .quota_bytes = kMost / 4}))};
  }

  void Step() {
    switch (prng_.NextBelow(16)) {
      case 0:
      case 1:
      case 2: Open(); break;
      case 3:
      case 4: Append(); break;
      case 5: Fork(); break;
      case 6: Rollback(); break;
      case 7:
      case 8: Close(); break;
      case 9: HoldView(); break;
      case 10: ReleaseView(); break;
      case 11: PinAgain(); break;
      case 12: cache_->Evict(prng_.NextBelow(4)); break;
      case 13: prng_.NextChance(2) ? (void)cache_->Trim() : (void)Erase(); break;
      default: Resize();
    }
    Check();
  }

  void Finish() {
    while (!open_.empty()) Close();
    held_.clear();
    Must(cache_->Resize(kMost / 4));  // nothing is held, and floors keep less
    Check();
    cache_->Evict(10'000);
    EXPECT_EQ(cache_->stats().hot_bytes_used, 0u);
    Must(cache_->Resize(kMost / 10));
    Must(cache_->Resize(kMost));
  }

  std::map<std::string, uint64_t> counts;

 private:
  static constexpr uint64_t kMost = 300'000;

  struct Item {
    std::unique_ptr<Sequence> sequence;
    std::vector<TokenId> tokens{};
  };
  struct Held {
    BlockListView view;
    std::vector<std::byte> bytes;
  };
  struct Loose {
    UnleasedView view;
    std::vector<std::byte> bytes;
  };

  // Scripts share beginnings.
  static std::vector<TokenId> Script(uint64_t script, uint64_t tokens) {
    std::vector<TokenId> made(tokens);
    for (uint64_t t = 0; t < tokens; ++t) {
      const uint64_t block = t / kBlock;
      made[t] = static_cast<TokenId>(1000 * block + 20 * (script >> (block < 2 ? 2 - block : 0)) +
                                     t % kBlock);
    }
    return made;
  }

  Item* Any() { return open_.empty() ? nullptr : &open_[prng_.NextBelow(open_.size())]; }

  void Feed(Item& item, const std::vector<TokenId>& tokens) {
    if (const auto fed = model_.Feed(*item.sequence, tokens); !fed) {
      ASSERT_EQ(fed.error().code, ErrorCode::kNoSpace) << fed.error().message;
      // Some layers may have more rows.
      Must(item.sequence->Rollback(item.tokens.size()));
      return;
    }
    item.tokens = tokens;
  }

  void Open() {
    if (open_.size() > 6) return;
    const auto prompt = Script(prng_.NextBelow(8), 1 + prng_.NextBelow(kTokensMax));
    const bool contiguous = kind_.placement != Placement::kFreeList && kind_.codec == Codec::kF16 &&
                            kind_.geometry == SmallGeometry() && prng_.NextChance(3);
    auto plan = Must(cache_->Acquire({.tenant = tenants_[prng_.NextBelow(tenants_.size())],
                                      .identity = &identity_,
                                      .tokens = prompt,
                                      .reuse = !contiguous}));
    if (prng_.NextChance(4)) Resize();  // beside a plan
    auto opened = cache_->Open(
        std::move(plan),
        {.on_full = OnFull::kHalt, .publish = !prng_.NextChance(4), .contiguous = contiguous});
    if (!opened) {
      ASSERT_TRUE(opened.error().code == ErrorCode::kNoSpace ||
                  opened.error().code == ErrorCode::kTooLarge)
          << opened.error().message;
      return;
    }
    counts["hit tokens"] += (*opened)->length();
    Item item{.sequence = *std::move(opened)};
    item.tokens.assign(prompt.begin(),
                       prompt.begin() + static_cast<int64_t>(item.sequence->length()));
    Feed(item, prompt);
    open_.push_back(std::move(item));
  }

  void Append() {
    Item* const item = Any();
    if (item == nullptr || item->tokens.size() > kTokensMax) return;
    const auto more = SomeTokens(1 + prng_.NextBelow(2 * kBlock), prng_.NextBelow(4));
    Feed(*item, Join(item->tokens, more));
  }

  void Fork() {
    Item* const item = Any();
    if (item == nullptr || open_.size() > 6) return;
    auto fork = item->sequence->Fork();
    if (!fork) {
      ASSERT_EQ(fork.error().code, ErrorCode::kNoSpace);
      return;
    }
    std::vector<TokenId> tokens = item->tokens;
    open_.push_back({.sequence = *std::move(fork), .tokens = std::move(tokens)});
  }

  void Rollback() {
    Item* const item = Any();
    if (item == nullptr) return;
    const uint64_t position = prng_.NextBelow(item->tokens.size() + 1);
    if (item->sequence->Rollback(position)) item->tokens.resize(position);
  }

  void Close() {
    if (open_.empty()) return;
    std::swap(open_[prng_.NextBelow(open_.size())], open_.back());
    open_.pop_back();
  }

  void HoldView() {
    Item* const item = Any();
    if (item == nullptr || kind_.codec != Codec::kF16) return;
    BlockListView view = Must(item->sequence->View(1, StreamRole::kValue));
    std::vector<std::byte> bytes = ShownBy(view);
    loose_.push_back({view.Unleased(), bytes});
    if (held_.size() < 3) held_.push_back({std::move(view), std::move(bytes)});
  }

  void ReleaseView() {
    if (held_.empty()) return;
    std::swap(held_[prng_.NextBelow(held_.size())], held_.back());
    held_.pop_back();
  }

  void PinAgain() {
    std::erase_if(loose_, [this](const Loose& loose) {
      const auto pinned = loose.view.Pin();
      if (pinned) {
        EXPECT_EQ(ShownBy(*pinned), loose.bytes);
      } else {
        EXPECT_EQ(pinned.error().code, ErrorCode::kNotFound);
      }
      ++counts[pinned ? "pinned" : "gone"];
      return !pinned;
    });
  }

  EraseReport Erase() { return Must(cache_->Erase(tenants_[prng_.NextBelow(tenants_.size())])); }

  std::string Everything() const {
    CacheStats stats = cache_->stats();
    stats.refused_total = 0;
    return ToJson(stats) + cache_->BlockMap();
  }

  void Resize() {
    const uint64_t bytes = 1 + prng_.NextBelow(kMost + kMost / 10);
    const std::string before = Everything();
    const uint64_t blocks = cache_->stats().published_blocks;
    const uint64_t evicted = cache_->stats().evicted_total;
    const auto resized = cache_->Resize(bytes);
    const CacheStats stats = cache_->stats();
    if (!resized) {
      EXPECT_EQ(Everything(), before) << resized.error().message;
      ++counts[std::string(ErrorCodeName(resized.error().code))];
      return;
    }
    ++counts["resized"];
    EXPECT_EQ(stats.hot_bytes_limit, bytes);
    EXPECT_EQ(stats.hot_bytes_peak, stats.hot_bytes_used);
    if (kind_.geometry == SmallGeometry()) {
      EXPECT_EQ(blocks - stats.published_blocks, stats.evicted_total - evicted)
          << "what is not evicted is still there";
    }
  }

  void Check() {
    const CacheStats stats = cache_->stats();
    EXPECT_LE(stats.hot_bytes_peak, stats.hot_bytes_limit);
    uint64_t used = 0;
    for (const TenantId tenant : tenants_) used += Must(cache_->tenant_stats(tenant)).bytes_used;
    EXPECT_EQ(stats.hot_bytes_used, used);
    uint64_t slots = 0;
    for (const SlotClassStats& one :
         {stats.sealed, stats.sealed_second, stats.open, stats.open_second}) {
      slots += one.slots_used;
      EXPECT_LE(one.slots_used, one.slots_max);
    }
    EXPECT_EQ(slots == 0, used == 0);
    EXPECT_EQ(cache_->Verify().damaged, 0u);
    for (const Held& held : held_) EXPECT_EQ(ShownBy(held.view), held.bytes);
    for (const Item& item : open_) EXPECT_EQ(Wrong(item), "");
  }

  // Gathers the tokens inside the windows.
  std::string Wrong(const Item& item) const {
    if (item.sequence->length() != item.tokens.size()) return "length";
    for (uint32_t layer = 0; layer < 2; ++layer) {
      const LayerGroup& group = model_.GroupOf(layer);
      const bool window = group.kind == LayerKind::kWindow;
      const uint64_t end = item.tokens.size();
      const uint64_t begin = window && end >= 40 ? end + 1 - 40 : 0;
      for (const Stream& stream : group.streams) {
        std::vector<float> out((end - begin) * stream.heads * stream.dim);
        const auto got = item.sequence->Gather(layer, stream.role, begin, end, out);
        if (!got) return got.error().message;
        const auto rows =
            FakeModel::HeadsFirst(model_.Rows(item.tokens, begin, layer, stream), stream);
        // Encoded values are near; another token's are not.
        const float tolerance = kind_.codec == Codec::kF16 ? 0.0f : 8.0f;
        for (size_t i = 0; i < out.size(); ++i) {
          if (std::abs(out[i] - rows[i]) > tolerance) return "wrong values";
        }
      }
    }
    return "";
  }

  Prng prng_;
  const ResizeKind kind_;
  const FakeModel model_;
  const Identity identity_ = SomeIdentity();
  std::unique_ptr<Cache> cache_;
  std::vector<TenantId> tenants_;
  std::vector<Item> open_;
  std::vector<Held> held_;
  std::vector<Loose> loose_;
};

TEST(ResizeProperty, EveryArenaReadsTheRightValues) {
  std::map<std::string, uint64_t> counts;
  for (uint64_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomCalls run(seed);
    for (int step = 0; step < 120 && !::testing::Test::HasFailure(); ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      run.Step();
    }
    if (::testing::Test::HasFailure()) return;
    run.Finish();
    for (const auto& [what, count] : run.counts) counts[what] += count;
  }
  // A run in which nothing happens would show nothing.
  for (const char* what : {"resized", "busy", "too_large", "no_space", "pinned", "gone"}) {
    EXPECT_GT(counts[what], 50u) << what;
  }
  EXPECT_GT(counts["hit tokens"], 1000u);
}

}  // namespace
}  // namespace quire::cache
