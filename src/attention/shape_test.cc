#include "attention/shape.h"

#include <gtest/gtest.h>

#include <string>

#include "attention/test_sequence.h"

namespace quire::attention {
namespace {

bool Visible(const VisibleTokens& visible, uint32_t token) {
  for (uint32_t r = 0; r < visible.count; ++r) {
    if (token >= visible.ranges[r].begin && token < visible.ranges[r].end) return true;
  }
  return false;
}

TEST(VisibleInSplit, EqualsTheDefinitionTokenByToken) {
  AttentionShape shape;
  for (const uint32_t window : {0u, 1u, 2u, 15u, 100u, 255u, 256u, 257u, 600u}) {
    for (const uint32_t sinks : {0u, 1u, 4u, 16u, 255u, 256u, 260u, 700u}) {
      shape.window_tokens = window;
      shape.sink_tokens = window == 0 ? 0 : sinks;
      for (uint64_t position = 0; position < 1100; position += position < 520 ? 1 : 13) {
        for (uint64_t split = 0; split < 5; ++split) {
          const VisibleTokens visible = VisibleInSplit(shape, position, split);
          uint32_t previous_end = 0;
          for (uint32_t r = 0; r < visible.count; ++r) {
            ASSERT_LT(visible.ranges[r].begin, visible.ranges[r].end);
            ASSERT_TRUE(r == 0 || visible.ranges[r].begin > previous_end);
            previous_end = visible.ranges[r].end;
          }
          for (uint32_t i = 0; i < kSplitTokens; ++i) {
            const uint64_t t = split * kSplitTokens + i;
            const bool want =
                t <= position && (window == 0 || t + window > position || t < shape.sink_tokens);
            ASSERT_EQ(Visible(visible, i), want) << "window " << window << " sinks " << sinks
                                                 << " position " << position << " token " << t;
          }
        }
      }
    }
  }
}

struct BadShape {
  const char* message;
  void (*change)(AttentionShape&);
};

TEST(ValidateShape, NamesTheField) {
  const AttentionShape good = MakeShape({.kv_heads = 2, .group = 3});
  ASSERT_TRUE(ValidateShape(good).has_value());
  const BadShape cases[] = {
      {"key.codec is 11", [](AttentionShape& s) { s.key.codec = static_cast<Codec>(11); }},
      {"value.inner is 0", [](AttentionShape& s) { s.value.inner = static_cast<InnerAxis>(0); }},
      {"key.heads is 0", [](AttentionShape& s) { s.key.heads = 0; }},
      {"value.dim is 0", [](AttentionShape& s) { s.value.dim = 0; }},
      {"key.block_tokens is 48, must be a power of two in 16..256",
       [](AttentionShape& s) { s.key.block_tokens = 48; }},
      {"key.block_tokens is 8, must be a power of two in 16..256",
       [](AttentionShape& s) { s.key.block_tokens = 8; }},
      {"key.block_tokens is 512, must be a power of two in 16..256",
       [](AttentionShape& s) { s.key.block_tokens = 512; }},
      {"key.head_stride_bytes is 100, a plane has 512 bytes",
       [](AttentionShape& s) { s.key.head_stride_bytes = 100; }},
      {"query_heads is 0, not a multiple of key.heads 2",
       [](AttentionShape& s) { s.query_heads = 0; }},
      {"query_heads is 5, not a multiple of key.heads 2",
       [](AttentionShape& s) { s.query_heads = 5; }},
      {"value.heads is 1, key.heads 2", [](AttentionShape& s) { s.value.heads = 1; }},
      {"value.block_tokens is 16, key.block_tokens 32",
       [](AttentionShape& s) {
         s.key.block_tokens = 32;
         s.key.head_stride_bytes = 1024;
       }},
      {"sink_tokens is 4 without a window", [](AttentionShape& s) { s.sink_tokens = 4; }},
      {"open_key has 1 heads, dim 16, 16 tokens and rotated false, sealed blocks 2, 16, 16 and "
       "false",
       [](AttentionShape& s) {
         s.open_key = s.key;
         s.open_key.heads = 1;
       }},
      {"open_value has 2 heads, dim 16, 16 tokens and rotated true, sealed blocks 2, 16, 16 and "
       "false",
       [](AttentionShape& s) {
         s.open_value = s.value;
         s.open_value.rotated = true;
       }},
  };
  for (const BadShape& bad : cases) {
    AttentionShape shape = good;
    bad.change(shape);
    const Result<void> valid = ValidateShape(shape);
    ASSERT_FALSE(valid.has_value()) << bad.message;
    EXPECT_EQ(valid.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(valid.error().message, std::string("attention shape: ") + bad.message);
  }
}

TEST(ValidateShape, NamesTheFieldOfEncodedStreams) {
  const AttentionShape good =
      MakeShape({.kv_heads = 2, .group = 3, .key_codec = Codec::kInt8, .value_codec = Codec::kNf4});
  ASSERT_TRUE(ValidateShape(good).has_value()) << ValidateShape(good).error().message;
  const BadShape cases[] = {
      {"key.inner is 2, planes of codec int8 have 1",
       [](AttentionShape& s) { s.key.inner = InnerAxis::kDim; }},
      {"value.inner is 1, planes of codec nf4 have 2",
       [](AttentionShape& s) { s.value.inner = InnerAxis::kToken; }},
      {"key.scale_offset_bytes is 575, codes end at 576",
       [](AttentionShape& s) { s.key.scale_offset_bytes = 575; }},
      {"key.scale_head_stride_bytes is 63, a head has 64 bytes of scales",
       [](AttentionShape& s) { s.key.scale_head_stride_bytes = 63; }},
      {"value.scale_head_stride_bytes is 31, a head has 32 bytes of scales",
       [](AttentionShape& s) { s.value.scale_head_stride_bytes = 31; }},
      {"value.head_stride_bytes is 127, a plane has 128 bytes",
       [](AttentionShape& s) { s.value.head_stride_bytes = 127; }},
      {"open_key.codec is fp4, that of sealed blocks int8",
       [](AttentionShape& s) {
         s.open_key = s.key;
         s.open_key.codec = Codec::kFp4;
       }},
  };
  for (const BadShape& bad : cases) {
    AttentionShape shape = good;
    bad.change(shape);
    const Result<void> valid = ValidateShape(shape);
    ASSERT_FALSE(valid.has_value()) << bad.message;
    EXPECT_EQ(valid.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(valid.error().message, std::string("attention shape: ") + bad.message);
  }
}

TEST(CpuAttention, SaysWhatItCannotDo) {
  for (const auto& backend : AllTargets()) {
    EXPECT_EQ(backend->name(), "cpu");
    const AttentionShape good = MakeShape({.key_dim = 512, .value_dim = 512});
    EXPECT_TRUE(backend->Supports(good).has_value());
    const auto refused = [&](const AttentionShape& shape, ErrorCode code, const char* field) {
      const Result<void> supports = backend->Supports(shape);
      ASSERT_FALSE(supports.has_value());
      EXPECT_EQ(supports.error().code, code);
      EXPECT_NE(supports.error().message.find(field), std::string::npos)
          << supports.error().message;
    };
    refused(MakeShape({.key_dim = 513}), ErrorCode::kUnsupported, "key.dim is 513");
    refused(MakeShape({.value_dim = 600}), ErrorCode::kUnsupported, "value.dim is 600");
    AttentionShape shape = good;
    shape.key.inner = InnerAxis::kDim;
    EXPECT_TRUE(backend->Supports(shape).has_value());
    shape = good;
    shape.value.inner = InnerAxis::kToken;
    refused(shape, ErrorCode::kUnsupported, "value.inner");
    shape = good;
    shape.query_heads = 0;
    refused(shape, ErrorCode::kInvalidArgument, "query_heads");
    shape.query_heads = good.key.heads << 16;
    EXPECT_TRUE(backend->Supports(shape).has_value());
    shape.query_heads += good.key.heads;
    refused(shape, ErrorCode::kUnsupported, "more than 65536 for each");
  }
}

TEST(CpuAttention, IsUnsupportedWithoutFusedMultiplyAdd) {
  hwy::SetSupportedTargetsForTest(HWY_SSE4);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  const auto backend = MakeCpuAttention();
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  ASSERT_FALSE(backend.has_value());
  EXPECT_EQ(backend.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace quire::attention
