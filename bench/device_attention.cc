// Attention on a device beside what it could do at best: decode against reading the same bytes,
// prefill against as many multiply-adds, of f32 or in matrix instructions as the arithmetic has
// them. Shape: 32 query heads on 8 KV heads of 128 channels.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <vector>

#include "base/float_bits.h"
#include "bench/bench.h"
#include "bench/must.h"
#include "bench/sequence.h"
#include "cuda/backend.h"
#include "cuda/floors.h"

namespace quire::bench {
namespace {

constexpr uint32_t kGroupHere = 4;  // query heads to a KV head

/// What one case has on the device: slots of sequences, queries and outputs.
struct OnDevice {
  static Result<std::shared_ptr<OnDevice>> Create(cuda::Backend& backend, Codec codec,
                                                  uint32_t tokens, uint32_t batch, uint32_t rows) {
    auto made = std::make_shared<OnDevice>(backend.device(), backend.arithmetic());
    made->attention = backend.MakeAttention();
    QUIRE_ASSIGN(made->sequence, Sequence::Create(codec, tokens * batch, /*layers=*/1));
    made->batch = batch;
    made->tables = made->sequence->Pieces(batch);
    const uint64_t bytes = made->sequence->bytes();
    QUIRE_TRY(made->slots.Reserve(bytes));
    made->device.CopyIn(made->tables.sealed.base, bytes, made->slots.as<void>());
    made->tables.sealed.base = made->tables.open.base = made->slots.as<std::byte>();
    std::vector<float> queries = Queries(rows * batch, kGroupHere);
    for (float& query : queries) query = Bf16ToF32(F32ToBf16(query));  // as those of a bf16 model
    const uint64_t floats = queries.size() * sizeof(float);
    QUIRE_TRY(made->queries.Reserve(floats));
    QUIRE_TRY(made->out.Reserve(floats));
    QUIRE_TRY(made->sink.Reserve(sizeof(float)));
    made->device.CopyIn(queries.data(), floats, made->queries.as<void>());
    for (uint32_t i = 0; i < batch; ++i) {
      const uint64_t at = uint64_t{i} * rows * kKvHeads * kGroupHere * kHeadDim;
      made->tasks.push_back(made->sequence->Task(rows, made->queries.as<float>() + at,
                                                 made->out.as<float>() + at, i, batch));
    }
    return made;
  }

  OnDevice(cuda::Device& of, cuda::Arithmetic in)
      : device(of), arithmetic(in), slots(of), queries(of), out(of), sink(of) {}

  /// Seconds until the device has done all that `body` asks of it.
  double Seconds(const std::function<void()>& body) {
    Must(device.Synchronize());
    const auto begin = std::chrono::steady_clock::now();
    body();
    Must(device.Synchronize());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  double Attend(uint32_t times) {
    return Seconds([&] {
      for (uint32_t i = 0; i < times; ++i) {
        Must(attention->Attend(sequence->Shape(0, kGroupHere), tables, tasks, *executor));
      }
    });
  }
  double Read(uint64_t bytes, uint32_t times) {
    return Seconds([&] {
      for (uint32_t i = 0; i < times; ++i) {
        device.Launch(cuda::ReadFloorArgs{
            .from = slots.as<std::byte>(), .bytes = bytes / 16 * 16, .sink = sink.as<uint32_t>()});
      }
    });
  }
  /// So many multiply-adds at least.
  double Multiply(double count) {
    if (arithmetic == cuda::Arithmetic::kMma16) return MultiplyMatrices(count);
    constexpr double kARound =
        double{cuda::kFloorBlocks} * cuda::kFloorThreads * cuda::kFloorChains;
    return Seconds([&] {
      device.Launch(cuda::MultiplyFloorArgs{.rounds = static_cast<uint32_t>(count / kARound) + 1,
                                            .sink = sink.as<float>()});
    });
  }

  double MultiplyMatrices(double count) {
    constexpr double kARound = double{cuda::kMatrixFloorBlocks} * cuda::kMatrixFloorWarps *
                               cuda::kMatrixFloorChains * cuda::kMatrixMultiplyAdds;
    return Seconds([&] {
      device.Launch(cuda::MatrixFloorArgs{.rounds = static_cast<uint32_t>(count / kARound) + 1,
                                          .sink = sink.as<float>()});
    });
  }

  cuda::Device& device;
  const cuda::Arithmetic arithmetic;
  std::unique_ptr<AttentionBackend> attention;
  std::unique_ptr<Sequence> sequence;
  std::unique_ptr<Executor> executor = MakeThreadPool(1);
  uint32_t batch = 0;
  BlockTables tables;
  cuda::DeviceBuffer slots;
  cuda::DeviceBuffer queries;
  cuda::DeviceBuffer out;
  cuda::DeviceBuffer sink;
  std::vector<AttentionTask> tasks;
};

Result<Subject> Decode(cuda::Backend& backend, Codec codec, uint32_t tokens, uint32_t batch) {
  constexpr uint32_t kTimes = 4;
  QUIRE_ASSIGN(const auto on, OnDevice::Create(backend, codec, tokens, batch, /*rows=*/1));
  return Timed{
      .unit = "ms/layer",
      .less_is_better = true,
      .amount = 1e3 / kTimes,
      .slice = fmt::format("{} rows over {} tokens each, 1 layer, {} times", batch, tokens, kTimes),
      .work = [=](uint32_t) { return on->Attend(kTimes); },
      .floor = [=](uint32_t) { return on->Read(on->sequence->bytes(), kTimes); }};
}

Result<Subject> Prefill(cuda::Backend& backend, Codec codec, uint32_t tokens, uint32_t chunk) {
  QUIRE_ASSIGN(const auto on, OnDevice::Create(backend, codec, tokens, /*batch=*/1, chunk));
  const double tokens_seen = chunk * (tokens - chunk + 0.5 * (chunk + 1));
  const double multiply_adds = tokens_seen * kKvHeads * kGroupHere * kHeadDim * 2;
  return Timed{.unit = "GFLOP/s",
               .amount = multiply_adds * 2 * 1e-9,
               .slice = fmt::format("{} rows at the end of {} tokens, 1 layer", chunk, tokens),
               .work = [=](uint32_t) { return on->Attend(1); },
               .floor = [=](uint32_t) { return on->Multiply(multiply_adds); }};
}

/// Rows whose whole context is shared, beside one of them alone.
Result<Subject> Cascade(cuda::Backend& backend, Codec codec, uint32_t tokens, uint32_t batch) {
  QUIRE_ASSIGN(const auto on, OnDevice::Create(backend, codec, tokens, /*batch=*/1, batch));
  std::vector<AttentionTask> many;
  for (uint32_t i = 0; i < batch; ++i) {
    const uint64_t at = uint64_t{i} * kKvHeads * kGroupHere * kHeadDim;
    many.push_back(on->sequence->Task(1, on->queries.as<float>() + at, on->out.as<float>() + at));
  }
  const std::vector<AttentionTask> one(many.begin(), many.begin() + 1);
  const auto run = [=](const std::vector<AttentionTask>& tasks) {
    return on->Seconds([&] {
      Must(on->attention->Attend(on->sequence->Shape(0, kGroupHere), on->tables, tasks,
                                 *on->executor));
    });
  };
  return Timed{.unit = "ms/layer",
               .less_is_better = true,
               .amount = 1e3,
               .slice = fmt::format("{} rows over {} shared tokens, 1 layer", batch, tokens),
               .work = [=](uint32_t) { return run(many); },
               .floor = [=](uint32_t) { return run(one); }};
}

}  // namespace

std::vector<Case> DeviceAttentionCases(cuda::Backend& backend) {
  struct Decoded {
    Codec codec;
    uint32_t tokens;
    uint32_t batch;
  };
  std::vector<Case> cases;
  for (const Decoded& d : {Decoded{Codec::kBf16, 256, 1}, Decoded{Codec::kBf16, 4096, 32},
                           Decoded{Codec::kBf16, 262'144, 1}, Decoded{Codec::kF16, 4096, 32},
                           Decoded{Codec::kFp8E4m3, 4096, 32}, Decoded{Codec::kInt8, 4096, 32},
                           Decoded{Codec::kInt4, 4096, 32}, Decoded{Codec::kNf4, 4096, 32},
                           Decoded{Codec::kFp4, 4096, 32}, Decoded{Codec::kQ25, 4096, 32}}) {
    cases.push_back(
        {.name = fmt::format("decode/{}/{}/b{}/{}", CodecName(d.codec), d.tokens, d.batch,
                             backend.device().target()),
         .prepare = [=, &backend] { return Decode(backend, d.codec, d.tokens, d.batch); }});
  }
  for (const Codec codec : {Codec::kBf16, Codec::kInt8}) {
    // The emulation of a device is for checks.
    const bool emulated = backend.device().target() == "host";
    const uint32_t tokens = emulated ? 512 : 32'768;
    const uint32_t chunk = emulated ? 32 : 2048;
    cases.push_back({.name = fmt::format("prefill/{}/{}/chunk{}/{}", CodecName(codec), tokens,
                                         chunk, backend.device().target()),
                     .prepare = [=, &backend] { return Prefill(backend, codec, tokens, chunk); }});
  }
  return cases;
}

std::vector<Case> DeviceCascadeCases(cuda::Backend& backend) {
  std::vector<Case> cases;
  for (const Codec codec : {Codec::kBf16, Codec::kInt8, Codec::kNf4}) {
    constexpr uint32_t kTokens = 16'384;
    constexpr uint32_t kMany = 64;
    cases.push_back({.name = fmt::format("cascade/{}/{}/{}_beside_1/{}", CodecName(codec), kTokens,
                                         kMany, backend.device().target()),
                     .prepare = [=, &backend] { return Cascade(backend, codec, kTokens, kMany); }});
  }
  return cases;
}

}  // namespace quire::bench
