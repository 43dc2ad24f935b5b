// Packets between two ends, descriptors with them, names in the file system; memory in common.
#include "env/unix_socket.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "env/shared_memory.h"

namespace quire {
namespace {

using Packet = std::vector<std::byte>;

class UnixSocketTest : public testing::Test {
 protected:
  UnixSocketTest() {
    std::string name = (std::filesystem::temp_directory_path() / "quire_socket_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    path_ = folder_ + "/socket";
  }
  ~UnixSocketTest() override { std::filesystem::remove_all(folder_); }

  void Connect() {
    auto listener = UnixListener::Listen(path_, {});
    ASSERT_TRUE(listener) << listener.error().message;
    listener_ = std::move(*listener);
    EXPECT_FALSE(listener_->Accept());
    auto client = UnixSocket::Connect(path_);
    ASSERT_TRUE(client) << client.error().message;
    client_ = std::move(*client);
    auto server = listener_->Accept();
    ASSERT_TRUE(server);
    server_ = std::move(*server);
  }

  std::string folder_;
  std::string path_;
  std::unique_ptr<UnixListener> listener_;
  UnixSocket client_{Descriptor()};
  UnixSocket server_{Descriptor()};
};

TEST_F(UnixSocketTest, PacketsArriveWholeAndInOrder) {
  Connect();
  Packet into(100);
  EXPECT_FALSE(*server_.Receive(into));
  EXPECT_FALSE(server_.AwaitPacket(0));
  for (const size_t bytes : {1, 100, 7}) ASSERT_TRUE(*client_.Send(Packet(bytes, std::byte{5})));
  EXPECT_TRUE(server_.AwaitPacket(1'000'000));
  for (const size_t bytes : {1, 100, 7}) EXPECT_EQ((*server_.Receive(into))->bytes, bytes);
  ASSERT_TRUE(*client_.Send(Packet(101)));
  EXPECT_EQ(server_.Receive(into).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(server_.peer().pid, ::getpid());
  EXPECT_EQ(server_.peer().uid, ::getuid());
}

TEST_F(UnixSocketTest, ASocketThatIsFullSaysSoAndOneThatIsGoneFails) {
  Connect();
  const Packet packet(1000);
  Result<bool> sent = true;
  while ((sent = client_.Send(packet)) && *sent) {
  }
  EXPECT_TRUE(sent);
  server_ = UnixSocket(Descriptor());
  EXPECT_EQ(client_.Send(packet).error().code, ErrorCode::kIo);
  Packet into(1000);
  EXPECT_EQ((*client_.Receive(into))->bytes, 0);
}

TEST_F(UnixSocketTest, MemoryComesWithAPacket) {
  Connect();
  auto made = SharedMemory::Create(10'000);
  ASSERT_TRUE(made) << made.error().message;
  ASSERT_TRUE(*server_.Send(Packet(1), made->descriptor()));
  Packet into(1);
  auto packet = client_.Receive(into);
  ASSERT_TRUE(packet && *packet);
  const int descriptor = (*packet)->descriptor.get();
  ASSERT_GE(descriptor, 0);
  EXPECT_NE(::ftruncate(descriptor, 100), 0) << "its length is sealed";
  EXPECT_NE(::ftruncate(descriptor, 20'000), 0);
  EXPECT_EQ(SharedMemory::Map(Descriptor(::dup(descriptor)), 10'001).error().code,
            ErrorCode::kCorrupt);
  auto mapped = SharedMemory::Map(std::move((*packet)->descriptor), 10'000);
  ASSERT_TRUE(mapped) << mapped.error().message;
  made->bytes()[9'999] = std::byte{7};
  EXPECT_EQ(mapped->bytes()[9'999], std::byte{7});
  const SharedMemory moved = std::move(*mapped);
  EXPECT_EQ(moved.bytes().size(), 10'000);
}

TEST_F(UnixSocketTest, MemoryThatCanBeCutOffIsRefused) {
  Descriptor file(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(file.get(), 10'000), 0);
  EXPECT_EQ(SharedMemory::Map(std::move(file), 10'000).error().code, ErrorCode::kCorrupt);
  EXPECT_FALSE(SharedMemory::Map(Descriptor(), 1));
}

TEST_F(UnixSocketTest, NamesHaveTheirModeAndGoWithTheListener) {
  struct stat status{};
  {
    const auto listener = UnixListener::Listen(path_, {.mode = 0640, .group = ::getgid()});
    ASSERT_TRUE(listener) << listener.error().message;
    ASSERT_EQ(::stat(path_.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0640);
    EXPECT_EQ(UnixListener::Listen(path_, {}).error().code, ErrorCode::kBusy);
  }
  EXPECT_NE(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(UnixSocket::Connect(path_).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(UnixListener::Listen(folder_ + "/none/socket", {}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(UnixListener::Listen(folder_, {}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(UnixListener::Listen(std::string(108, 'x'), {}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(UnixSocket::Connect("").error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace quire
