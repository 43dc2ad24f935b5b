// A subscriber that misses messages, gets them late, twice or not at all, and whose publisher ends
// and starts again: its index ends equal to what the cache has.
#include "events/event_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/json.h"
#include "base/prng.h"

namespace quire::events {
namespace {

constexpr uint32_t kTokens = 4;  // of a block

using Path = std::vector<TokenId>;  // whole blocks

Digest KeyOf(const Path& path) {
  Digest key{};
  uint64_t hash = path.size() + 1;
  for (const TokenId token : path)
    hash = (hash ^ static_cast<uint64_t>(token)) * 0x9e3779b97f4a7c15;
  for (size_t i = 0; i < 8; ++i) key[i] = static_cast<uint8_t>(hash >> (8 * i));
  return key;
}

// A cache as its follower sees it: paths in memory, and paths that a store has.
class FakeFeed final : public ChangeFeed {
 public:
  uint32_t block_tokens() const override { return kTokens; }

  bool Take(BlockChanges& changes) override {
    changes = {};
    changes.tokens.reserve(kTokens * (memory.size() + 1));
    size_t left = 3;
    for (; !gone_.empty() && left > 0; --left) {
      changes.blocks.push_back({.kind = BlockChangeKind::kRemoved, .key = KeyOf(gone_.back())});
      gone_.pop_back();
    }
    for (const Path& path : memory) {  // a path is ordered after its beginnings
      if (left == 0) return true;
      if (!told_.insert(path).second) continue;
      AddStored(path, changes);
      --left;
    }
    for (const Path& path : std::exchange(durable, {})) {
      changes.blocks.push_back({.kind = BlockChangeKind::kDurable, .key = KeyOf(path)});
    }
    if (fails) throw std::bad_alloc();
    return left == 0;
  }
  void ForEachTold(const std::function<void(const BlockChanges&)>& visit) override {
    for (const Path& path : told_) {
      BlockChanges one;
      one.tokens.reserve(kTokens);
      AddStored(path, one);
      visit(one);
    }
  }
  void InStore(std::span<const Digest> keys, std::span<bool> out) override {
    for (size_t i = 0; i < keys.size(); ++i) {
      out[i] = std::ranges::any_of(store, [&](const Path& path) { return KeyOf(path) == keys[i]; });
    }
  }

  // With all that continues it.
  void Remove(const Path& path) {
    const auto continues = [&](const Path& other) {
      return other.size() >= path.size() && std::equal(path.begin(), path.end(), other.begin());
    };
    std::ranges::copy_if(told_, std::back_inserter(gone_), continues);
    std::erase_if(told_, continues);
    std::erase_if(memory, continues);
  }

  std::set<Path> memory;
  std::set<Path> store;
  std::vector<Path> durable;
  bool fails = false;

 private:
  static void AddStored(const Path& path, BlockChanges& changes) {
    const size_t begin = changes.tokens.size();
    changes.tokens.insert(changes.tokens.end(), path.end() - kTokens, path.end());
    BlockChange change{.key = KeyOf(path)};
    if (path.size() > kTokens) change.parent_key = KeyOf({path.begin(), path.end() - kTokens});
    change.tokens = std::span(changes.tokens).subspan(begin);
    changes.blocks.push_back(change);
  }

  std::set<Path> told_;
  std::vector<Path> gone_;
};

struct Message {
  uint64_t number = 0;
  std::string payload;
};

// The index of a router (docs/events.md, "What a subscriber does").
class Subscriber {
 public:
  // Asks for the messages from a number on. False: the answer was cut off.
  using Ask = std::function<bool(uint64_t from, const EventStream::Sink& sink)>;

  explicit Subscriber(Ask ask) : ask_(std::move(ask)) {}

  void Receive(const Message& message) {
    if (!last_ || message.number != *last_ + 1) return Repair();
    Apply(message.payload);
    last_ = message.number;
  }
  void Repair() {
    const auto take = [this](uint64_t number, std::string_view payload) {
      if (Clears(payload)) {
        last_.reset();  // until it is whole
        snapshot_ = number;
      } else if (snapshot_ ? number != *snapshot_ && number != *snapshot_ + 1
                           : number != *last_ + 1) {
        ADD_FAILURE() << "an answer has a gap: " << number;
      }
      Apply(payload);
      (snapshot_ ? snapshot_ : last_) = number;
      return true;
    };
    const bool whole = ask_(last_ ? *last_ + 1 : 0, take);
    if (whole && snapshot_) last_ = snapshot_;
    snapshot_.reset();
  }

  std::set<Path> Memory() const {
    std::set<Path> paths;
    for (const auto& [hash, block] : memory_) {
      Path path = block.tokens;
      for (auto parent = block.parent; parent;) {
        const auto known = memory_.find(*parent);
        EXPECT_NE(known, memory_.end()) << "a parent is missing";
        if (known == memory_.end()) break;
        path.insert(path.begin(), known->second.tokens.begin(), known->second.tokens.end());
        parent = known->second.parent;
      }
      paths.insert(path);
    }
    EXPECT_EQ(paths.size(), memory_.size());
    return paths;
  }
  size_t stored() const { return store_.size(); }

 private:
  struct Block {
    std::optional<uint64_t> parent;
    Path tokens;
  };

  static Json Parse(std::string_view payload) {
    const Json parsed = Json::from_msgpack(payload);
    EXPECT_EQ(parsed.size(), 3u);
    EXPECT_TRUE(parsed[0].is_number_float());
    EXPECT_EQ(parsed[2], 0);
    return parsed[1];
  }
  static bool Clears(std::string_view payload) {
    const Json events = Parse(payload);
    return !events.empty() && events[0]["type"] == "AllBlocksCleared";
  }
  void Apply(std::string_view payload) {
    for (const Json& event : Parse(payload)) {
      const std::string type = event["type"];
      if (type == "AllBlocksCleared") {
        memory_.clear();
        store_.clear();
      } else if (event["medium"] == "STORAGE") {
        for (const uint64_t hash : event["block_hashes"]) {
          type == "BlockStored" ? void(store_.insert(hash)) : void(store_.erase(hash));
        }
      } else if (type == "BlockRemoved") {
        for (const uint64_t hash : event["block_hashes"]) memory_.erase(hash);
      } else {
        ASSERT_EQ(type, "BlockStored");
        ASSERT_EQ(event["block_size"], kTokens);
        std::optional<uint64_t> parent;
        if (!event["parent_block_hash"].is_null()) parent = event["parent_block_hash"];
        Path tokens = event["token_ids"];
        ASSERT_EQ(tokens.size(), kTokens * event["block_hashes"].size());
        for (const uint64_t hash : event["block_hashes"]) {
          ASSERT_TRUE(!parent || memory_.contains(*parent)) << "a block before its parent";
          memory_[hash] = {.parent = parent, .tokens = {tokens.begin(), tokens.begin() + kTokens}};
          tokens.erase(tokens.begin(), tokens.begin() + kTokens);
          parent = hash;
        }
      }
    }
  }

  const Ask ask_;
  std::optional<uint64_t> last_;      // the last number that it knows all up to
  std::optional<uint64_t> snapshot_;  // of an answer under way
  std::map<uint64_t, Block> memory_;
  std::set<uint64_t> store_;
};

class World {
 public:
  explicit World(uint64_t seed) : prng_(seed), log_messages_(prng_.NextBelow(12)) { Start(); }

  void Step() {
    switch (prng_.NextBelow(12)) {
      case 0:
      case 1:
      case 2: Add(); break;
      case 3: Remove(); break;
      case 4: Store(); break;
      case 5: now_us_ += prng_.NextBelow(2'000'000); break;
      case 6: Deliver(); break;
      case 7:
        if (prng_.NextChance(10)) Start();  // the process ended
        break;
      case 8:
        if (!network_.empty()) network_.erase(network_.begin() + Some(network_.size()));  // lost
        break;
      case 9:
        if (network_.size() > 1) std::swap(network_.front(), network_.back());
        break;
      case 10:
        if (!network_.empty()) network_.push_back(network_[Some(network_.size())]);  // twice
        break;
      default: Turn(prng_.NextChance(20));
    }
  }

  void Compare() {
    while (Turn(false)) {
    }
    while (!network_.empty()) Deliver();
    cuts_ = false;
    now_us_ += 2'000'000;
    Turn(false);
    network_.erase(network_.begin(), network_.end() - 1);
    Deliver();
    Subscriber late(subscriber_ask());
    late.Repair();
    ASSERT_EQ(subscriber_.Memory(), feed_->memory);
    ASSERT_EQ(late.Memory(), feed_->memory);
    ASSERT_EQ(subscriber_.stored(), late.stored());
    std::set<Path> told;
    std::ranges::copy_if(told_durable_, std::inserter(told, told.end()),
                         [&](const Path& path) { return feed_->store.contains(path); });
    ASSERT_EQ(late.stored(), told.size());
    cuts_ = true;
  }

 private:
  Subscriber::Ask subscriber_ask() {
    return [this](uint64_t from, const EventStream::Sink& sink) {
      return stream_->Replay(from, [&](uint64_t number, std::string_view payload) {
        if (cuts_ && prng_.NextChance(30)) return false;
        return sink(number, payload);
      });
    };
  }
  ptrdiff_t Some(size_t count) { return static_cast<ptrdiff_t>(prng_.NextBelow(count)); }

  // A new process: memory is empty, and the store is what it was but untold.
  void Start() {
    now_us_ += 100'000;
    auto feed = std::make_unique<FakeFeed>();
    if (feed_ != nullptr) feed->store = feed_->store;
    stream_ = std::make_unique<EventStream>(
        *feed,
        StreamOptions{.first_number = now_us_,
                      .log_messages = log_messages_,
                      .unix_us = [this] { return now_us_; }},
        [this](uint64_t number, std::string_view payload) {
          network_.push_back({.number = number, .payload = std::string(payload)});
          return true;
        });
    feed_ = std::move(feed);
    told_durable_.clear();
    stream_->Begin();
  }
  void Add() {
    Path path;
    if (!feed_->memory.empty() && prng_.NextChance(2)) {
      path = *std::next(feed_->memory.begin(), Some(feed_->memory.size()));
    }
    path.insert(path.end(), kTokens, static_cast<TokenId>(prng_.NextBelow(3)));
    feed_->memory.insert(path);
  }
  void Remove() {
    if (feed_->memory.empty()) return;
    const Path path = *std::next(feed_->memory.begin(), Some(feed_->memory.size()));
    feed_->Remove(path);
  }
  void Store() {
    if (!feed_->store.empty() && prng_.NextChance(3)) {
      feed_->store.erase(std::next(feed_->store.begin(), Some(feed_->store.size())));
    } else if (!feed_->memory.empty()) {
      const Path path = *std::next(feed_->memory.begin(), Some(feed_->memory.size()));
      feed_->store.insert(path);
      feed_->durable.push_back(path);
    }
  }
  bool Turn(bool fails) {
    feed_->fails = fails && feed_->durable.empty();  // what the store got is not told again
    for (const Path& path : feed_->durable) {
      if (feed_->store.contains(path)) told_durable_.insert(path);
    }
    try {
      return stream_->Turn();
    } catch (const std::bad_alloc&) {
      stream_->Skip();
      return true;
    }
  }
  void Deliver() {
    if (network_.empty()) return;
    const Message message = network_.front();
    network_.pop_front();
    subscriber_.Receive(message);
  }

  Prng prng_;
  const uint64_t log_messages_;
  uint64_t now_us_ = 1'000'000;
  bool cuts_ = true;  // whether answers are cut off
  std::unique_ptr<FakeFeed> feed_;
  std::set<Path> told_durable_;
  std::unique_ptr<EventStream> stream_;
  std::deque<Message> network_;
  Subscriber subscriber_{subscriber_ask()};
};

TEST(EventStreamProp, ASubscribersIndexEndsEqualToTheCache) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    for (int i = 0; i < 200; ++i) {
      world.Step();
      if (i % 50 == 49) world.Compare();
      if (testing::Test::HasFailure()) return;
    }
  }
}

class OneStream {
 public:
  explicit OneStream(uint64_t log_messages)
      : stream_(feed_,
                {.first_number = 100,
                 .log_messages = log_messages,
                 .unix_us = [this] { return now_us_; }},
                [this](uint64_t number, std::string_view payload) {
                  sent_.push_back({.number = number, .payload = std::string(payload)});
                  return true;
                }) {
    stream_.Begin();
  }

  std::vector<Json> Events(size_t message) const {
    return Json::from_msgpack(sent_[message].payload)[1];
  }
  std::vector<uint64_t> Replayed(uint64_t from) {
    std::vector<uint64_t> numbers;
    stream_.Replay(from, [&](uint64_t number, std::string_view) {
      numbers.push_back(number);
      return true;
    });
    return numbers;
  }

  FakeFeed feed_;
  uint64_t now_us_ = 5'000'000;
  std::vector<Message> sent_;
  EventStream stream_;
};

TEST(EventStream, AChainIsOneEventAsVllmHasIt) {
  OneStream one(10);
  one.feed_.memory = {{1, 1, 1, 1}, {1, 1, 1, 1, 2, 2, 2, 2}};
  one.stream_.Turn();
  ASSERT_EQ(one.sent_.size(), 2u);
  EXPECT_EQ(one.sent_[0].number, 100u);
  EXPECT_EQ(one.Events(0), (std::vector<Json>{{{"type", "AllBlocksCleared"}}}));
  EXPECT_EQ(one.sent_[1].number, 101u);
  const auto events = one.Events(1);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["block_hashes"].size(), 2u);
  EXPECT_EQ(events[0]["token_ids"], (Json{1, 1, 1, 1, 2, 2, 2, 2}));
  EXPECT_EQ(events[0]["medium"], "GPU");
  for (const char* const none : {"parent_block_hash", "lora_id", "lora_name"}) {
    EXPECT_TRUE(events[0].at(none).is_null()) << none;
  }
  EXPECT_EQ(Json::from_msgpack(one.sent_[1].payload)[0], 5.0);
}

TEST(EventStream, AHashDoesNotConfirmAGuess) {
  OneStream one(10);
  OneStream other(10);
  for (OneStream* const stream : {&one, &other}) {
    stream->feed_.memory = {{1, 1, 1, 1}};
    stream->stream_.Turn();
  }
  EXPECT_NE(one.Events(1)[0]["block_hashes"], other.Events(1)[0]["block_hashes"]);
}

TEST(EventStream, RepeatsWhatItHasAndElseSendsASnapshot) {
  OneStream one(3);
  for (TokenId i = 0; i < 5; ++i) {
    one.feed_.memory.insert(Path(kTokens, i));
    one.stream_.Turn();
  }
  EXPECT_EQ(one.Replayed(104), (std::vector<uint64_t>{104, 105}));
  EXPECT_EQ(one.Replayed(106), std::vector<uint64_t>());
  EXPECT_EQ(one.stream_.stats().snapshots, 0u);
  for (const uint64_t unknown : {0, 102, 107}) {
    EXPECT_EQ(one.Replayed(unknown), std::vector<uint64_t>(6, 105)) << unknown;
  }
  EXPECT_EQ(one.stream_.stats().snapshots, 3u);
  EXPECT_EQ(one.stream_.stats().replays, 5u);
}

TEST(EventStream, IsNeverQuietForLong) {
  OneStream one(10);
  for (int i = 0; i < 300; ++i) {
    one.now_us_ += 10'000;
    one.stream_.Turn();
  }
  EXPECT_EQ(one.sent_.size(), 4u);
  EXPECT_TRUE(one.Events(3).empty());
  one.stream_.End();
  EXPECT_EQ(one.Events(4)[0]["type"], "AllBlocksCleared");
}

TEST(EventStream, KeepsNoMoreThanItsLimits) {
  EventLog log(7, {.messages = 100, .bytes = 10});
  EXPECT_TRUE(log.Has(7));
  EXPECT_FALSE(log.Has(6));
  log.Add("1234");
  log.Add("5678");
  log.Add("90ab");
  EXPECT_FALSE(log.Has(7));
  EXPECT_TRUE(log.Has(8));
  EXPECT_EQ(log.payload(9), "90ab");
  log.Add("a payload that is longer than all of it");
  EXPECT_TRUE(log.Has(11));
  EXPECT_FALSE(log.Has(10));
  log.Skip();
  EXPECT_FALSE(log.Has(11));
  EXPECT_EQ(log.next(), 12u);
}

}  // namespace
}  // namespace quire::events
