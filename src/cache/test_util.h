// What the cache's tests share: small caches, and a pretended model whose K and V are known.
#ifndef QUIRE_CACHE_TEST_UTIL_H_
#define QUIRE_CACHE_TEST_UTIL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "cache/test_device.h"
#include "env/clock.h"  // IWYU pragma: export: tests of layers above move it too
#include "quire/cache.h"

namespace quire::cache {

/// The value, or the end of the test program with the error's message.
template <typename T>
T Must(Result<T> result) {
  QUIRE_CHECK_MSG(result.has_value(), result.has_value() ? "" : result.error().message);
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

/// A cache where this run of the tests has its caches.
inline std::unique_ptr<Cache> MakeCache(CacheOptions options) {
  return Must(Cache::Create(OnTestDevice(std::move(options))));
}

inline Geometry SmallGeometry() { return Geometry::Uniform(/*layers=*/2, /*kv_heads=*/2, 4); }

/// int8 in blocks, f16 in those that are being written, and in so many tokens before them.
inline NumericProfile EncodedInt8(uint32_t residual_tokens = 0) {
  NumericProfile profile = NumericProfile::Uniform(Codec::kInt8);
  profile.open_dtype = Codec::kF16;
  profile.residual_tokens = residual_tokens;
  return profile;
}

/// Tokens [n] that depend on the seed from the first one on.
inline std::vector<TokenId> SomeTokens(uint64_t n, uint64_t seed) {
  Prng prng(seed);
  std::vector<TokenId> tokens(n);
  for (TokenId& token : tokens) token = static_cast<TokenId>(prng.NextBelow(50'000));
  return tokens;
}

inline std::vector<TokenId> Join(std::span<const TokenId> a, std::span<const TokenId> b) {
  std::vector<TokenId> joined(a.begin(), a.end());
  joined.insert(joined.end(), b.begin(), b.end());
  return joined;
}

/// Stands for a model: K and V of a token are a pure function of the weights, of all tokens up to
/// it, and of layer, stream, head and channel, so that a block in the wrong sequence is noticed.
/// The values are whole numbers that every codec stores exactly.
class FakeModel {
 public:
  explicit FakeModel(Geometry geometry, uint64_t weights = 1)
      : geometry_(std::move(geometry)), weights_(weights) {}

  const Geometry& geometry() const { return geometry_; }

  /// Rows of tokens [begin, history.size()) of one stream. Shape: [tokens, heads, dim]
  std::vector<float> Rows(std::span<const TokenId> history, uint64_t begin, uint32_t layer,
                          const Stream& stream) const {
    std::vector<float> rows;
    rows.reserve((history.size() - begin) * stream.heads * stream.dim);
    uint64_t hash = weights_;
    for (uint64_t t = 0; t < history.size(); ++t) {
      hash = Mix(hash, static_cast<uint32_t>(history[t]));
      if (t < begin) continue;
      const uint64_t plane = Mix(Mix(hash, layer), static_cast<uint64_t>(stream.role));
      for (uint32_t i = 0; i < stream.heads * stream.dim; ++i) {
        rows.push_back(static_cast<float>(Mix(plane, i) % 255) - 127.0f);
      }
    }
    return rows;
  }

  /// Appends what `layer` lacks up to history.size() tokens.
  Result<void> AppendLayer(Sequence& sequence, uint32_t layer,
                           std::span<const TokenId> history) const {
    const uint64_t begin = sequence.cursor(layer);
    if (begin >= history.size()) return {};
    const std::vector<Stream>& streams = GroupOf(layer).streams;
    std::vector<std::vector<float>> rows;
    for (const Stream& stream : streams) rows.push_back(Rows(history, begin, layer, stream));
    LayerRows layer_rows{.key = Packed(rows[0], streams[0]),
                         .tokens = static_cast<uint32_t>(history.size() - begin)};
    if (streams.size() > 1) layer_rows.value = Packed(rows[1], streams[1]);
    return sequence.Append(layer, layer_rows);
  }

  /// Appends every layer up to history.size() tokens and commits them.
  Result<void> Feed(Sequence& sequence, std::span<const TokenId> history) const {
    for (uint32_t layer = 0; layer < geometry_.layer_count(); ++layer) {
      QUIRE_TRY(AppendLayer(sequence, layer, history));
    }
    return sequence.Commit(history.subspan(sequence.length()));
  }

  /// Empty if the sequence holds exactly `history`, and for every token in every stream what this
  /// model computes; else what is wrong.
  std::string Differs(const Sequence& sequence, std::span<const TokenId> history) const {
    if (sequence.length() != history.size()) {
      return "length " + std::to_string(sequence.length()) + ", not " +
             std::to_string(history.size());
    }
    return RowsDiffer(sequence, history);
  }

  /// The same for rows that are written, committed or not.
  std::string RowsDiffer(const Sequence& sequence, std::span<const TokenId> history) const {
    for (uint32_t layer = 0; layer < geometry_.layer_count(); ++layer) {
      for (const Stream& stream : GroupOf(layer).streams) {
        std::vector<float> out(history.size() * stream.heads * stream.dim);
        const auto gathered = sequence.Gather(layer, stream.role, 0, history.size(), out);
        if (!gathered) return gathered.error().message;
        if (out != HeadsFirst(Rows(history, 0, layer, stream), stream)) {
          return "wrong values in layer " + std::to_string(layer);
        }
      }
    }
    return {};
  }

  const LayerGroup& GroupOf(uint32_t layer) const {
    for (const LayerGroup& group : geometry_.groups) {
      for (uint32_t candidate : group.layers) {
        if (candidate == layer) return group;
      }
    }
    QUIRE_CHECK_MSG(false, "no such layer");
    return geometry_.groups[0];
  }

  static RowsView Packed(const std::vector<float>& rows, const Stream& stream) {
    return {.data = rows.data(),
            .dtype = Codec::kF32,
            .token_stride = int64_t{stream.heads} * stream.dim,
            .head_stride = stream.dim};
  }

  /// [tokens, heads, dim] as [heads, tokens, dim], the shape of Gather.
  static std::vector<float> HeadsFirst(const std::vector<float>& rows, const Stream& stream) {
    const uint64_t tokens = rows.size() / (uint64_t{stream.heads} * stream.dim);
    std::vector<float> out;
    out.reserve(rows.size());
    for (uint32_t head = 0; head < stream.heads; ++head) {
      for (uint64_t t = 0; t < tokens; ++t) {
        const auto row =
            rows.begin() + static_cast<int64_t>((t * stream.heads + head) * stream.dim);
        out.insert(out.end(), row, row + stream.dim);
      }
    }
    return out;
  }

 private:
  static uint64_t Mix(uint64_t hash, uint64_t number) {
    hash = (hash ^ number) * 0x9e3779b97f4a7c15;
    return hash ^ (hash >> 29);
  }

  const Geometry geometry_;
  const uint64_t weights_;
};

inline Identity SomeIdentity() {
  return {.weights = {1},
          .adapter = "",
          .adapter_version = 0,
          .position_encoding = "rope:theta=10000",
          .domain = {.name = "tenant", .secret = {7}, .erase_epoch = 0}};
}

/// The charges of its slots; those of sequences come on top.
inline uint64_t SlotCharges(const CacheStats& stats) {
  return stats.hot_bytes_used - stats.sequence_bytes;
}

/// What one slot costs the budget, by asking a cache.
inline uint64_t ChargePerSlot(const Geometry& geometry, const NumericProfile& profile,
                              const std::string& policy = CacheOptions{}.policy) {
  const auto cache = Must(Cache::Create({.geometry = geometry,
                                         .profile = profile,
                                         .hot_bytes = uint64_t{1} << 30,
                                         .policy = policy}));
  const Identity identity = SomeIdentity();
  const std::vector<TokenId> prompt = {1};
  const auto sequence =
      Must(cache->Open(Must(cache->Acquire({.identity = &identity, .tokens = prompt})), {}));
  return SlotCharges(cache->stats());
}

inline constexpr uint32_t kBlock = 16;  // tokens of a block of a TestCache

/// A cache of `slots` slots with the model that fills it.
struct TestCache {
  /// slots_max: the most that it can be resized to; 0: slots. Other options are taken from `more`.
  explicit TestCache(uint64_t slots, Geometry geometry = SmallGeometry(),
                     const NumericProfile& profile = NumericProfile::Uniform(Codec::kF16),
                     uint64_t slots_max = 0, CacheOptions more = {})
      : model(geometry),
        charge_bytes(ChargePerSlot(geometry, profile, more.policy)),
        cache(MakeCache(With(std::move(more), std::move(geometry), profile, BytesFor(slots),
                             slots_max == 0 ? 0 : BytesFor(slots_max)))) {}

  /// A budget for so many slots and not quite one more.
  uint64_t BytesFor(uint64_t slots) const { return slots * charge_bytes + charge_bytes - 1; }

  Plan Acquire(std::span<const TokenId> prompt, bool reuse = true) {
    return Must(cache->Acquire({.identity = &identity, .tokens = prompt, .reuse = reuse}));
  }
  Result<std::unique_ptr<Sequence>> TryOpen(std::span<const TokenId> prompt,
                                            const SequenceOptions& options = {}) {
    return cache->Open(Acquire(prompt), options);
  }
  std::unique_ptr<Sequence> Open(std::span<const TokenId> prompt,
                                 const SequenceOptions& options = {}) {
    return Must(TryOpen(prompt, options));
  }
  /// Opens and computes the whole prompt.
  std::unique_ptr<Sequence> Run(std::span<const TokenId> prompt,
                                const SequenceOptions& options = {}) {
    auto sequence = Open(prompt, options);
    Must(model.Feed(*sequence, prompt));
    return sequence;
  }
  /// Tokens of a prompt that are cached now. Counts as a use of them.
  uint64_t Resident(std::span<const TokenId> prompt) { return Acquire(prompt).resident_tokens(); }
  uint64_t slots_used() const { return cache->stats().sealed.slots_used; }

  /// The state that a refused call must not change.
  std::string Snapshot() const {
    CacheStats stats = cache->stats();
    stats.refused_total = 0;
    return ToJson(stats) + "\n" + cache->BlockMap();
  }

  FakeModel model;
  uint64_t charge_bytes;  // per slot
  Identity identity = SomeIdentity();
  std::unique_ptr<Cache> cache;

 private:
  static CacheOptions With(CacheOptions options, Geometry geometry, const NumericProfile& profile,
                           uint64_t hot_bytes, uint64_t hot_bytes_max) {
    options.geometry = std::move(geometry);
    options.profile = profile;
    options.hot_bytes = hot_bytes;
    options.hot_bytes_max = hot_bytes_max;
    return options;
  }
};

/// Turns one bit of a published block over, as a broken memory would.
inline void FlipBit(const Sequence& sequence, uint64_t block) {
  const BlockListView view = Must(sequence.View(0, StreamRole::kKey));
  auto* byte = const_cast<std::byte*>(view.slots()[block] + view.layout().offset_bytes);
  *OnHost(byte) ^= std::byte{1};
}

}  // namespace quire::cache

#endif  // QUIRE_CACHE_TEST_UTIL_H_
