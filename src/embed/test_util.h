// What the tests of the C interface share: owned handles, structs with their size set, and a cache
// that the pretended model of the cache's tests fills through C.
#ifndef QUIRE_EMBED_TEST_UTIL_H_
#define QUIRE_EMBED_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/test_util.h"
#include "quire/quire.h"

namespace quire::embed {

struct Free {
  void operator()(quire_cache* handle) const { quire_cache_free(handle); }
  void operator()(quire_plan* handle) const { quire_plan_free(handle); }
  void operator()(quire_sequence* handle) const { quire_sequence_free(handle); }
  void operator()(quire_ticket* handle) const { quire_ticket_free(handle); }
  void operator()(quire_view* handle) const { quire_view_free(handle); }
  void operator()(quire_attention* handle) const { quire_attention_free(handle); }
  void operator()(quire_disk_store* handle) const { quire_disk_store_free(handle); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

template <typename T>
T Sized() {
  T made{};
  made.size = sizeof(T);
  return made;
}

inline std::string Show(const quire_error& error) {
  return std::string(quire_code_name(error.code)) + ": " + error.message;
}

/// The handle that `make(&handle, &error)` leaves, or the end of the test program.
template <typename T, typename Make>
Owned<T> MustMake(Make&& make) {
  quire_error error{};
  T* handle = nullptr;
  QUIRE_CHECK_MSG(make(&handle, &error) == QUIRE_OK, Show(error));
  return Owned<T>(handle);
}

inline quire_cache_options SmallOptions() {
  auto options = Sized<quire_cache_options>();
  options.layers = 2;
  options.kv_heads = 2;
  options.head_dim = 4;
  options.codec = QUIRE_F16;
  options.hot_bytes = 1 << 20;
  return options;
}

inline quire_identity SomeIdentityC() {
  auto identity = Sized<quire_identity>();
  identity.weights[0] = 1;
  identity.adapter = "";
  identity.position_encoding = "rope:theta=10000";
  identity.domain = "tenant";
  identity.domain_secret[0] = 7;
  return identity;
}

/// A cache of the C interface, and the model that fills it.
struct CWorld {
  static constexpr uint32_t kBlock = 16;

  explicit CWorld(const quire_cache_options& options = SmallOptions())
      : cache(MustMake<quire_cache>([&](quire_cache** out, quire_error* error) {
          return quire_cache_create(&options, out, error);
        })) {}

  Owned<quire_plan> Acquire(std::span<const TokenId> prompt) const {
    auto request = Sized<quire_acquire_request>();
    request.identity = &identity;
    request.tokens = prompt.data();
    request.token_count = prompt.size();
    return MustMake<quire_plan>([&](quire_plan** out, quire_error* error) {
      return quire_acquire(cache.get(), &request, out, error);
    });
  }

  Owned<quire_sequence> Open(std::span<const TokenId> prompt) const {
    return MustMake<quire_sequence>([&](quire_sequence** out, quire_error* error) {
      return quire_open(Acquire(prompt).release(), nullptr, out, error);
    });
  }

  /// Appends every layer up to history.size() tokens and commits them.
  void Feed(quire_sequence& sequence, std::span<const TokenId> history) const {
    quire_error error{};
    for (uint32_t layer = 0; layer < model.geometry().layer_count(); ++layer) {
      ASSERT_EQ(AppendLayer(sequence, layer, history, &error), QUIRE_OK) << Show(error);
    }
    const auto added = history.subspan(quire_sequence_length(&sequence));
    ASSERT_EQ(quire_sequence_commit(&sequence, added.data(), added.size(), &error), QUIRE_OK)
        << Show(error);
  }

  quire_code AppendLayer(quire_sequence& sequence, uint32_t layer, std::span<const TokenId> history,
                         quire_error* error) const {
    uint64_t begin = 0;
    const quire_code code = quire_sequence_cursor(&sequence, layer, &begin, error);
    if (code != QUIRE_OK) return code;
    const std::vector<Stream>& streams = model.GroupOf(layer).streams;
    const auto key = model.Rows(history, begin, layer, streams[0]);
    const auto value = model.Rows(history, begin, layer, streams[1]);
    const quire_rows key_rows = Packed(key, streams[0]);
    const quire_rows value_rows = Packed(value, streams[1]);
    return quire_sequence_append(&sequence, layer, &key_rows, &value_rows,
                                 static_cast<uint32_t>(history.size() - begin), error);
  }

  Owned<quire_sequence> Run(std::span<const TokenId> prompt) const {
    auto sequence = Open(prompt);
    Feed(*sequence, prompt);
    return sequence;
  }

  static quire_rows Packed(const std::vector<float>& rows, const Stream& stream) {
    return {.data = rows.data(),
            .dtype = QUIRE_F32,
            .token_stride = int64_t{stream.heads} * stream.dim,
            .head_stride = stream.dim};
  }

  /// What the model computes for tokens [0, history.size()). Shape: [heads, tokens, dim]
  std::vector<float> Expected(std::span<const TokenId> history, uint32_t layer,
                              size_t stream) const {
    const Stream& which = model.GroupOf(layer).streams[stream];
    return cache::FakeModel::HeadsFirst(model.Rows(history, 0, layer, which), which);
  }

  static std::vector<float> Gathered(const quire_sequence& sequence, uint32_t layer,
                                     quire_role role) {
    const uint64_t tokens = quire_sequence_length(&sequence);
    std::vector<float> out(tokens * 2 * 4);
    quire_error error{};
    EXPECT_EQ(
        quire_sequence_gather(&sequence, layer, role, 0, tokens, out.data(), out.size(), &error),
        QUIRE_OK)
        << Show(error);
    return out;
  }

  Owned<quire_view> View(const quire_sequence& sequence, uint32_t layer, quire_role role) const {
    return MustMake<quire_view>([&](quire_view** out, quire_error* error) {
      return quire_view_open(&sequence, layer, role, out, error);
    });
  }

  quire_cache_stats Stats() const {
    auto stats = Sized<quire_cache_stats>();
    EXPECT_EQ(quire_cache_get_stats(cache.get(), &stats, nullptr), QUIRE_OK);
    return stats;
  }

  quire_identity identity = SomeIdentityC();
  cache::FakeModel model{cache::SmallGeometry()};
  Owned<quire_cache> cache;
};

}  // namespace quire::embed

#endif  // QUIRE_EMBED_TEST_UTIL_H_
