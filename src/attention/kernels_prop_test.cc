// Every kernel equals the scalar judge in every bit, over random shapes, lengths and cuts.
#include <gtest/gtest.h>
// gtest before rapidcheck
#include <rapidcheck/gtest.h>

#include "attention/test_sequence.h"

namespace quire::attention {
namespace {

struct Setup {
  TestShape shape;
  uint64_t first_position = 0;
  uint32_t rows = 1;
  bool two_forms = false;
  uint64_t seed = 0;
};

std::ostream& operator<<(std::ostream& os, const Setup& s) {
  return os << "kv_heads " << s.shape.kv_heads << " group " << s.shape.group << " key_dim "
            << s.shape.key_dim << " value_dim " << s.shape.value_dim << " block_tokens "
            << s.shape.block_tokens << " codecs " << CodecName(s.shape.key_codec) << " "
            << CodecName(s.shape.value_codec) << " open " << CodecName(s.shape.open_codec)
            << " window " << s.shape.window_tokens << " sinks " << s.shape.sink_tokens
            << " first_position " << s.first_position << " rows " << s.rows << " key_inner "
            << static_cast<int>(s.shape.key_inner) << " rotated " << s.shape.rotated
            << " open_blocks " << s.shape.open_blocks << " two_forms " << s.two_forms
            << " has_sinks " << s.shape.has_sinks << " has_slopes " << s.shape.has_slopes
            << " seed " << s.seed;
}

// Positions near the edges of columns, splits and rounds of lanes.
uint64_t DrawPosition() {
  const uint64_t edge = *rc::gen::element<uint64_t>(0, 0, 16, 32, 256, 256, 512, 1024);
  return edge + *rc::gen::inRange<uint64_t>(0, 20);
}

Codec DrawCodec() { return *rc::gen::elementOf(kCodecs); }

Setup Draw() {
  Setup s;
  s.shape.kv_heads = *rc::gen::inRange(1u, 4u);
  s.shape.group = *rc::gen::element(1u, 1u, 2u, 3u, 4u, 5u, 7u, 8u);
  s.shape.key_dim = *rc::gen::element(1u, 7u, 8u, 16u, 24u, 33u, 64u, 80u, 136u);
  s.shape.value_dim = *rc::gen::element(1u, 5u, 8u, 15u, 16u, 24u, 40u, 64u, 100u, 128u, 160u);
  s.shape.block_tokens = *rc::gen::element(16u, 16u, 32u, 64u, 128u, 256u);
  s.shape.key_codec = DrawCodec();
  s.shape.value_codec = DrawCodec();
  s.shape.open_codec = *rc::gen::element(Codec::kF32, Codec::kF16, Codec::kBf16);
  if (*rc::gen::inRange(0, 3) == 0) {
    s.shape.window_tokens = *rc::gen::element(1u, 2u, 17u, 64u, 255u, 256u, 300u);
    s.shape.sink_tokens = *rc::gen::element(0u, 1u, 4u, 20u, 300u);
  }
  if (IsIdentity(s.shape.key_codec) && *rc::gen::inRange(0, 4) == 0) {
    s.shape.key_inner = InnerAxis::kDim;
  }
  s.shape.rotated = *rc::gen::inRange(0, 2) == 0;
  s.shape.open_blocks = *rc::gen::element(0u, 0u, 1u, 2u, 8u, 17u, 100u, kOpenWherePresent);
  s.shape.has_sinks = *rc::gen::inRange(0, 3) == 0;
  s.shape.has_slopes = *rc::gen::inRange(0, 3) == 0;
  s.first_position = DrawPosition();
  s.rows = *rc::gen::element(1u, 1u, 2u, 3u, 5u, 9u, 17u, 34u);
  s.two_forms = *rc::gen::inRange(0, 4) == 0;
  s.seed = *rc::gen::arbitrary<uint64_t>();
  return s;
}

RC_GTEST_PROP(KernelsProp, EqualTheJudgeInEveryBit, ()) {
  const Setup s = Draw();
  RC_LOG() << s;
  Prng prng(s.seed);
  const AttentionShape shape = MakeShape(s.shape);
  TestSequence sequence(shape, s.first_position + s.rows, s.two_forms, &prng);
  sequence.DropInvisible(s.first_position);
  const std::vector<float> queries =
      RandomFloats(size_t{s.rows} * shape.query_heads * shape.key.dim, &prng);
  const size_t outputs = size_t{s.rows} * shape.query_heads * shape.value.dim;
  std::vector<float> want(outputs);
  const auto executor = MakeThreadPool(1);
  const AttentionTask judged = sequence.Task(s.first_position, s.rows, queries.data(), want.data());
  Attend(*MakeJudgeAttention(), shape, sequence.tables(), {&judged, 1}, *executor);
  for (const float value : want) RC_ASSERT(std::isfinite(value));
  for (const auto& backend : AllTargets()) {
    std::vector<float> got(outputs, -7.0f);
    const AttentionTask task = sequence.Task(s.first_position, s.rows, queries.data(), got.data());
    Attend(*backend, shape, sequence.tables(), {&task, 1}, *executor);
    RC_ASSERT(std::memcmp(got.data(), want.data(), outputs * sizeof(float)) == 0);
  }
}

}  // namespace
}  // namespace quire::attention
