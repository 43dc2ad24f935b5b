#include "model/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace quire::model {
namespace {

class SafetensorsTest : public testing::Test {
 protected:
  ~SafetensorsTest() override { std::filesystem::remove(path_); }

  Result<Safetensors> Open(std::string_view file) {
    std::ofstream(path_, std::ios::binary) << file;
    return Safetensors::Open(path_);
  }

  // A file of this header and `data_bytes` zeros.
  static std::string File(std::string_view header, size_t data_bytes) {
    const uint64_t length = header.size();
    std::string file(sizeof(length), '\0');
    std::memcpy(file.data(), &length, sizeof(length));
    return file + std::string(header) + std::string(data_bytes, '\0');
  }

  void ExpectError(std::string_view file, ErrorCode code, std::string_view mentions) {
    const Result<Safetensors> opened = Open(file);
    ASSERT_FALSE(opened.has_value()) << mentions;
    EXPECT_EQ(opened.error().code, code) << opened.error().message;
    EXPECT_TRUE(opened.error().message.contains(path_)) << opened.error().message;
    EXPECT_TRUE(opened.error().message.contains(mentions)) << opened.error().message;
  }
  void ExpectCorrupt(std::string_view header, size_t data_bytes, std::string_view mentions) {
    ExpectError(File(header, data_bytes), ErrorCode::kCorrupt, mentions);
  }

  const std::string path_ = testing::TempDir() + "/quire_" +
                            testing::UnitTest::GetInstance()->current_test_info()->name() +
                            ".safetensors";
};

TEST_F(SafetensorsTest, ReadsWhatItWrote) {
  const std::vector<TensorData> data = {
      {"b", ComputeType::kBf16, {2, 3}, std::vector<std::byte>(12, std::byte{7})},
      {"a.\u00e9\"", ComputeType::kF32, {}, std::vector<std::byte>(4, std::byte{9})},
      {"empty", ComputeType::kF16, {0, 5}, {}}};
  const Result<Safetensors> file = Open(SafetensorsBytes(data));
  ASSERT_TRUE(file.has_value()) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 3u);
  EXPECT_EQ(file->tensors()[0].name, "a.\u00e9\"");
  const TensorInfo* b = file->Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(b->type, ComputeType::kBf16);
  std::vector<std::byte> bytes(5);
  ASSERT_TRUE(file->Read(*b, 7, bytes).has_value());
  EXPECT_EQ(bytes, std::vector<std::byte>(5, std::byte{7}));
  ASSERT_TRUE(file->Read(*file->Find("a.\u00e9\""), 0, std::span(bytes).first(4)).has_value());
  EXPECT_EQ(bytes[3], std::byte{9});
  EXPECT_EQ(file->Find("c"), nullptr);
}

TEST_F(SafetensorsTest, MetadataAndPaddingAreAllowed) {
  EXPECT_TRUE(Open(File(R"({"__metadata__":{"format":"pt"}}   )", 0)).has_value());
  EXPECT_TRUE(Open(File("{}", 0)).has_value());
}

TEST_F(SafetensorsTest, EveryTruncationIsAnError) {
  const std::vector<TensorData> data = {{"a", ComputeType::kF32, {4}, std::vector<std::byte>(16)},
                                        {"b", ComputeType::kF32, {4}, std::vector<std::byte>(16)}};
  const std::string whole = SafetensorsBytes(data);
  for (size_t length = 0; length < whole.size(); ++length) {
    const Result<Safetensors> file = Open(whole.substr(0, length));
    ASSERT_FALSE(file.has_value()) << length;
    EXPECT_EQ(file.error().code, ErrorCode::kCorrupt) << file.error().message;
  }
  ExpectError(whole + "x", ErrorCode::kCorrupt, "cover 32 of 33");
}

TEST_F(SafetensorsTest, AFileThatShrinksWhileOpenIsAnError) {
  const std::vector<TensorData> data = {{"a", ComputeType::kF32, {4}, std::vector<std::byte>(16)}};
  const std::string whole = SafetensorsBytes(data);
  const Result<Safetensors> file = Open(whole);
  ASSERT_TRUE(file.has_value());
  std::filesystem::resize_file(path_, whole.size() - 1);
  std::vector<std::byte> bytes(16);
  const Result<void> read = file->Read(*file->Find("a"), 0, bytes);
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code, ErrorCode::kCorrupt);
}

TEST_F(SafetensorsTest, HostileHeaderLengths) {
  for (const uint64_t length : {uint64_t{100}, uint64_t{1} << 40, ~uint64_t{0}}) {
    std::string file(sizeof(length), '\0');
    std::memcpy(file.data(), &length, sizeof(length));
    ExpectError(file + "{}", ErrorCode::kCorrupt, "header of");
  }
  // Long enough, but longer than any header may be.
  const uint64_t length = kSafetensorsHeaderBytesMax + 1;
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  std::ofstream(path_, std::ios::binary) << file;
  std::filesystem::resize_file(path_, length + 100);
  const Result<Safetensors> opened = Safetensors::Open(path_);
  ASSERT_FALSE(opened.has_value());
  EXPECT_TRUE(opened.error().message.contains("the most that is read"));
}

TEST_F(SafetensorsTest, BrokenHeaders) {
  ExpectCorrupt("", 0, "header");
  ExpectCorrupt("{", 0, "header");
  ExpectCorrupt("[]", 0, "not an object");
  ExpectCorrupt("\xff\xfe{}", 0, "header");
  ExpectCorrupt(std::string(1000, '['), 0, "deep");
  ExpectCorrupt(R"({"t":3})", 0, "tensor t");
  ExpectCorrupt(R"({"t":{"shape":[1],"data_offsets":[0,4]}})", 4, "dtype");
  ExpectCorrupt(R"({"t":{"dtype":1,"shape":[1],"data_offsets":[0,4]}})", 4, "dtype");
  ExpectCorrupt(R"({"t":{"dtype":"F32","data_offsets":[0,4]}})", 4, "tensor t: field shape");
  ExpectCorrupt(R"({"t":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "shape");
  ExpectCorrupt(R"({"t":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, "shape");
  ExpectCorrupt(R"({"t":{"dtype":"F32","shape":"1","data_offsets":[0,4]}})", 4, "shape");
  ExpectCorrupt(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "data_offsets");
  ExpectCorrupt(R"({"t":{"dtype":"F32","shape":[1]}})", 4, "data_offsets");
  ExpectCorrupt(R"({"t":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4,
                "dimensions");
}

TEST_F(SafetensorsTest, OtherTypesAreNamed) {
  ExpectError(File(R"({"t":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", 8),
              ErrorCode::kUnsupported, "tensor t: dtype I64; supported: F32, F16, BF16");
}

TEST_F(SafetensorsTest, ShapesThatOverflowOrLie) {
  ExpectCorrupt(R"({"t":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
                "overflows");
  ExpectCorrupt(R"({"t":{"dtype":"F32","shape":[9223372036854775808,2],"data_offsets":[0,0]}})", 0,
                "overflows");
  ExpectCorrupt(R"({"t":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0,
                "overflows");
  ExpectCorrupt(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "needs 8");
}

TEST_F(SafetensorsTest, OffsetsOutsideBackwardsOverlappingOrWithHoles) {
  ExpectCorrupt(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4, "inside the 4");
  ExpectCorrupt(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "not a range");
  ExpectCorrupt(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,0]}})", 4,
                "not a range");
  ExpectCorrupt(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                12, "tensor b: begins at data byte 4, but the tensors before it end at 8");
  ExpectCorrupt(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
                12, "tensor b: begins");
  ExpectCorrupt(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "tensor a");
  ExpectCorrupt(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8, "cover 4 of 8");
}

TEST_F(SafetensorsTest, NamesThatAppearTwice) {
  ExpectCorrupt(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                R"("t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                4, "tensor t: appears twice");
  ExpectCorrupt(R"({"t":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}})", 4,
                "dtype: appears twice");
}

TEST_F(SafetensorsTest, NoFile) {
  const Result<Safetensors> file = Safetensors::Open("/nonexistent/model.safetensors");
  ASSERT_FALSE(file.has_value());
  EXPECT_EQ(file.error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace quire::model
