// A cache on a store, from C: written by one life, loaded by the next.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/json.h"
#include "embed/test_struct_sizes.h"
#include "embed/test_util.h"

namespace quire::embed {
namespace {

class DiskStoreC : public testing::Test {
 protected:
  DiskStoreC() {
    std::string name = (std::filesystem::temp_directory_path() / "quire_disk_XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
    options_.directory = directory_.c_str();
    options_.bytes_cap = 16 << 20;
    options_.commit_interval_us = 2000;
    options_.staging_bytes = 2 << 20;
  }
  ~DiskStoreC() override { std::filesystem::remove_all(directory_); }

  quire_disk_store* Open() {
    quire_disk_store* store = nullptr;
    EXPECT_EQ(quire_disk_store_open(&options_, &store, &error_), QUIRE_OK) << Show(error_);
    return store;
  }

  std::string directory_;
  quire_disk_store_options options_ = Sized<quire_disk_store_options>();
  quire_error error_{};
};

TEST_F(DiskStoreC, ALaterLifeLoadsWhatAnEarlierOneWrote) {
  const auto prompt = cache::SomeTokens(5 * CWorld::kBlock + 3, 1);
  for (const bool first : {true, false}) {
    quire_disk_store* const store = Open();
    quire_cache_options options = SmallOptions();
    options.disk_store = store;
    const CWorld world(options);
    auto plan = world.Acquire(prompt);
    EXPECT_EQ(quire_plan_resident_tokens(plan.get()), 0);
    EXPECT_EQ(quire_plan_loadable_tokens(plan.get()), first ? 0 : 5 * CWorld::kBlock);
    EXPECT_EQ(quire_plan_reason(plan.get()), first ? QUIRE_NEVER_SEEN : QUIRE_NOT_LOADED);
    quire_plan* loaded = nullptr;
    ASSERT_EQ(quire_load(plan.release(), 0, &loaded, &error_), QUIRE_OK) << Show(error_);
    EXPECT_EQ(quire_plan_resident_tokens(loaded), first ? 0 : 5 * CWorld::kBlock);
    const auto sequence = MustMake<quire_sequence>([&](quire_sequence** out, quire_error* error) {
      return quire_open(loaded, nullptr, out, error);
    });
    world.Feed(*sequence, prompt);
    EXPECT_EQ(CWorld::Gathered(*sequence, 1, QUIRE_VALUE), world.Expected(prompt, 1, 1));
    ASSERT_EQ(quire_disk_store_flush(store, &error_), QUIRE_OK) << Show(error_);
    std::string text(4096, ' ');
    size_t length = 0;
    ASSERT_EQ(quire_disk_store_stats_json(store, text.data(), text.size(), &length, &error_),
              QUIRE_OK);
    EXPECT_NE(text.find("\"records\":5"), std::string::npos) << text;
    quire_disk_store_free(store);  // the cache still has it
  }
}

TEST_F(DiskStoreC, WhatIsExpectedIsReadAhead) {
  const auto prompt = cache::SomeTokens(5 * CWorld::kBlock + 3, 1);
  quire_disk_store* const store = Open();
  quire_cache_options options = SmallOptions();
  options.disk_store = store;
  {
    const CWorld before(options);
    before.Run(prompt);
    ASSERT_EQ(quire_disk_store_flush(store, &error_), QUIRE_OK) << Show(error_);
  }
  const CWorld world(options);
  auto request = Sized<quire_acquire_request>();
  request.identity = &world.identity;
  request.tokens = prompt.data();
  request.token_count = prompt.size();
  uint64_t tokens = 0;
  ASSERT_EQ(quire_prefetch(world.cache.get(), 0, &request, &tokens, &error_), QUIRE_OK)
      << Show(error_);
  EXPECT_EQ(tokens, 5 * CWorld::kBlock);
  while (quire_plan_resident_tokens(world.Acquire(prompt).get()) < tokens) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_EQ(quire_prefetch(world.cache.get(), 0, &request, &tokens, &error_), QUIRE_OK);
  EXPECT_EQ(tokens, 0);
  EXPECT_EQ(quire_prefetch(world.cache.get(), 7, &request, &tokens, &error_), QUIRE_NOT_FOUND);
  EXPECT_EQ(quire_prefetch(world.cache.get(), 0, &request, nullptr, &error_),
            QUIRE_INVALID_ARGUMENT);
  quire_disk_store_free(store);
}

TEST_F(DiskStoreC, WhatIsThereCanBeLookedAtAndMovedToTheStore) {
  const auto prompt = cache::SomeTokens(5 * CWorld::kBlock + 3, 1);
  quire_disk_store* const store = Open();
  quire_cache_options options = SmallOptions();
  options.disk_store = store;
  const CWorld world(options);
  world.Run(prompt);
  const auto text_of = [&](const std::function<quire_code(char*, size_t, size_t*)>& ask) {
    size_t length = 0;
    EXPECT_EQ(ask(nullptr, 0, &length), QUIRE_OK) << Show(error_);
    std::string text(length + 1, ' ');
    EXPECT_EQ(ask(text.data(), text.size(), &length), QUIRE_OK) << Show(error_);
    text.resize(length);
    return text;
  };
  const auto entries = [&](const uint32_t* tenant, uint64_t most) {
    return Json::parse(text_of([&](char* text, size_t bytes, size_t* length) {
      return quire_cache_entries_json(world.cache.get(), tenant, most, text, bytes, length,
                                      &error_);
    }));
  };
  const auto map = [&] {
    return text_of([&](char* text, size_t bytes, size_t* length) {
      return quire_cache_block_map(world.cache.get(), text, bytes, length, &error_);
    });
  };
  const Json all = entries(nullptr, UINT64_MAX);
  ASSERT_EQ(all.size(), 5);
  uint64_t roots = 0;
  for (const Json& entry : all) {
    roots += entry["parent_key"].is_null() ? 1 : 0;
    EXPECT_EQ(entry["key"].get<std::string>().size(), 16);
    EXPECT_TRUE(entry["in_memory"].get<bool>());
    EXPECT_EQ(entry["holders"], 0);
  }
  EXPECT_EQ(roots, 1);
  EXPECT_EQ(entries(nullptr, 2).size(), 2);
  const uint32_t none = 7;
  size_t length = 0;
  EXPECT_EQ(quire_cache_entries_json(world.cache.get(), &none, 1, nullptr, 0, &length, &error_),
            QUIRE_NOT_FOUND);
  EXPECT_NE(map().find('s'), std::string::npos) << map();
  const Json free = Json::parse(text_of([&](char* text, size_t bytes, size_t* size) {
    return quire_cache_free_json(world.cache.get(), text, bytes, size, &error_);
  }));
  EXPECT_EQ(free[0]["slots"], "sealed");
  EXPECT_EQ(free[0]["fragmentation"], 0.0);
  EXPECT_GT(free[0]["free_slots"], 0);

  auto request = Sized<quire_acquire_request>();
  request.identity = &world.identity;
  request.tokens = prompt.data();
  request.token_count = prompt.size();
  uint64_t blocks = 0;
  ASSERT_EQ(quire_demote(world.cache.get(), 0, &request, &blocks, &error_), QUIRE_OK)
      << Show(error_);
  EXPECT_EQ(blocks, 5);
  EXPECT_EQ(entries(nullptr, UINT64_MAX).size(), 0);
  EXPECT_EQ(quire_plan_resident_tokens(world.Acquire(prompt).get()), 0);
  EXPECT_EQ(quire_demote(world.cache.get(), 0, &request, nullptr, &error_), QUIRE_INVALID_ARGUMENT);
  quire_disk_store_free(store);
}

class TicketC : public DiskStoreC {
 protected:
  static constexpr uint64_t kBlock = CWorld::kBlock;

  // A store that has five blocks of the prompt, and a cache that has none.
  TicketC() {
    store_ = Open();
    cache_options_.disk_store = store_;
    {
      const CWorld before(cache_options_);
      auto sequence = before.Open(prompt_);
      before.Feed(*sequence, prompt_);
      EXPECT_EQ(quire_disk_store_flush(store_, &error_), QUIRE_OK) << Show(error_);
    }
    world_ = std::make_unique<CWorld>(cache_options_);
  }
  ~TicketC() override { quire_disk_store_free(store_); }

  Owned<quire_ticket> Begin(const quire_load_options& options) {
    auto plan = world_->Acquire(prompt_);
    // An earlier load may have brought them.
    EXPECT_EQ(quire_plan_resident_tokens(plan.get()) + quire_plan_loadable_tokens(plan.get()),
              5 * kBlock);
    return MustMake<quire_ticket>([&](quire_ticket** out, quire_error* error) {
      return quire_load_begin(plan.release(), &options, out, error);
    });
  }
  quire_load_progress Progress(const quire_ticket& ticket) {
    auto progress = Sized<quire_load_progress>();
    EXPECT_EQ(quire_ticket_progress(&ticket, &progress, &error_), QUIRE_OK) << Show(error_);
    return progress;
  }
  void ExpectItsValues(Owned<quire_plan> plan) {
    const auto sequence = MustMake<quire_sequence>([&](quire_sequence** out, quire_error* error) {
      return quire_open(plan.release(), nullptr, out, error);
    });
    world_->Feed(*sequence, prompt_);
    EXPECT_EQ(CWorld::Gathered(*sequence, 1, QUIRE_VALUE), world_->Expected(prompt_, 1, 1));
  }
  Owned<quire_plan> Take(Owned<quire_ticket> ticket) {
    return MustMake<quire_plan>([&](quire_plan** out, quire_error* error) {
      return quire_ticket_take(ticket.release(), out, error);
    });
  }

  const std::vector<TokenId> prompt_ = cache::SomeTokens(5 * kBlock + 3, 1);
  quire_cache_options cache_options_ = SmallOptions();
  quire_disk_store* store_ = nullptr;
  std::unique_ptr<CWorld> world_;
};

TEST_F(TicketC, ACallerNeedNotWait) {
  std::atomic<int> calls = 0;
  auto options = Sized<quire_load_options>();
  options.on_done = [](void* data) { ++*static_cast<std::atomic<int>*>(data); };
  options.done_data = &calls;
  auto ticket = Begin(options);
  ASSERT_EQ(quire_ticket_wait(ticket.get(), 60'000'000, &error_), QUIRE_OK) << Show(error_);
  const quire_load_progress progress = Progress(*ticket);
  EXPECT_EQ(progress.done, 1);
  EXPECT_EQ(progress.blocks, 5);
  EXPECT_EQ(progress.blocks_ready, 5);
  EXPECT_GT(progress.bytes, 0);
  auto plan = Take(std::move(ticket));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(quire_plan_resident_tokens(plan.get()), 5 * kBlock);
  ExpectItsValues(std::move(plan));
}

TEST_F(TicketC, TheFrontIsComputedWhileTheEndIsRead) {
  auto options = Sized<quire_load_options>();
  options.from_end = 1;
  auto ticket = Begin(options);
  const auto front = MustMake<quire_sequence>([&](quire_sequence** out, quire_error* error) {
    quire_plan* plan = nullptr;
    const quire_code code = quire_ticket_front(ticket.get(), 2 * kBlock, &plan, error);
    return code == QUIRE_OK ? quire_open(plan, nullptr, out, error) : code;
  });
  const std::vector<TokenId> first(prompt_.begin(), prompt_.begin() + 2 * kBlock);
  world_->Feed(*front, first);
  ASSERT_EQ(quire_ticket_meet(ticket.get(), 2 * kBlock, &error_), QUIRE_OK) << Show(error_);
  ASSERT_EQ(quire_ticket_meet(ticket.get(), kBlock, &error_), QUIRE_OK) << "less than before";
  EXPECT_LE(Progress(*ticket).meet_tokens, 5 * kBlock);
  auto plan = Take(std::move(ticket));
  EXPECT_EQ(quire_plan_resident_tokens(plan.get()), 5 * kBlock);
  ExpectItsValues(std::move(plan));
}

// Whether the caller sees the first layers before the last ones is the disk's to say.
TEST_F(TicketC, WhatFollowsIsComputedAsLayersCome) {
  auto options = Sized<quire_load_options>();
  options.by_layer = 2;
  auto ticket = Begin(options);
  quire_plan* arriving = nullptr;
  quire_code code = QUIRE_BUSY;
  while (code == QUIRE_BUSY && Progress(*ticket).done == 0) {
    code = quire_ticket_arriving(ticket.get(), &arriving, &error_);
  }
  if (code == QUIRE_OK) {
    EXPECT_EQ(quire_plan_resident_tokens(arriving), 5 * kBlock);
    const auto sequence = MustMake<quire_sequence>([&](quire_sequence** out, quire_error* error) {
      return quire_open(arriving, nullptr, out, error);
    });
    for (uint32_t layer = 0; layer < 2; ++layer) {
      EXPECT_EQ(quire_sequence_await_layer(sequence.get(), layer, 60'000'000, &error_), QUIRE_OK)
          << Show(error_);
    }
    world_->Feed(*sequence, prompt_);
    EXPECT_EQ(CWorld::Gathered(*sequence, 1, QUIRE_VALUE), world_->Expected(prompt_, 1, 1));
  } else {
    EXPECT_EQ(code, QUIRE_BUSY) << Show(error_);
  }
  ASSERT_EQ(quire_ticket_wait(ticket.get(), 60'000'000, &error_), QUIRE_OK) << Show(error_);
  EXPECT_EQ(Progress(*ticket).layers_ready, 2);
  EXPECT_EQ(quire_ticket_arriving(ticket.get(), &arriving, &error_), QUIRE_BUSY);
  auto plan = Take(std::move(ticket));
  EXPECT_EQ(quire_plan_resident_tokens(plan.get()), 5 * kBlock);
  ExpectItsValues(std::move(plan));
}

TEST_F(TicketC, WhatIsCancelledIsComputed) {
  auto options = Sized<quire_load_options>();
  {
    const auto dropped = Begin(options);
    EXPECT_LE(Progress(*dropped).blocks_ready, 5);
  }
  auto ticket = Begin(options);
  ASSERT_EQ(quire_ticket_cancel(ticket.get(), &error_), QUIRE_OK) << Show(error_);
  auto plan = Take(std::move(ticket));
  EXPECT_LE(quire_plan_resident_tokens(plan.get()), 5 * kBlock);
  ExpectItsValues(std::move(plan));
}

TEST_F(TicketC, MisuseIsRefused) {
  quire_ticket* made = nullptr;
  quire_plan* plan = nullptr;
  auto options = Sized<quire_load_options>();
  EXPECT_EQ(quire_load_begin(nullptr, &options, &made, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_load_begin(world_->Acquire(prompt_).release(), nullptr, nullptr, &error_),
            QUIRE_INVALID_ARGUMENT);
  const auto ticket = Begin(options);
  EXPECT_EQ(quire_ticket_front(ticket.get(), 1, &plan, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_ticket_meet(ticket.get(), 1, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_ticket_progress(ticket.get(), nullptr, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_ticket_arriving(ticket.get(), &plan, &error_), QUIRE_UNSUPPORTED);
  EXPECT_EQ(quire_ticket_arriving(ticket.get(), nullptr, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_ticket_arriving(nullptr, &plan, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_sequence_await_layer(nullptr, 0, 0, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_sequence_await_layer(world_->Open(prompt_).get(), 0, 0, &error_), QUIRE_OK);
  options.from_end = 1;
  options.by_layer = 2;
  EXPECT_EQ(quire_load_begin(world_->Acquire(prompt_).release(), &options, &made, &error_),
            QUIRE_INVALID_ARGUMENT);
  options.by_layer = 0;
  const auto from_end = Begin(options);
  EXPECT_EQ(quire_ticket_front(from_end.get(), 1, nullptr, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_ticket_progress(nullptr, nullptr, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_ticket_wait(nullptr, 0, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_ticket_front(nullptr, 1, &plan, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_ticket_meet(nullptr, 1, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_ticket_cancel(nullptr, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_ticket_take(nullptr, &plan, &error_), QUIRE_INVALID_ARGUMENT);
  quire_ticket_free(nullptr);
}

TEST_F(TicketC, StructsOfEverySize) {
  ReadsAtEverySize<quire_load_options>(Sized<quire_load_options>(), sizeof(quire_load_options),
                                       [&](const auto* asked, quire_error* failure) {
                                         quire_ticket* made = nullptr;
                                         const quire_code code =
                                             quire_load_begin(world_->Acquire(prompt_).release(),
                                                              asked, &made, failure);
                                         EXPECT_EQ(made != nullptr, code == QUIRE_OK);
                                         quire_ticket_free(made);
                                         return code;
                                       });
  const auto ticket = Begin(Sized<quire_load_options>());
  ASSERT_EQ(quire_ticket_wait(ticket.get(), 60'000'000, &error_), QUIRE_OK) << Show(error_);
  FillsAtEverySize<quire_load_progress>(
      sizeof(quire_load_progress), [&](auto* progress, quire_error* failure) {
        return quire_ticket_progress(ticket.get(), progress, failure);
      });
}

TEST_F(DiskStoreC, MemoryAloneIsAStoreToo) {
  options_.directory = nullptr;
  options_.warm_bytes = 4 << 20;
  options_.scrub_bytes_per_s = UINT64_MAX;
  quire_disk_store* const store = Open();
  quire_cache_options options = SmallOptions();
  options.disk_store = store;
  const auto prompt = cache::SomeTokens(5 * CWorld::kBlock + 3, 1);
  {
    const CWorld world(options);
    auto sequence = world.Open(prompt);
    world.Feed(*sequence, prompt);
    ASSERT_EQ(quire_disk_store_flush(store, &error_), QUIRE_OK) << Show(error_);
  }
  const CWorld world(options);
  EXPECT_EQ(quire_plan_loadable_tokens(world.Acquire(prompt).get()), 5 * CWorld::kBlock);
  quire_disk_store_free(store);
}

TEST_F(DiskStoreC, TheSecretStays) {
  std::vector<uint8_t> secret(32);
  std::vector<uint8_t> again(32);
  quire_disk_store* store = Open();
  ASSERT_EQ(quire_disk_store_secret(store, secret.data(), &error_), QUIRE_OK);
  quire_disk_store* second = nullptr;
  EXPECT_EQ(quire_disk_store_open(&options_, &second, &error_), QUIRE_BUSY);
  quire_disk_store_free(store);
  store = Open();
  ASSERT_EQ(quire_disk_store_secret(store, again.data(), &error_), QUIRE_OK);
  EXPECT_EQ(secret, again);
  quire_disk_store_free(store);
}

TEST_F(DiskStoreC, StructsOfEverySize) {
  ReadsAtEverySize<quire_disk_store_options>(
      options_, offsetof(quire_disk_store_options, warm_bytes),
      [&](const auto* asked, quire_error* failure) {
        quire_disk_store* made = nullptr;
        const quire_code code = quire_disk_store_open(asked, &made, failure);
        EXPECT_EQ(made != nullptr, code == QUIRE_OK);
        quire_disk_store_free(made);
        return code;
      });
}

TEST_F(DiskStoreC, AnEncryptedDirectoryNeedsItsKey) {
  const std::array<uint8_t, 32> key = {1, 2, 3};
  std::array<uint8_t, 32> secret{};
  options_.key = key.data();
  quire_disk_store* store = Open();
  ASSERT_EQ(quire_disk_store_secret(store, secret.data(), &error_), QUIRE_OK);
  quire_disk_store_free(store);
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/SECRET"));
  options_.key = nullptr;
  EXPECT_EQ(quire_disk_store_open(&options_, &store, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error_.message).find("it is encrypted"), std::string::npos);
  options_.keys_file = "/no/such/file";
  EXPECT_EQ(quire_disk_store_open(&options_, &store, &error_), QUIRE_NOT_FOUND);
  options_.keys_file = nullptr;
  options_.key = key.data();
  store = Open();
  std::array<uint8_t, 32> again{};
  ASSERT_EQ(quire_disk_store_secret(store, again.data(), &error_), QUIRE_OK);
  EXPECT_EQ(secret, again);
  quire_disk_store_free(store);
}

TEST_F(DiskStoreC, MisuseIsRefused) {
  quire_disk_store* store = nullptr;
  EXPECT_EQ(quire_disk_store_open(nullptr, &store, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_disk_store_open(&options_, nullptr, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_disk_store_flush(nullptr, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_disk_store_secret(nullptr, nullptr, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_disk_store_stats_json(nullptr, nullptr, 0, nullptr, &error_),
            QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_load(nullptr, 0, nullptr, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(quire_plan_loadable_tokens(nullptr), 0);
  options_.bytes_cap = 1;
  EXPECT_EQ(quire_disk_store_open(&options_, &store, &error_), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(store, nullptr);
  quire_disk_store_free(nullptr);
}

}  // namespace
}  // namespace quire::embed
