#include "cache/state/forms.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/prng.h"
#include "cache/test_util.h"

namespace quire::cache {
namespace {

const Geometry kShape = Geometry::Uniform(3, 2, 64);

struct OneBlock {
  codec::SlotLayout layout;
  std::vector<std::byte> bytes;

  Form form() const { return {layout, bytes.data()}; }
};

OneBlock EmptyBlock(Codec codec) {
  NumericProfile profile = NumericProfile::Uniform(codec);
  if (!IsIdentity(codec)) profile.open_dtype = Codec::kF16;
  auto layout = Must(codec::SlotLayout::Create(kShape, profile, ArenaLayout::kBlockMajor));
  std::vector<std::byte> bytes(layout.slot_bytes(0));
  return {std::move(layout), std::move(bytes)};
}

/// As sequences write it: rotated, and of very different sizes in each layer.
OneBlock Written(Prng& prng) {
  OneBlock block = EmptyBlock(Codec::kF32);
  for (uint32_t layer = 0; layer < kShape.layer_count(); ++layer) {
    for (const StreamLayout* stream : {&block.layout.key(layer), &block.layout.value(layer)}) {
      std::vector<float> rows(stream->heads * stream->block_tokens * stream->dim);
      for (float& row : rows) {
        row = std::ldexp(static_cast<float>(prng.NextBelow(2001)) - 1000.0f,
                         static_cast<int>(layer) * 6 - 9);
      }
      HostBlockOps().WriteRows(*stream,
                               {.data = rows.data(),
                                .token_stride = static_cast<int64_t>(stream->heads) * stream->dim,
                                .head_stride = stream->dim},
                               0, {.begin = 0, .count = stream->block_tokens}, block.bytes.data());
    }
  }
  return block;
}

TEST(FormsTest, WhatIsEncodedAnewIsWithinTheSumOfTheErrors) {
  Prng prng(5);
  BlockOps& ops = HostBlockOps();
  for (const Codec second : {Codec::kInt8, Codec::kFp8E4m3, Codec::kInt4}) {
    for (const Codec third : {Codec::kInt8, Codec::kInt4, Codec::kNf4, Codec::kQ25}) {
      const OneBlock written = Written(prng);
      OneBlock memory = EmptyBlock(second);
      for (uint32_t layer = 0; layer < kShape.layer_count(); ++layer) {
        ops.Encode(written.layout.key(layer), written.bytes.data(), memory.layout.key(layer),
                   memory.bytes.data());
        ops.Encode(written.layout.value(layer), written.bytes.data(), memory.layout.value(layer),
                   memory.bytes.data());
      }
      const FormError first = MeasureError(ops, written.form(), memory.form());
      EXPECT_GT(first.key, 0.0f);
      OneBlock stored = EmptyBlock(third);
      const FormError step = Reencode(ops, memory.form(), stored.layout, stored.bytes.data());
      const FormError measured = MeasureError(ops, memory.form(), stored.form());
      EXPECT_EQ(step.key, measured.key);
      EXPECT_EQ(step.value, measured.value);
      const FormError all = MeasureError(ops, written.form(), stored.form());
      const FormError bound = first.Then(step);
      EXPECT_LE(all.key, bound.key);
      EXPECT_LE(all.value, bound.value);
      EXPECT_LT(bound.key, 2.2f * all.key + 1e-6f);
      // And back into the form that memory has.
      OneBlock back = EmptyBlock(second);
      const FormError last = Reencode(ops, stored.form(), back.layout, back.bytes.data());
      EXPECT_LE(MeasureError(ops, written.form(), back.form()).key, bound.Then(last).key);
    }
  }
}

TEST(FormsTest, EncodingIntoTheSameCodecChangesLittle) {
  Prng prng(6);
  BlockOps& ops = HostBlockOps();
  const OneBlock written = Written(prng);
  OneBlock memory = EmptyBlock(Codec::kInt8);
  Reencode(ops, written.form(), memory.layout, memory.bytes.data());
  OneBlock again = EmptyBlock(Codec::kInt8);
  const FormError step = Reencode(ops, memory.form(), again.layout, again.bytes.data());
  EXPECT_LT(step.key, 0.01f);
  EXPECT_LT(step.value, 0.01f);
}

TEST(FormsTest, NoErrorIsAcceptedOfWhatIsNotFinite) {
  Prng prng(7);
  BlockOps& ops = HostBlockOps();
  OneBlock written = Written(prng);
  const float infinite = std::numeric_limits<float>::infinity();
  std::memcpy(written.bytes.data() + written.layout.value(1).offset_bytes, &infinite,
              sizeof(infinite));
  OneBlock stored = EmptyBlock(Codec::kInt4);
  const FormError error = Reencode(ops, written.form(), stored.layout, stored.bytes.data());
  EXPECT_TRUE(std::isfinite(error.key));
  EXPECT_EQ(error.value, infinite);
  EXPECT_EQ(FormError{}.Then(error).value, infinite);
  EXPECT_EQ(error.Then({}).value, infinite);
}

}  // namespace
}  // namespace quire::cache
