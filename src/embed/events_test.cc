// KV events of a cache of the C interface: they are told as long as the cache lives.
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "embed/test_util.h"
#include "events/zmq_socket.h"

namespace quire::embed {
namespace {

TEST(EventsC, AreToldWhileTheCacheLives) {
  const std::string endpoint = "ipc://@quire-embed-events-" + std::to_string(getpid());
  auto options = SmallOptions();
  options.events = endpoint.c_str();
  options.events_topic = "kv";
  const auto context = cache::Must(events::ZmqContext::Create());
  auto subscriber = cache::Must(events::ZmqSocket::Open(*context, ZMQ_SUB, 0));
  cache::Must(subscriber.Set(ZMQ_SUBSCRIBE, "kv"));
  cache::Must(subscriber.Connect(endpoint));
  {
    const CWorld world(options);
    ASSERT_TRUE(subscriber.Receive(10'000));
    // A sequence keeps the cache, and its events.
    const auto sequence = world.Run(cache::SomeTokens(CWorld::kBlock + 3, 1));
    std::string told;
    while (told.find("BlockStored") == std::string::npos) {
      const auto message = subscriber.Receive(10'000);
      ASSERT_TRUE(message);
      told = (*message)[2];
    }
  }
  std::string last;
  while (const auto message = subscriber.Receive(500)) last = (*message)[2];
  EXPECT_NE(last.find("AllBlocksCleared"), std::string::npos);
}

TEST(EventsC, AnEndpointThatCannotBeIsRefused) {
  auto options = SmallOptions();
  options.events = "5557";
  quire_error error{};
  quire_cache* made = nullptr;
  EXPECT_EQ(quire_cache_create(&options, &made, &error), QUIRE_INVALID_ARGUMENT);
  EXPECT_EQ(made, nullptr);
  EXPECT_NE(std::string_view(error.message).find("5557"), std::string_view::npos);
}

}  // namespace
}  // namespace quire::embed
