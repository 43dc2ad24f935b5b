// The promises of attention one by one: equal bits for every division of the work, accuracy, and no
// influence of bytes that were never written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "attention/reference.h"
#include "attention/test_sequence.h"

namespace quire::attention {
namespace {

std::vector<float> AttendTask(AttentionBackend* backend, const AttentionShape& shape,
                              const TestSequence& sequence, uint64_t first_position, uint32_t rows,
                              const std::vector<float>& queries, Executor* executor) {
  std::vector<float> out(size_t{rows} * shape.query_heads * shape.value.dim, -7.0f);
  const AttentionTask task = sequence.Task(first_position, rows, queries.data(), out.data());
  Attend(*backend, shape, sequence.tables(), {&task, 1}, *executor);
  return out;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class KernelsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (backends_.empty()) GTEST_SKIP() << "this processor has no fused multiply-add";
  }

  std::vector<std::unique_ptr<AttentionBackend>> backends_ = AllTargets();
  std::unique_ptr<AttentionBackend> judge_ = MakeJudgeAttention();
  std::unique_ptr<Executor> one_ = MakeThreadPool(1);
  Prng prng_{11};
};

TEST_F(KernelsTest, EveryLengthAroundEveryEdge) {
  const AttentionShape shape =
      MakeShape({.group = 2, .key_dim = 8, .value_dim = 24, .block_tokens = 32});
  TestSequence sequence(shape, 4100, false, &prng_);
  for (const uint64_t length : {1,   2,   15,  16,   17,   31,   32,   33,   255,  256,
                                257, 511, 513, 2049, 3840, 3841, 4095, 4096, 4097, 4100}) {
    const std::vector<float> queries = RandomFloats(shape.query_heads * shape.key.dim, &prng_);
    const auto want = AttendTask(judge_.get(), shape, sequence, length - 1, 1, queries, one_.get());
    for (const auto& backend : backends_) {
      const auto got =
          AttendTask(backend.get(), shape, sequence, length - 1, 1, queries, one_.get());
      EXPECT_TRUE(SameBits(got, want)) << backend->target() << " length " << length;
    }
  }
}

// Positions where the own block is the first, the last or the only one of its split, K and V of
// every pair of codecs.
TEST_F(KernelsTest, OpenAndSealedFormsMeetAnywhere) {
  for (const Codec key_codec : kCodecs) {
    for (const Codec value_codec : kCodecs) {
      const AttentionShape shape = MakeShape({.kv_heads = 2,
                                              .group = 2,
                                              .key_dim = 24,
                                              .value_dim = 40,
                                              .key_codec = key_codec,
                                              .value_codec = value_codec,
                                              .open_codec = Codec::kBf16});
      TestSequence sequence(shape, 530, true, &prng_);
      const std::vector<float> queries =
          RandomFloats(size_t{4} * shape.query_heads * shape.key.dim, &prng_);
      for (const uint64_t first : {0, 14, 238, 255, 256, 270, 511, 526}) {
        for (const uint32_t rows : {1u, 4u}) {
          const auto want =
              AttendTask(judge_.get(), shape, sequence, first, rows, queries, one_.get());
          for (const auto& backend : backends_) {
            EXPECT_TRUE(SameBits(
                AttendTask(backend.get(), shape, sequence, first, rows, queries, one_.get()), want))
                << backend->target() << " " << CodecName(key_codec) << " " << CodecName(value_codec)
                << " first " << first << " rows " << rows;
          }
        }
      }
    }
  }
}

// The last tokens are read open: however a run of rows is cut, each gives the bits it gives alone.
TEST_F(KernelsTest, SeveralOpenBlocksForAnyCut) {
  constexpr uint32_t kRows = 40;
  for (const Codec codec : kCodecs) {
    for (const uint32_t open_blocks : {1u, 8u, 20u}) {
      const AttentionShape shape = MakeShape({.kv_heads = 2,
                                              .group = 2,
                                              .key_dim = 24,
                                              .value_dim = 40,
                                              .key_codec = codec,
                                              .value_codec = codec,
                                              .open_blocks = open_blocks});
      TestSequence sequence(shape, 300 + kRows, true, &prng_);
      const size_t row_floats = size_t{shape.query_heads} * shape.key.dim;
      const std::vector<float> queries = RandomFloats(kRows * row_floats, &prng_);
      for (const auto& backend : backends_) {
        const auto want =
            AttendTask(backend.get(), shape, sequence, 300, kRows, queries, one_.get());
        EXPECT_TRUE(SameBits(
            AttendTask(judge_.get(), shape, sequence, 300, kRows, queries, one_.get()), want));
        for (const uint32_t chunk : {1u, 7u, 16u}) {
          std::vector<float> got;
          for (uint32_t row = 0; row < kRows; row += chunk) {
            const uint32_t rows = std::min(chunk, kRows - row);
            const std::vector<float> some(queries.begin() + row * row_floats,
                                          queries.begin() + (row + rows) * row_floats);
            const auto part =
                AttendTask(backend.get(), shape, sequence, 300 + row, rows, some, one_.get());
            got.insert(got.end(), part.begin(), part.end());
          }
          EXPECT_TRUE(SameBits(got, want))
              << backend->target() << " " << CodecName(codec) << " open_blocks " << open_blocks;
        }
      }
    }
  }
}

// Values that are no codes, and heads enough to be read in the order of memory: some heads at once,
// on some processors of two columns, of which one may be left.
TEST_F(KernelsTest, PlanesInTheOrderOfMemory) {
  for (const Codec codec : {Codec::kF32, Codec::kF16, Codec::kBf16}) {
    for (const uint32_t kv_heads : {4u, 8u}) {
      for (const uint32_t group : {1u, 2u, 3u, 4u, 8u}) {
        const AttentionShape shape = MakeShape({.kv_heads = kv_heads,
                                                .group = group,
                                                .key_dim = 40,
                                                .value_dim = 72,
                                                .key_codec = codec,
                                                .value_codec = codec});
        TestSequence sequence(shape, 560, false, &prng_);
        const std::vector<float> queries = RandomFloats(shape.query_heads * shape.key.dim, &prng_);
        for (const uint64_t length : {1, 16, 17, 40, 255, 256, 300, 513, 560}) {
          const auto want =
              AttendTask(judge_.get(), shape, sequence, length - 1, 1, queries, one_.get());
          for (const auto& backend : backends_) {
            EXPECT_TRUE(SameBits(
                AttendTask(backend.get(), shape, sequence, length - 1, 1, queries, one_.get()),
                want))
                << backend->target() << " " << CodecName(codec) << " kv_heads " << kv_heads
                << " group " << group << " length " << length;
          }
        }
      }
    }
  }
}

// Qwen3-0.6B and other real head shapes, every codec.
TEST_F(KernelsTest, RealHeadShapes) {
  const TestShape shapes[] = {{.group = 2, .key_dim = 128, .value_dim = 128},
                              {.group = 4, .key_dim = 128, .value_dim = 128},
                              {.group = 5, .key_dim = 80, .value_dim = 48},
                              {.group = 6, .key_dim = 128, .value_dim = 128},
                              {.group = 7, .key_dim = 64, .value_dim = 64},
                              {.group = 3, .key_dim = 96, .value_dim = 96},
                              {.group = 71, .key_dim = 64, .value_dim = 64},
                              {.group = 1, .key_dim = 192, .value_dim = 128, .block_tokens = 64},
                              {.group = 8, .key_dim = 256, .value_dim = 256, .block_tokens = 256},
                              {.group = 2, .key_dim = 512, .value_dim = 512}};
  for (TestShape test : shapes) {
    for (const Codec codec : kCodecs) {
      test.key_codec = test.value_codec = codec;
      const AttentionShape shape = MakeShape(test);
      TestSequence sequence(shape, 300, false, &prng_);
      for (const uint32_t rows : {1u, 8u}) {
        const std::vector<float> queries =
            RandomFloats(size_t{rows} * shape.query_heads * shape.key.dim, &prng_);
        const uint64_t first = 300 - rows;
        // One judged row is enough for the widest: rows are independent.
        const uint32_t judged = test.group > 8 ? 1 : rows;
        const auto want =
            AttendTask(judge_.get(), shape, sequence, first, judged, queries, one_.get());
        for (const auto& backend : backends_) {
          auto got = AttendTask(backend.get(), shape, sequence, first, rows, queries, one_.get());
          got.resize(want.size());
          EXPECT_TRUE(SameBits(got, want)) << backend->target() << " key_dim " << test.key_dim
                                           << " group " << test.group << " rows " << rows;
        }
      }
    }
  }
}

TEST_F(KernelsTest, ChunksDoNotShow) {
  const TestShape shapes[] = {
      {.kv_heads = 2, .group = 3},
      {.kv_heads = 2, .group = 3, .key_codec = Codec::kInt8, .value_codec = Codec::kInt4},
      {.group = 2, .block_tokens = 64, .key_codec = Codec::kNf4, .value_codec = Codec::kFp8E5m2},
      {.group = 2, .block_tokens = 32, .key_codec = Codec::kFp4, .window_tokens = 290},
      {.group = 5, .value_codec = Codec::kInt8, .window_tokens = 200, .sink_tokens = 70}};
  for (const TestShape& test : shapes) {
    const bool two_forms = test.group == 3;
    const AttentionShape shape = MakeShape(test);
    const uint32_t tokens = 600;
    TestSequence sequence(shape, tokens, two_forms, &prng_);
    const uint64_t row_floats = shape.query_heads * shape.key.dim;
    const uint64_t out_floats = shape.query_heads * shape.value.dim;
    const std::vector<float> queries = RandomFloats(tokens * row_floats, &prng_);
    for (const auto& backend : backends_) {
      const auto want = AttendTask(backend.get(), shape, sequence, 0, tokens, queries, one_.get());
      for (const uint32_t chunk : {1u, 7u, 16u, 100u, 512u}) {
        std::vector<float> got(want.size());
        for (uint32_t begin = 0; begin < tokens; begin += chunk) {
          const AttentionTask task =
              sequence.Task(begin, std::min(chunk, tokens - begin),
                            queries.data() + begin * row_floats, got.data() + begin * out_floats);
          Attend(*backend, shape, sequence.tables(), {&task, 1}, *one_);
        }
        EXPECT_TRUE(SameBits(got, want)) << "chunk " << chunk << " two_forms " << two_forms;
      }
    }
  }
}

class KernelsOfCodecTest : public KernelsTest, public testing::WithParamInterface<Codec> {};
INSTANTIATE_TEST_SUITE_P(Codecs, KernelsOfCodecTest, testing::ValuesIn(kCodecs),
                         [](const auto& test) { return std::string(CodecName(test.param)); });

TEST_P(KernelsOfCodecTest, WorkersAndCompanyDoNotShow) {
  const AttentionShape shape = MakeShape({.group = 2,
                                          .key_dim = 16,
                                          .value_dim = 16,
                                          .key_codec = GetParam(),
                                          .value_codec = GetParam()});
  TestSequence long_one(shape, 9000, false, &prng_);
  TestSequence short_one(shape, 70, false, &prng_);
  const std::vector<float> queries = RandomFloats(40 * 2 * 16, &prng_);
  for (const auto& backend : backends_) {
    const auto want_long = AttendTask(backend.get(), shape, long_one, 8999, 1, queries, one_.get());
    const auto want_chunk =
        AttendTask(backend.get(), shape, long_one, 5000, 40, queries, one_.get());
    const auto want_short = AttendTask(backend.get(), shape, short_one, 69, 1, queries, one_.get());
    for (const uint32_t workers : {1u, 2u, 3u, 5u, 33u}) {
      const auto executor = MakeThreadPool(workers);
      EXPECT_TRUE(SameBits(
          AttendTask(backend.get(), shape, long_one, 8999, 1, queries, executor.get()), want_long))
          << workers;
      std::vector<float> a(want_long.size());
      std::vector<float> b(want_chunk.size());
      std::vector<float> c(want_short.size());
      AttentionTask tasks[] = {short_one.Task(69, 1, queries.data(), c.data()),
                               long_one.Task(8999, 1, queries.data(), a.data()),
                               long_one.Task(5000, 40, queries.data(), b.data()),
                               long_one.Task(5000, 0, queries.data(), nullptr)};
      for (AttentionTask& task : std::span(tasks).subspan(1)) task.sequence = 1;
      BatchTables both;
      ASSERT_TRUE(both.Add(short_one.tables()).has_value());
      ASSERT_TRUE(both.Add(long_one.tables()).has_value());
      Attend(*backend, shape, both.tables(), tasks, *executor);
      EXPECT_TRUE(SameBits(a, want_long)) << workers;
      EXPECT_TRUE(SameBits(b, want_chunk)) << workers;
      EXPECT_TRUE(SameBits(c, want_short)) << workers;
    }
    Attend(*backend, shape, {}, {}, *one_);
  }
}

TEST_F(KernelsTest, WindowsReadNothingThatIsGone) {
  for (const uint32_t rows : {1u, 50u}) {
    const AttentionShape shape =
        MakeShape({.group = 2, .key_dim = 16, .window_tokens = 100, .sink_tokens = 5});
    TestSequence sequence(shape, 5000, false, &prng_);
    sequence.DropInvisible(5000 - rows);
    const std::vector<float> queries =
        RandomFloats(size_t{rows} * shape.query_heads * shape.key.dim, &prng_);
    const auto want =
        AttendTask(judge_.get(), shape, sequence, 5000 - rows, rows, queries, one_.get());
    const auto executor = MakeThreadPool(3);
    for (const auto& backend : backends_) {
      EXPECT_TRUE(SameBits(
          AttendTask(backend.get(), shape, sequence, 5000 - rows, rows, queries, executor.get()),
          want));
    }
  }
}

// The promise for f16 storage, at the length of the issue; also for the other codecs.
TEST_P(KernelsOfCodecTest, AccurateAt32kTokens) {
  const AttentionShape shape = MakeShape({.group = 2,
                                          .key_dim = 64,
                                          .value_dim = 64,
                                          .key_codec = GetParam(),
                                          .value_codec = GetParam()});
  TestSequence sequence(shape, 32'768, false, &prng_);
  std::vector<float> queries = RandomFloats(shape.query_heads * shape.key.dim, &prng_);
  std::vector<float> unused(size_t{shape.query_heads} * shape.value.dim);
  const std::vector<double> want = ReferenceAttention(
      shape, sequence.tables(), sequence.Task(32'767, 1, queries.data(), unused.data()));
  for (const auto& backend : backends_) {
    const auto got = AttendTask(backend.get(), shape, sequence, 32'767, 1, queries, one_.get());
    double error = 0;
    double norm = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      error += (got[i] - want[i]) * (got[i] - want[i]);
      norm += want[i] * want[i];
    }
    EXPECT_LT(std::sqrt(error / norm), 1e-4);
    EXPECT_GT(norm, 0);
  }
}

struct Adversary {
  const char* name;
  float query;
  ValueOf value_of;
};

TEST_P(KernelsOfCodecTest, FiniteInputsGiveFiniteOutputs) {
  const Adversary adversaries[] = {
      {"equal scores", 1.0f, [](int, uint32_t, uint64_t, uint32_t) { return 1.0f; }},
      {"zeros", 0.0f, [](int, uint32_t, uint64_t, uint32_t) { return 0.0f; }},
      {"negative zeros", -0.0f, [](int, uint32_t, uint64_t, uint32_t) { return -0.0f; }},
      {"largest halves", 65504.0f,
       [](int, uint32_t, uint64_t t, uint32_t) { return t % 3 == 0 ? 65504.0f : -65504.0f; }},
      {"all huge negative", 3e4f, [](int, uint32_t, uint64_t, uint32_t) { return -6e4f; }},
      {"denormals", 1e-39f, [](int, uint32_t, uint64_t, uint32_t) { return 6e-8f; }},
      {"one that wins", 1.0f,
       [](int, uint32_t, uint64_t t, uint32_t) { return t == 77 ? 900.0f : -900.0f; }},
      {"tiny negative values", 1.0f,
       [](int s, uint32_t, uint64_t t, uint32_t) {
         return s == 0 ? (t == 3 ? 40.0f : -40.0f) : -1e-38f;
       }},
  };
  for (const Adversary& adversary : adversaries) {
    for (const Codec value_codec : {GetParam(), Codec::kF16}) {
      const AttentionShape shape = MakeShape({.group = 2,
                                              .key_dim = 32,
                                              .value_dim = 16,
                                              .key_codec = GetParam(),
                                              .value_codec = value_codec});
      TestSequence sequence(shape, 530, false, adversary.value_of);
      for (const uint32_t rows : {1u, 7u}) {
        const std::vector<float> queries(size_t{rows} * shape.query_heads * shape.key.dim,
                                         adversary.query);
        const auto want =
            AttendTask(judge_.get(), shape, sequence, 530 - rows, rows, queries, one_.get());
        for (const float value : want) {
          ASSERT_TRUE(std::isfinite(value)) << adversary.name << " gave " << value;
        }
        for (const auto& backend : backends_) {
          EXPECT_TRUE(SameBits(
              AttendTask(backend.get(), shape, sequence, 530 - rows, rows, queries, one_.get()),
              want))
              << adversary.name;
        }
      }
    }
  }
}

// A value that is no number makes what depends on it NaN, whatever whole numbers its row becomes.
TEST_F(KernelsTest, ValuesThatAreNaNGiveNaN) {
  for (const Codec codec : {Codec::kInt8, Codec::kNf4, Codec::kQ25}) {
    const AttentionShape shape = MakeShape(
        {.group = 2, .key_dim = 32, .value_dim = 32, .key_codec = codec, .value_codec = codec});
    for (const uint64_t nans : {1, 2, 5}) {
      TestSequence sequence(shape, 100, false, [&](int stream, uint32_t, uint64_t token, uint32_t) {
        return stream == 1 && token >= 40 && token < 40 + nans ? std::nanf("") : 0.5f;
      });
      for (const uint32_t rows : {1u, 9u}) {
        const std::vector<float> queries(size_t{rows} * shape.query_heads * shape.key.dim, 0.1f);
        for (const auto& backend : backends_) {
          for (const float value :
               AttendTask(backend.get(), shape, sequence, 100 - rows, rows, queries, one_.get())) {
            ASSERT_TRUE(std::isnan(value)) << CodecName(codec) << " " << nans << " " << rows;
          }
        }
      }
    }
  }
}

// The sequence fills whatever no token was written to with NaN; scratch that an earlier call with
// other shapes left behind must have no effect either.
TEST_F(KernelsTest, NothingLeaksFromEarlierCallsOrUnwrittenTokens) {
  const AttentionShape poison_shape = MakeShape({.group = 6, .key_dim = 128, .value_dim = 128});
  TestSequence poison(poison_shape, 300, false,
                      [](int, uint32_t, uint64_t, uint32_t) { return std::nanf(""); });
  const AttentionShape shape = MakeShape({.group = 2, .key_dim = 24, .value_dim = 20});
  for (const uint64_t tokens : {1, 5, 33, 250, 259}) {
    TestSequence sequence(shape, tokens, false, &prng_);
    const auto rows = static_cast<uint32_t>(std::min<uint64_t>(tokens, 9));
    const std::vector<float> queries =
        RandomFloats(size_t{rows} * shape.query_heads * shape.key.dim, &prng_);
    const std::vector<float> poison_queries =
        RandomFloats(8 * poison_shape.query_heads * poison_shape.key.dim, &prng_);
    const auto want =
        AttendTask(judge_.get(), shape, sequence, tokens - rows, rows, queries, one_.get());
    for (const auto& backend : backends_) {
      for (const uint32_t poison_rows : {1u, 8u}) {
        AttendTask(backend.get(), poison_shape, poison, 290, poison_rows, poison_queries,
                   one_.get());
      }
      EXPECT_TRUE(SameBits(
          AttendTask(backend.get(), shape, sequence, tokens - rows, rows, queries, one_.get()),
          want))
          << tokens;
    }
  }
}

}  // namespace
}  // namespace quire::attention
