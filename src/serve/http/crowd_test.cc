#include "serve/http/crowd.h"

#include <gtest/gtest.h>

#include <vector>

#include "serve/http/connection.h"

namespace quire::serve::http {
namespace {

using Verdict = Crowd::Verdict;

class FakeConnection final : public Connection {
 public:
  boost::asio::awaitable<void> Run() override { co_return; }
  void Close(bool) override { closed = true; }
  bool MayBeDropped() const override { return idle; }
  void Drop() override { dropped = true; }

  bool idle = true;
  bool closed = false;
  bool dropped = false;
};

class CrowdTest : public testing::Test {
 protected:
  FakeConnection& Add(const std::string& address, bool idle) {
    auto connection = std::make_shared<FakeConnection>();
    connection->idle = idle;
    crowd_.Add(connection, address);
    all_.push_back(connection);
    return *connection;
  }

  Crowd crowd_{4, 3};
  std::vector<std::shared_ptr<FakeConnection>> all_;
};

TEST_F(CrowdTest, TheFirstIdleOneMakesRoom) {
  const FakeConnection& busy = Add("a", false);
  const FakeConnection& first = Add("b", true);
  const FakeConnection& second = Add("c", true);
  EXPECT_EQ(crowd_.MakeRoom("d"), Verdict::kLetIn);
  Add("d", false);
  EXPECT_EQ(crowd_.MakeRoom("e"), Verdict::kReplaces);
  EXPECT_TRUE(first.dropped);
  EXPECT_FALSE(busy.dropped || second.dropped);
  Add("e", false);
  EXPECT_EQ(crowd_.MakeRoom("e"), Verdict::kReplaces) << "the dropped one counts no more";
  EXPECT_TRUE(second.dropped);
  Add("e", false);
  EXPECT_EQ(crowd_.MakeRoom("f"), Verdict::kFull);
  crowd_.Remove(all_.back());
  EXPECT_EQ(crowd_.MakeRoom("f"), Verdict::kLetIn);
  crowd_.CloseAll(/*cancel=*/false);
  EXPECT_TRUE(busy.closed);
}

TEST_F(CrowdTest, AnAddressMakesRoomForItself) {
  const FakeConnection& other = Add("b", true);
  Add("a", false);
  const FakeConnection& idle = Add("a", true);
  Add("a", false);
  EXPECT_EQ(crowd_.MakeRoom("a"), Verdict::kReplaces);
  EXPECT_TRUE(idle.dropped);
  EXPECT_FALSE(other.dropped);
  Add("a", false);
  EXPECT_EQ(crowd_.MakeRoom("a"), Verdict::kAddressFull);
  EXPECT_EQ(crowd_.MakeRoom("c"), Verdict::kReplaces);
  EXPECT_TRUE(other.dropped);
}

}  // namespace
}  // namespace quire::serve::http
