// Memory that runs out at any allocation of any call: a code comes back, nothing is lost, and a
// fresh attempt works.
#include "base/failing_new.h"

#ifdef QUIRE_FAILING_NEW
#include <gtest/gtest.h>

#include <utility>

#include "embed/test_util.h"
#include "quire/dlpack.h"

namespace quire::embed {
namespace {

constexpr uint32_t kBlock = CWorld::kBlock;

/// Calls with the first, second, third ... allocation failing, until one succeeds.
template <typename Call>
void Sweep(const std::string& name, Call&& call) {
  for (int64_t k = 0;; ++k) {
    ASSERT_LT(k, 1000) << name;
    quire_error error{};
    allocations_left = k;
    const quire_code code = call(&error);
    allocations_left = -1;
    if (code == QUIRE_OK) break;
    ASSERT_EQ(code, QUIRE_NO_MEMORY) << name << ", allocation " << k << ": " << Show(error);
    ASSERT_STREQ(error.message, "out of memory");
  }
}

TEST(NoMemory, MakingHandlesCanBeTriedAgain) {
  const quire_cache_options options = SmallOptions();
  const auto history = cache::SomeTokens(2 * kBlock + 5, 1);
  quire_cache* cache = nullptr;
  Sweep("create", [&](quire_error* error) { return quire_cache_create(&options, &cache, error); });
  quire_cache_free(cache);

  const CWorld world;
  const auto sequence = world.Run(history);
  quire_view* view = nullptr;
  Sweep("view", [&](quire_error* error) {
    return quire_view_open(sequence.get(), 0, QUIRE_KEY, &view, error);
  });
  DLManagedTensorVersioned* tensor = nullptr;
  Sweep("dlpack", [&](quire_error* error) { return quire_view_dlpack(view, 0, &tensor, error); });
  DLManagedTensor* legacy = nullptr;
  Sweep("dlpack_legacy",
        [&](quire_error* error) { return quire_view_dlpack_legacy(view, 0, &legacy, error); });
  tensor->deleter(tensor);
  legacy->deleter(legacy);
  quire_view_free(view);

  std::vector<float> out(history.size() * 8);
  Sweep("gather", [&](quire_error* error) {
    return quire_sequence_gather(sequence.get(), 0, QUIRE_KEY, 0, history.size(), out.data(),
                                 out.size(), error);
  });
  EXPECT_EQ(out, world.Expected(history, 0, 0));
}

/// A life through C, whose own data is made before, so that every allocation is Quire's. It
/// publishes nothing: its reset would list blocks in the policy, where an allocation cannot be
/// refused.
class Life {
 public:
  Life() : history_(cache::SomeTokens(kBlock - 1, 1)) {
    const cache::FakeModel model(cache::SmallGeometry());
    for (uint32_t layer = 0; layer < 2; ++layer) {
      for (const Stream& stream : model.GroupOf(layer).streams) {
        rows_.push_back(model.Rows(history_, 0, layer, stream));
      }
    }
  }

  quire_code Run(quire_error* error) const {
    const quire_cache_options options = SmallOptions();
    Handles handles;
    quire_code code = quire_cache_create(&options, &handles.cache, error);
    if (code == QUIRE_OK) code = Open(handles, error);
    if (code == QUIRE_OK) code = Feed(*handles.sequence, error);
    if (code == QUIRE_OK) code = Use(handles, error);
    return code;
  }

 private:
  /// Frees them with memory to spare: an allocation while something ends cannot be refused.
  struct Handles {
    quire_cache* cache = nullptr;
    quire_sequence* sequence = nullptr;
    quire_sequence* fork = nullptr;
    quire_view* view = nullptr;

    ~Handles() {
      const int64_t left = std::exchange(allocations_left, -1);
      quire_cache_free(cache);
      quire_sequence_free(sequence);
      quire_sequence_free(fork);
      quire_view_free(view);
      allocations_left = left;
    }
  };

  quire_code Open(Handles& handles, quire_error* error) const {
    const quire_identity identity = SomeIdentityC();
    auto request = Sized<quire_acquire_request>();
    request.identity = &identity;
    request.tokens = history_.data();
    request.token_count = history_.size();
    quire_plan* plan = nullptr;
    const quire_code code = quire_acquire(handles.cache, &request, &plan, error);
    return code == QUIRE_OK ? quire_open(plan, nullptr, &handles.sequence, error) : code;
  }

  quire_code Feed(quire_sequence& sequence, quire_error* error) const {
    const uint64_t begin = quire_sequence_length(&sequence);
    for (uint32_t layer = 0; layer < 2; ++layer) {
      const quire_rows key = Rows(2 * layer, begin);
      const quire_rows value = Rows(2 * layer + 1, begin);
      const auto added = static_cast<uint32_t>(history_.size() - begin);
      const quire_code code = quire_sequence_append(&sequence, layer, &key, &value, added, error);
      if (code != QUIRE_OK) return code;
    }
    return quire_sequence_commit(&sequence, history_.data() + begin, history_.size() - begin,
                                 error);
  }

  static quire_code Use(Handles& handles, quire_error* error) {
    quire_sequence* const sequence = handles.sequence;
    quire_code code = quire_sequence_fork(sequence, &handles.fork, error);
    if (code == QUIRE_OK) code = quire_view_open(handles.fork, 1, QUIRE_KEY, &handles.view, error);
    if (code == QUIRE_OK) code = quire_sequence_rollback(sequence, 5, error);
    if (code == QUIRE_OK) code = quire_sequence_reserve(sequence, 4 * kBlock, error);
    if (code == QUIRE_OK) code = quire_sequence_reset(sequence, error);
    return code;
  }

  quire_rows Rows(size_t stream, uint64_t begin) const {
    return {.data = rows_[stream].data() + begin * 8,
            .dtype = QUIRE_F32,
            .token_stride = 8,
            .head_stride = 4};
  }

  const std::vector<TokenId> history_;
  std::vector<std::vector<float>> rows_;  // [layers * 2][tokens, heads, dim]
};

// Slots that a call has taken when memory runs out go back, and so do holds on those of others.
TEST(NoMemory, SlotsOfACallThatFailsGoBack) {
  const CWorld world;
  const auto history = cache::SomeTokens(2 * kBlock + 5, 1);
  const auto sequence = world.Run(history);
  quire_sequence* fork = nullptr;
  const auto sweep = [&](const std::string& name, auto&& call) {
    const uint64_t before = world.Stats().sealed.slots_used;
    Sweep(name, [&](quire_error* error) {
      const quire_code code = call(error);
      if (code == QUIRE_NO_MEMORY) {
        EXPECT_EQ(world.Stats().sealed.slots_used, before) << name;
      }
      return code;
    });
  };
  sweep("fork",
        [&](quire_error* error) { return quire_sequence_fork(sequence.get(), &fork, error); });
  sweep("reserve", [&](quire_error* error) {
    return quire_sequence_reserve(sequence.get(), 6 * kBlock, error);
  });
  // A view holds the block that is cut: it is copied.
  quire_error opened{};
  quire_view* view = nullptr;
  ASSERT_EQ(quire_view_open(sequence.get(), 0, QUIRE_KEY, &view, &opened), QUIRE_OK);
  const uint64_t before_rollback = world.Stats().sealed.slots_used;
  sweep("rollback", [&](quire_error* error) {
    return quire_sequence_rollback(sequence.get(), 2 * kBlock + 1, error);
  });
  EXPECT_EQ(quire_sequence_length(sequence.get()), 2 * kBlock + 1);
  EXPECT_EQ(world.Stats().sealed.slots_used, before_rollback + 1) << "the view has the other";
  quire_view_free(view);
  EXPECT_EQ(world.Stats().sealed.slots_used, before_rollback);
  quire_sequence_free(fork);
  quire_sequence* open = nullptr;
  quire_plan* plan = nullptr;
  sweep("open", [&](quire_error* error) {
    const int64_t left = std::exchange(allocations_left, -1);
    plan = world.Acquire(history).release();
    allocations_left = left;
    return quire_open(plan, nullptr, &open, error);
  });
  quire_sequence_free(open);
  const auto left = std::span(history).first(2 * kBlock + 1);
  EXPECT_EQ(world.Gathered(*sequence, 0, QUIRE_KEY), world.Expected(left, 0, 0));
}

// With threads: those that run already when another cannot be had must be there to be ended.
TEST(NoMemory, AttentionIsMadeAndRunOrRefused) {
  const CWorld world;
  const auto history = cache::SomeTokens(300, 1);
  const auto sequence = world.Run(history);
  const std::vector<float> queries(20 * 2 * 4, 0.5f);
  std::vector<float> expected(queries.size());
  std::vector<float> out(queries.size());
  auto options = Sized<quire_attention_options>();
  options.threads = 4;
  quire_attend_task task = {.sequence = sequence.get(),
                            .queries = queries.data(),
                            .out = expected.data(),
                            .rows = 20,
                            .first_position = 270};
  auto request = Sized<quire_attend_request>();
  request.query_heads = 2;
  request.task_count = 1;
  request.tasks = &task;
  const auto run = [&](quire_error* error) {
    quire_attention* attention = nullptr;
    quire_code code = quire_attention_create(&options, &attention, error);
    if (code == QUIRE_OK) code = quire_attend(attention, &request, error);
    // Also after a failure the handle is fit for freeing.
    const int64_t left = std::exchange(allocations_left, -1);
    quire_attention_free(attention);
    allocations_left = left;
    return code;
  };
  ASSERT_EQ(run(nullptr), QUIRE_OK);
  task.out = out.data();
  uint64_t refused = 0;
  for (int64_t k = 0;; ++k) {
    ASSERT_LT(k, 1000);
    std::ranges::fill(out, -1.0f);
    quire_error error{};
    allocations_left = k;
    const quire_code code = run(&error);
    const bool none_failed = std::exchange(allocations_left, -1) >= 0;
    ASSERT_TRUE(code == QUIRE_OK || code == QUIRE_NO_MEMORY) << k << ": " << Show(error);
    refused += code == QUIRE_OK ? 0 : 1;
    if (code == QUIRE_OK) {
      EXPECT_EQ(out, expected) << k;
    }
    if (none_failed) break;
  }
  EXPECT_GT(refused, 8u);
}

TEST(NoMemory, ALifeThatEndsAnywhereLeavesNothingBehind) {
  const Life life;
  Sweep("life", [&](quire_error* error) {
    const int64_t before = allocations_live;
    const quire_code code = life.Run(error);
    EXPECT_EQ(allocations_live, before);
    return code;
  });
}

}  // namespace
}  // namespace quire::embed

#endif  // QUIRE_FAILING_NEW
