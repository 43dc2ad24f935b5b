// Stores on a real disk for tests.
#ifndef QUIRE_STORE_TEST_UTIL_H_
#define QUIRE_STORE_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "base/prng.h"
#include "quire/store.h"

namespace quire::store {

using Bytes = std::vector<std::byte>;

inline Bytes TestBlock(uint64_t number, uint64_t bytes) {
  Prng prng(number);
  Bytes block(bytes);
  for (std::byte& byte : block) byte = static_cast<std::byte>(prng.NextBelow(256));
  return block;
}

/// A directory that goes with the object.
class TestDirectory {
 public:
  TestDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "quire_store_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TestDirectory() { std::filesystem::remove_all(path_); }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  const std::string& path() const { return path_; }
  /// Of all files.
  uint64_t bytes() const {
    uint64_t bytes = 0;
    for (const auto& file : std::filesystem::recursive_directory_iterator(path_)) {
      if (file.is_regular_file()) bytes += file.file_size();
    }
    return bytes;
  }
  /// The bytes of all files.
  std::string Read() const {
    std::string bytes;
    for (const auto& file : std::filesystem::recursive_directory_iterator(path_)) {
      if (!file.is_regular_file()) continue;
      std::ifstream from(file.path(), std::ios::binary);
      bytes.append(std::istreambuf_iterator<char>(from), {});
    }
    return bytes;
  }

 private:
  std::string path_;
};

inline BlockStoreOptions TestOptions(const TestDirectory& directory) {
  return {.directory = directory.path() + "/store",
          .bytes_cap = 32 << 20,
          .block_bytes_max = 1 << 20,
          .commit_interval_us = 5000,
          .scrub_bytes_per_s = 1 << 20,
          .memory_bytes = 0};
}

/// Puts one block and waits until it is durable.
inline void PutOne(BlockStore& store, std::string_view name_space, std::string_view key,
                   const Bytes& data) {
  const BlockPut put = {key, data};
  const auto ended = store.Wait(store.Put(name_space, {&put, 1}));
  ASSERT_TRUE(ended) << ended.error().message;
  EXPECT_EQ(ended->results[0].outcome, BlockOutcome::kOk);
}

/// The block, when there is one and `bytes_max` are enough for it.
inline std::optional<Bytes> GetOne(BlockStore& store, std::string_view name_space,
                                   std::string_view key, uint64_t bytes_max) {
  Bytes out(bytes_max);
  const BlockGet get = {key, out};
  const auto ended = store.Wait(store.Get(name_space, {&get, 1}));
  EXPECT_TRUE(ended);
  if (!ended || ended->results[0].outcome != BlockOutcome::kOk) return std::nullopt;
  out.resize(ended->results[0].bytes);
  return out;
}

}  // namespace quire::store

#endif  // QUIRE_STORE_TEST_UTIL_H_
