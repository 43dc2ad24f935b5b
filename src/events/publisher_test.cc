// The publisher over real sockets of ZeroMQ, and what cannot be bound.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "events/zmq_socket.h"
#include "quire/events.h"

namespace quire::events {
namespace {

constexpr int kPatienceMs = 10'000;

// Has one block, from the beginning on.
class OneBlockFeed final : public ChangeFeed {
 public:
  uint32_t block_tokens() const override { return 2; }
  bool Take(BlockChanges& changes) override {
    changes = {};
    if (!told_) changes = Block();
    told_ = true;
    return false;
  }
  void ForEachTold(const std::function<void(const BlockChanges&)>& visit) override {
    if (told_) visit(Block());
  }
  void InStore(std::span<const Digest>, std::span<bool>) override {}

 private:
  static BlockChanges Block() {
    BlockChanges changes{.blocks = {{}}, .tokens = {5, 6}};
    changes.blocks[0].tokens = changes.tokens;
    return changes;
  }
  bool told_ = false;
};

template <typename T>
T MustBe(Result<T> result) {
  EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().message);
  return *std::move(result);
}

std::string Name(const char* what) {
  return "ipc://@quire-events-test-" + std::to_string(getpid()) + what;
}

uint64_t NumberOfBytes(const std::string& bytes) {
  uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

TEST(Publisher, PublishesRepeatsAndEnds) {
  OneBlockFeed feed;
  const auto context = MustBe(ZmqContext::Create());
  // The publisher goes to an endpoint without a '*'; so does a subscriber of vLLM's expect it.
  ZmqSocket subscriber = MustBe(ZmqSocket::Open(*context, ZMQ_SUB, 0));
  ASSERT_TRUE(subscriber.Set(ZMQ_SUBSCRIBE, "kv"));
  std::string endpoint;
  for (int port = 20'000 + getpid() % 20'000; endpoint.empty(); ++port) {
    const std::string free = "tcp://127.0.0.1:" + std::to_string(port);
    if (subscriber.Bind(free)) endpoint = free;
  }
  auto publisher = MustBe(EventPublisher::Start(
      feed, {.endpoint = endpoint, .replay_endpoint = Name("replay"), .topic = "kv@model"}));
  const auto heard =
      subscriber.Receive(kPatienceMs);  // at the latest the message of a quiet second
  ASSERT_TRUE(heard);
  ASSERT_EQ(heard->size(), 3u);
  EXPECT_EQ((*heard)[0], "kv@model");
  const uint64_t number = NumberOfBytes((*heard)[1]);

  const auto ask = [&](const std::string& from) {
    ZmqSocket asking = MustBe(ZmqSocket::Open(*context, ZMQ_DEALER, 0));
    EXPECT_TRUE(asking.Connect(Name("replay")));
    EXPECT_TRUE(asking.Send({"", from}));
    std::vector<std::string> numbers;
    while (const auto answer = asking.Receive(kPatienceMs)) {
      EXPECT_EQ(answer->size(), 3u);
      numbers.push_back((*answer)[1]);
      if ((*answer)[1] == std::string(8, '\xff')) break;
    }
    return numbers;
  };
  const auto all = ask(std::string(8, '\0'));
  ASSERT_EQ(all.size(), 3u) << "all is cleared, the block, the end";
  EXPECT_EQ(all[0], all[1]) << "a snapshot has one number";
  EXPECT_GE(NumberOfBytes(all[0]), number);
  const auto repeated = ask((*heard)[1]);
  ASSERT_GE(repeated.size(), 2u);
  EXPECT_EQ(repeated[0], (*heard)[1]);
  EXPECT_EQ(publisher->stats().stored, 1u);

  // What is no question gets no answer, and does no harm.
  ZmqSocket bad = MustBe(ZmqSocket::Open(*context, ZMQ_DEALER, 0));
  ASSERT_TRUE(bad.Connect(Name("replay")));
  EXPECT_TRUE(bad.Send({"", "123"}));
  EXPECT_TRUE(bad.Send({"no frame before it"}));
  EXPECT_FALSE(bad.Receive(100));
  EXPECT_EQ(ask(std::string(8, '\0')).size(), 3u);

  publisher.reset();
  bool cleared = false;
  while (const auto message = subscriber.Receive(cleared ? 500 : kPatienceMs)) {
    EXPECT_FALSE(cleared) << "it is the last one";
    ASSERT_EQ(message->size(), 3u);
    cleared = (*message)[2].find("AllBlocksCleared") != std::string::npos;
  }
  EXPECT_TRUE(cleared);
}

TEST(Publisher, RefusesWhatCannotBeBound) {
  OneBlockFeed feed;
  const auto refused = [&](const EventOptions& options, ErrorCode code, const char* names) {
    const auto started = EventPublisher::Start(feed, options);
    ASSERT_FALSE(started.has_value());
    EXPECT_EQ(started.error().code, code) << started.error().message;
    EXPECT_NE(started.error().message.find(names), std::string::npos) << started.error().message;
  };
  refused({}, ErrorCode::kInvalidArgument, "no endpoint");
  refused({.endpoint = "5557"}, ErrorCode::kInvalidArgument, "'5557'");
  refused({.endpoint = "http://*:1"}, ErrorCode::kInvalidArgument, "tcp://*:5557");
  const auto first =
      MustBe(EventPublisher::Start(feed, {.endpoint = Name("a"), .replay_endpoint = Name("b")}));
  refused({.endpoint = Name("c"), .replay_endpoint = Name("b")}, ErrorCode::kIo, "in use");
  refused({.endpoint = "ipc:///no/such/folder/x"}, ErrorCode::kIo, "/no/such/folder/x");
}

}  // namespace
}  // namespace quire::events
