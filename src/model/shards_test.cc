#include "model/shards.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "env/file.h"
#include "model/model.h"
#include "model/test_cache.h"

namespace quire::model {
namespace {

TensorData Numbered(std::string name, uint8_t value) {
  return {std::move(name), ComputeType::kF32, {2}, std::vector<std::byte>(8, std::byte{value})};
}

class ShardsTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "/quire_shards_" +
                 testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    WriteShard("one.safetensors", {Numbered("a", 1), Numbered("c", 3)});
    WriteShard("two.safetensors", {Numbered("b", 2)});
    WriteIndex({{"a", "one.safetensors"}, {"b", "two.safetensors"}, {"c", "one.safetensors"}});
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string At(std::string_view name) const { return directory_ + "/" + std::string(name); }
  std::string IndexPath() const { return At("model.safetensors.index.json"); }

  void WriteShard(std::string_view name, const std::vector<TensorData>& tensors) {
    ASSERT_TRUE(WriteFile(At(name), SafetensorsBytes(tensors)).has_value());
  }
  void WriteText(std::string_view index) { ASSERT_TRUE(WriteFile(IndexPath(), index).has_value()); }
  void WriteIndex(const Json& weight_map) {
    WriteText(Json{{"metadata", {{"total_size", 1}}}, {"weight_map", weight_map}}.dump());
  }

  void ExpectError(ErrorCode code, std::string_view mentions) {
    const auto opened = ShardedTensors::Open(IndexPath());
    ASSERT_FALSE(opened.has_value()) << mentions;
    EXPECT_EQ(opened.error().code, code) << opened.error().message;
    EXPECT_TRUE(opened.error().message.contains(mentions)) << opened.error().message;
  }

  std::string directory_;
};

TEST_F(ShardsTest, EveryTensorComesFromItsFile) {
  const auto opened = ShardedTensors::Open(IndexPath());
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  ASSERT_EQ(opened->tensors().size(), 3u);
  EXPECT_EQ(opened->path(), IndexPath());
  for (uint8_t i = 0; i < 3; ++i) {
    const TensorInfo& tensor = opened->tensors()[i];
    EXPECT_EQ(tensor.name, std::string(1, static_cast<char>('a' + i)));
    std::vector<std::byte> bytes(3);
    ASSERT_TRUE(opened->Read(tensor, 5, bytes).has_value());
    EXPECT_EQ(bytes, std::vector<std::byte>(3, std::byte{static_cast<uint8_t>(i + 1)}));
  }
}

TEST_F(ShardsTest, OneFileGoesBeforeSeveral) {
  const auto sharded = OpenWeights(directory_);
  ASSERT_TRUE(sharded.has_value()) << sharded.error().message;
  EXPECT_EQ((*sharded)->tensors().size(), 3u);
  WriteShard("model.safetensors", {Numbered("whole", 9)});
  const auto whole = OpenWeights(directory_);
  ASSERT_TRUE(whole.has_value()) << whole.error().message;
  EXPECT_EQ((*whole)->path(), At("model.safetensors"));
  std::filesystem::remove(At("model.safetensors"));
  std::filesystem::remove(IndexPath());
  const auto none = OpenWeights(directory_);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(none.error().message.contains("model.safetensors"));
}

TEST_F(ShardsTest, NamesThatLeadElsewhere) {
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("../one.safetensors"),
        std::string("/etc/passwd"), std::string("sub/one.safetensors"),
        std::string("one.safetensors/"), std::string("sub\\one.safetensors"),
        std::string("one.safetensors\0x", 17), At("one.safetensors")}) {
    WriteIndex({{"a", name}, {"b", "two.safetensors"}, {"c", "one.safetensors"}});
    ExpectError(ErrorCode::kCorrupt, "tensor a");
  }
  WriteIndex({{"a", 3}});
  ExpectError(ErrorCode::kCorrupt, "tensor a");
  WriteIndex({{"a", nullptr}});
  ExpectError(ErrorCode::kCorrupt, "tensor a");
}

TEST_F(ShardsTest, BrokenIndices) {
  for (const std::string_view text : {"", "{", "[]", "7", "{}", R"({"weight_map": []})",
                                      R"({"weight_map": {}})", R"({"weight_map": null})"}) {
    WriteText(text);
    ExpectError(ErrorCode::kCorrupt, "model.safetensors.index.json");
  }
  WriteText(R"({"weight_map": {"a": "one.safetensors", "a": "two.safetensors"}})");
  ExpectError(ErrorCode::kCorrupt, "a appears twice");
  Json many = Json::object();
  for (size_t i = 0; i <= kShardsMax; ++i) many[std::to_string(i)] = std::to_string(i);
  WriteIndex(many);
  ExpectError(ErrorCode::kUnsupported, "513 files");
  WriteIndex({{"a", "one.safetensors"}, {"b", "three.safetensors"}, {"c", "one.safetensors"}});
  ExpectError(ErrorCode::kNotFound, "three.safetensors");
}

TEST_F(ShardsTest, FilesAndIndexThatDisagree) {
  WriteIndex({{"a", "one.safetensors"}, {"b", "two.safetensors"}, {"c", "two.safetensors"}});
  ExpectError(ErrorCode::kCorrupt, "tensor c: is in one.safetensors, but should be in two");
  WriteIndex({{"a", "one.safetensors"}, {"b", "two.safetensors"}});
  ExpectError(ErrorCode::kCorrupt, "tensor c: is in one.safetensors, but not in the index");
  WriteIndex({{"a", "one.safetensors"},
              {"b", "two.safetensors"},
              {"c", "one.safetensors"},
              {"d", "two.safetensors"}});
  ExpectError(ErrorCode::kCorrupt, "tensor d: is not in two.safetensors");
}

TEST_F(ShardsTest, ATensorInTwoFiles) {
  WriteShard("two.safetensors", {Numbered("a", 7), Numbered("b", 2)});
  ExpectError(ErrorCode::kCorrupt, "tensor a: is in two.safetensors, but should be in one");
}

TEST_F(ShardsTest, ADamagedFileIsNamed) {
  std::filesystem::resize_file(At("two.safetensors"), 40);
  ExpectError(ErrorCode::kCorrupt, "two.safetensors");
}

TEST_F(ShardsTest, AFileThatShrinksWhileOpenIsAnError) {
  const auto opened = ShardedTensors::Open(IndexPath());
  ASSERT_TRUE(opened.has_value());
  const std::string path = At("two.safetensors");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  std::vector<std::byte> bytes(8);
  const Result<void> read = opened->Read(*opened->Find("b"), 0, bytes);
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(read.error().message.contains("two.safetensors")) << read.error().message;
  EXPECT_TRUE(opened->Read(*opened->Find("a"), 0, bytes).has_value());
}

// Each layer in a file of its own: the same model as in one file, fingerprint included.
TEST_F(ShardsTest, CutsDoNotShow) {
  ModelConfig config = SmallConfig();
  config.family = Family::kQwen2;
  const RandomTensors source(config, ComputeType::kBf16, 1);
  ASSERT_TRUE(WriteModel(config, source, directory_).has_value());
  const Digest whole = Model::Load(directory_, {}).value()->fingerprint();
  std::filesystem::remove(At("model.safetensors"));
  std::vector<TensorData> parts[3];
  Json map = Json::object();
  for (const TensorInfo& tensor : source.tensors()) {
    const size_t part = tensor.name.contains(".0.") ? 0 : tensor.name.contains(".1.") ? 1 : 2;
    parts[part].push_back(
        {tensor.name, tensor.type, tensor.shape, std::vector<std::byte>(tensor.bytes)});
    ASSERT_TRUE(source.Read(tensor, 0, parts[part].back().bytes).has_value());
    map[tensor.name] = std::to_string(part);
  }
  for (size_t part = 0; part < 3; ++part) WriteShard(std::to_string(part), parts[part]);
  WriteIndex(map);
  const auto loaded = Model::Load(directory_, {});
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  EXPECT_EQ((*loaded)->fingerprint(), whole);
}

}  // namespace
}  // namespace quire::model
