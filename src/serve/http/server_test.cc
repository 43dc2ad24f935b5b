// Connections to a real server in this process, for the sanitizers above all; tests/e2e has more.
#include "serve/http/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <csignal>
#include <thread>
#include <vector>

#include "serve/http/test_service.h"

namespace quire::serve::http {
namespace {

namespace asio = boost::asio;

class ServerTest : public WithService {
 protected:
  void Serve(ServerOptions options = {}) {
    Make();
    options.listen = "127.0.0.1:0";
    log_ = AccessLog::Open("").value();
    server_ = Server::Create(*service_, *log_, options).value();
    thread_ = std::thread([this] { server_->Run(); });
  }
  void StopAndJoin() {
    server_->Stop();
    thread_.join();
  }
  void TearDown() override {
    if (thread_.joinable()) StopAndJoin();
  }

  asio::ip::tcp::socket Connect() {
    asio::ip::tcp::socket socket(io_);
    socket.connect({asio::ip::address_v4::loopback(), server_->port()});
    return socket;
  }
  /// Sends a text and reads until the server closes.
  std::string Exchange(const std::string& text) {
    asio::ip::tcp::socket socket = Connect();
    boost::system::error_code error;
    asio::write(socket, asio::buffer(text), error);
    std::string answer;
    asio::read(socket, asio::dynamic_buffer(answer), error);
    return answer;
  }
  static std::string Call(const std::string& body) {
    return "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
           "Content-Type: application/json\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  static std::string Prompt(int number, int tokens, bool stream) {
    return R"({"prompt": "It is a truth universally acknowledged, number )" +
           std::to_string(number % 3) + R"(", "max_tokens": )" + std::to_string(tokens) +
           (stream ? R"(, "stream": true})" : "}");
  }

  asio::io_context io_;
  std::unique_ptr<AccessLog> log_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

// A supervisor may change its mind as soon as the port is known.
TEST_F(ServerTest, ASignalBeforeRunStopsIt) {
  Make();
  log_ = AccessLog::Open("").value();
  server_ = Server::Create(*service_, *log_, {.listen = "127.0.0.1:0"}).value();
  ASSERT_EQ(std::raise(SIGTERM), 0);
  server_->Run();
}

TEST_F(ServerTest, ManyClientsAtOnceGetTheAnswersOfOne) {
  hot_bytes_ = 1 << 20;  // far below what they need together
  Serve();
  const auto body_of = [](const std::string& answer) {
    const std::string body = answer.substr(std::min(answer.size(), answer.find("\r\n\r\n") + 4));
    const auto json = OrderedJson::parse(body, nullptr, false);
    return json.is_discarded() ? answer : json["choices"].dump();
  };
  std::vector<std::string> alone;
  for (int i = 0; i < 3; ++i) alone.push_back(body_of(Exchange(Call(Prompt(i, 60, false)))));
  std::vector<std::thread> clients;
  std::atomic<int> streamed = 0;
  for (int client = 0; client < 8; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < 4; ++i) {
        if ((client + i) % 3 == 0) {
          const std::string answer = Exchange(Call(Prompt(i, 60, true)));
          EXPECT_THAT(answer, testing::HasSubstr("[DONE]"));
          ++streamed;
        } else {
          EXPECT_EQ(body_of(Exchange(Call(Prompt(i, 60, false)))),
                    alone[static_cast<size_t>(i % 3)]);
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_GT(streamed, 0);
  EXPECT_EQ(cache_->stats().sequences, 0u);
}

TEST_F(ServerTest, ClientsThatLeaveLeaveNothingBehind) {
  Serve();
  for (int i = 0; i < 20; ++i) {
    asio::ip::tcp::socket socket = Connect();
    asio::write(socket, asio::buffer(Call(Prompt(i, 3000, i % 2 == 0))));
    if (i % 4 == 0) {
      std::array<char, 16> some;
      asio::read(socket, asio::buffer(some));
    }
  }
  StopAndJoin();  // waits for what the engine still has
  EXPECT_EQ(cache_->stats().sequences, 0u);
}

TEST_F(ServerTest, StoppingTwiceEndsWhatIsUnderWayWithAnError) {
  Serve({.drain_ms = 600'000});
  std::atomic<int> whole = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&, i] {
      const std::string answer = Exchange(Call(Prompt(i, 4000, true)));
      if (answer.find("[DONE]") != std::string::npos) {
        ++whole;
      } else {
        EXPECT_THAT(answer, testing::HasSubstr("shutting down"));
      }
    });
  }
  while (driver_->stats().running + static_cast<uint32_t>(whole) < clients.size()) {
    std::this_thread::yield();
  }
  server_->Stop();
  StopAndJoin();
  for (std::thread& client : clients) client.join();
  EXPECT_LT(whole, 4);
}

TEST_F(ServerTest, TooSlowAndTooLargeHaveTheirStatus) {
  Serve({.body_bytes_max = 100, .header_ms = 500, .body_ms = 500});
  EXPECT_THAT(Exchange("GET / HT"), testing::StartsWith("HTTP/1.1 408"));
  EXPECT_THAT(Exchange("POST /v1/tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                       "application/json\r\nContent-Length: 50\r\n\r\nabc"),
              testing::StartsWith("HTTP/1.1 408"));
  EXPECT_THAT(Exchange("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\n\r\n"),
              testing::StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(Exchange("nonsense\r\n\r\n"), testing::StartsWith("HTTP/1.1 400"));
}

TEST_F(ServerTest, ARequestsNameIsSaidAgainIfItIsHarmless) {
  Serve();
  const auto has_name = [&](const std::string& name) {
    const std::string answer = Exchange(
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Request-Id: " + name +
        "\r\n\r\n");
    return answer.find("x-request-id: " + name + "\r\n") != std::string::npos;
  };
  EXPECT_TRUE(has_name("09azAZ-_.:/+="));
  EXPECT_TRUE(has_name(std::string(128, 'a')));
  EXPECT_FALSE(has_name(std::string(129, 'a')));
  for (const char* const name : {"a b", "a;b", "a,b", "a@b", "a[b", "a`b", "a{b"}) {
    EXPECT_FALSE(has_name(name)) << name;
  }
}

TEST_F(ServerTest, AnIdleServerStopsAtOnce) {
  Serve();
  Exchange("GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  const auto begin = std::chrono::steady_clock::now();
  StopAndJoin();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(ParseAddress, KnowsHostsAndPorts) {
  EXPECT_EQ(ParseAddress("127.0.0.1:80")->port, 80);
  EXPECT_EQ(ParseAddress("[::1]:8080")->host, "::1");
  for (const char* const bad : {"", ":", ":80", "a:", "a:-1", "a:65536", "a:8x", "[]:1"}) {
    EXPECT_FALSE(ParseAddress(bad).has_value()) << bad;
  }
}

}  // namespace
}  // namespace quire::serve::http
