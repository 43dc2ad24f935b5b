// The secret that a directory keeps, and how another one in its place is noticed.
#include "tier/secret.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/log.h"
#include "env/file.h"

namespace quire::tier {
namespace {

class SecretTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kError);
    directory_ = testing::TempDir() + "quire_secret_test";
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
    files_ = MakeFiles({.threads_only = true}).value();
  }
  void TearDown() override {
    std::filesystem::remove_all(directory_);
    SetLogLevel(LogLevel::kWarn);
  }

  std::string Read(const std::string& name) {
    return ReadFile(directory_ + "/" + name, 100).value();
  }
  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(WriteFile(directory_ + "/" + name, text));
  }
  void Remove(const std::string& name) {
    ASSERT_TRUE(std::filesystem::remove(directory_ + "/" + name));
  }
  bool Changed() { return SecretChanged(*files_, directory_); }

  std::string directory_;
  std::unique_ptr<Files> files_;
};

TEST_F(SecretTest, IsMadeOnceAndKept) {
  EXPECT_FALSE(Changed());
  const Digest secret = KeepSecret(directory_).value();
  EXPECT_NE(secret, Digest{});
  EXPECT_EQ(KeepSecret(directory_).value(), secret);
  EXPECT_FALSE(Changed());
  EXPECT_EQ(Read("SECRET.digest").find(Read("SECRET")), std::string::npos);
  EXPECT_EQ(std::filesystem::status(directory_ + "/SECRET.digest").permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST_F(SecretTest, AnotherOneIsRefused) {
  const Digest secret = KeepSecret(directory_).value();
  const std::string good = Read("SECRET");
  for (const std::string& other :
       {std::string(32, 'a'), std::string(31, 'a'), std::string(33, 'a')}) {
    Write("SECRET", other);
    EXPECT_EQ(KeepSecret(directory_).error().code, ErrorCode::kCorrupt);
    EXPECT_TRUE(Changed());
  }
  Remove("SECRET");
  EXPECT_EQ(KeepSecret(directory_).error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(Changed());
  Write("SECRET", good);
  EXPECT_EQ(KeepSecret(directory_).value(), secret);
  EXPECT_FALSE(Changed());
  // The way out that the message names.
  Write("SECRET", std::string(32, 'a'));
  Remove("SECRET.digest");
  EXPECT_EQ(KeepSecret(directory_).value()[0], 'a');
  EXPECT_FALSE(Changed());
}

// Damage of the digest, or a store from before there was one, costs nothing.
TEST_F(SecretTest, WithoutAWholeDigestItIsMadeAnew) {
  const Digest secret = KeepSecret(directory_).value();
  const std::string digest = Read("SECRET.digest");
  for (size_t i = 0; i < digest.size(); ++i) {
    std::string damaged = digest;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    Write("SECRET.digest", damaged);
    EXPECT_FALSE(Changed()) << i;
    EXPECT_EQ(KeepSecret(directory_).value(), secret);
    EXPECT_EQ(Read("SECRET.digest"), digest);
  }
}

}  // namespace
}  // namespace quire::tier
