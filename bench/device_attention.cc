// Attention on a device beside its floors: decode against reading the same bytes, prefill against
// as many multiply-adds, of f32 or in matrix instructions as the arithmetic has them. Shape: 4 or 8
// query heads on each of 8 KV heads of 128 channels.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/bits.h"
#include "base/float_bits.h"
#include "bench/bench.h"
#include "bench/must.h"
#include "bench/sequence.h"
#include "cuda/backend.h"
#include "cuda/kernels/floors.h"

namespace quire::bench {
namespace {

/// The shape of one case.
struct Shape {
  Codec codec = Codec::kBf16;
  uint32_t tokens = 0;  // of each sequence
  uint32_t batch = 1;   // sequences
  uint32_t rows = 1;    // of each
  uint32_t group = 4;   // query heads to a KV head
  cuda::AttentionOptions options{};
};

/// Slots lie as far from each other as those of a model of so many layers, as far as the device's
/// memory lets them.
constexpr uint64_t kArenaBytesMax = uint64_t{40} << 30;
constexpr uint64_t kEmulatedArenaBytesMax = uint64_t{64} << 20;

bool IsEmulated(cuda::Backend& backend) { return backend.device().target() == "host"; }

/// The memory of one case on the device: slots of sequences, queries and outputs.
struct OnDevice {
  static Result<std::shared_ptr<OnDevice>> Create(cuda::Backend& backend, const Shape& of) {
    auto made = std::make_shared<OnDevice>(backend.device(), backend.arithmetic());
    made->attention = backend.MakeAttention(of.options);
    QUIRE_ASSIGN(made->sequence,
                 DecodedSequence::Create(of.codec, of.tokens * of.batch, /*layers=*/1));
    made->group = of.group;
    made->tables = made->sequence->Pieces(of.batch);
    QUIRE_TRY(made->SpreadSlots(IsEmulated(backend) ? kEmulatedArenaBytesMax : kArenaBytesMax));
    if (!IsIdentity(of.codec)) QUIRE_TRY(made->OpenLastBlocks(of));
    std::vector<float> queries = Queries(of.rows * of.batch, of.group);
    for (float& query : queries) query = Bf16ToF32(F32ToBf16(query));  // as those of a bf16 model
    const uint64_t floats = queries.size() * sizeof(float);
    QUIRE_TRY(made->queries.Reserve(floats));
    QUIRE_TRY(made->out.Reserve(floats));
    QUIRE_TRY(made->sink.Reserve(sizeof(float)));
    made->device.CopyIn(queries.data(), floats, made->queries.as<void>());
    for (uint32_t i = 0; i < of.batch; ++i) {
      const uint64_t at = uint64_t{i} * of.rows * kKvHeads * of.group * kHeadDim;
      made->tasks.push_back(made->sequence->Task(of.rows, made->queries.as<float>() + at,
                                                 made->out.as<float>() + at, i, of.batch));
    }
    return made;
  }

  /// Copies the host's slots, which have one layer, into those of an arena of as many layers as
  /// the model has.
  Result<void> SpreadSlots(uint64_t bytes_max) {
    const uint64_t slot_bytes = tables.sealed.slot_stride_bytes;
    const uint64_t bytes = sequence->bytes();
    layers = static_cast<uint32_t>(std::clamp<uint64_t>(bytes_max / bytes, 1, kModelLayers));
    QUIRE_TRY(slots.Reserve(bytes * layers));
    device.Copy(tables.sealed.base, slots.as<void>(),
                {.count = static_cast<uint32_t>(bytes / slot_bytes),
                 .bytes = slot_bytes,
                 .from_stride_bytes = slot_bytes,
                 .to_stride_bytes = slot_bytes * layers});
    for (BlockTable* table : {&tables.sealed, &tables.open}) {
      table->base = slots.as<std::byte>();
      table->slot_stride_bytes = slot_bytes * layers;
    }
    return device.Synchronize();
  }

  /// Devices read no codes open: the last rows of each sequence have their own blocks in bf16.
  Result<void> OpenLastBlocks(const Shape& of) {
    const uint32_t blocks = DivUp(of.rows, sequence->block_tokens());
    QUIRE_ASSIGN(opened, DecodedSequence::Create(Codec::kBf16,
                                                 blocks * of.batch * sequence->block_tokens(), 1));
    opened_slots.assign(sequence->blocks(), kNoSlot);
    for (uint32_t i = 0; i < of.batch; ++i) {
      const uint64_t end = tables.sealed.indptr[i + 1];
      for (uint32_t b = 0; b < blocks; ++b) opened_slots[end - blocks + b] = i * blocks + b;
    }
    QUIRE_TRY(opened_memory.Reserve(opened->bytes()));
    tables.open = opened->Tables({tables.sealed.indptr, of.batch + 1}, opened_slots.data()).open;
    device.CopyIn(tables.open.base, opened->bytes(), opened_memory.as<void>());
    tables.open.base = opened_memory.as<std::byte>();
    return {};
  }

  AttentionShape AttendedShape() const {
    AttentionShape shape = sequence->Shape(0, group);
    if (opened != nullptr) {
      const AttentionShape open = opened->Shape(0, group);
      shape.open_key = open.key;
      shape.open_value = open.value;
      shape.open_key.rotated = shape.key.rotated;
      shape.open_value.rotated = shape.value.rotated;
    }
    return shape;
  }

  OnDevice(cuda::Device& of, cuda::Arithmetic in)
      : device(of), arithmetic(in), slots(of), opened_memory(of), queries(of), out(of), sink(of) {}

  double Seconds(const std::function<void()>& body) {
    return Must(device.Seconds(cuda::Stream::kCompute, body));
  }
  /// So many layers of a step, which has one plan.
  double Attend(std::span<const AttentionTask> some, uint32_t times) {
    const AttentionShape shape = AttendedShape();
    const auto plan = Must(attention->Prepare(shape, tables, some, *executor));
    return Seconds([&] {
      for (uint32_t i = 0; i < times; ++i) Must(plan->Run(shape, *executor));
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
  std::unique_ptr<DecodedSequence> sequence;
  std::unique_ptr<Executor> executor = MakeThreadPool(1);
  uint32_t group = 0;
  uint32_t layers = 0;  // that a slot has room for
  BlockTables tables;
  cuda::DeviceBuffer slots;
  std::unique_ptr<DecodedSequence> opened;  // null: blocks are read open as they are sealed
  std::vector<uint32_t> opened_slots;       // [blocks]
  cuda::DeviceBuffer opened_memory;
  cuda::DeviceBuffer queries;
  cuda::DeviceBuffer out;
  cuda::DeviceBuffer sink;
  std::vector<AttentionTask> tasks;
};

constexpr uint32_t kTimes = 8;  // layers of a step

Result<Subject> Decode(cuda::Backend& backend, const Shape& of) {
  QUIRE_ASSIGN(const auto on, OnDevice::Create(backend, of));
  return Timed{.unit = "ms/layer",
               .less_is_better = true,
               .amount = 1e3 / kTimes,
               .slice = fmt::format("{} rows over {} tokens each, 1 layer of {}, {} times",
                                    of.batch, of.tokens, on->layers, kTimes),
               .work = [=](uint32_t) { return on->Attend(on->tasks, kTimes); },
               .floor = [=](uint32_t) { return on->Read(on->sequence->bytes(), kTimes); }};
}

Result<Subject> Prefill(cuda::Backend& backend, const Shape& of) {
  QUIRE_ASSIGN(const auto on, OnDevice::Create(backend, of));
  const double tokens_seen = of.rows * (of.tokens - of.rows + 0.5 * (of.rows + 1));
  const double multiply_adds = tokens_seen * kKvHeads * of.group * kHeadDim * 2;
  return Timed{.unit = "GFLOP/s",
               .amount = multiply_adds * 2 * 1e-9,
               .slice = fmt::format("{} rows at the end of {} tokens, 1 layer of {}", of.rows,
                                    of.tokens, on->layers),
               .work = [=](uint32_t) { return on->Attend(on->tasks, 1); },
               .floor = [=](uint32_t) { return on->Multiply(multiply_adds); }};
}

/// Rows whose whole context is shared, beside one of them alone.
Result<Subject> Cascade(cuda::Backend& backend, const Shape& of) {
  QUIRE_ASSIGN(const auto on, OnDevice::Create(backend, of));
  std::vector<AttentionTask> many;
  for (uint32_t i = 0; i < of.rows; ++i) {
    const uint64_t at = uint64_t{i} * kKvHeads * of.group * kHeadDim;
    many.push_back(on->sequence->Task(1, on->queries.as<float>() + at, on->out.as<float>() + at));
  }
  const std::vector<AttentionTask> one(many.begin(), many.begin() + 1);
  return Timed{.unit = "ms/layer",
               .less_is_better = true,
               .amount = 1e3 / kTimes,
               .slice = fmt::format("{} rows over {} shared tokens, 1 layer of {}, {} times",
                                    of.rows, of.tokens, on->layers, kTimes),
               .work = [=](uint32_t) { return on->Attend(many, kTimes); },
               .floor = [=](uint32_t) { return on->Attend(one, kTimes); }};
}

}  // namespace

std::vector<Case> DeviceAttentionCases(cuda::Backend& backend) {
  const std::string_view target = backend.device().target();
  std::vector<Shape> decoded = {{.tokens = 256}, {.tokens = 262'144}};
  for (const uint32_t group : {4u, 8u}) {
    for (const uint32_t tokens : {4096u, 32'768u}) {
      for (const uint32_t batch : {1u, 32u}) {
        decoded.push_back({.tokens = tokens, .batch = batch, .group = group});
      }
    }
  }
  for (const Codec codec : {Codec::kF16, Codec::kFp8E4m3, Codec::kInt8, Codec::kInt4, Codec::kNf4,
                            Codec::kFp4, Codec::kQ25}) {
    decoded.push_back({.codec = codec, .tokens = 4096, .batch = 32});
  }
  std::vector<Case> cases;
  for (const Shape& of : decoded) {
    cases.push_back({.name = fmt::format("decode/{}/{}/b{}/g{}/{}", CodecName(of.codec), of.tokens,
                                         of.batch, of.group, target),
                     .prepare = [=, &backend] { return Decode(backend, of); }});
  }
  for (const uint32_t buffers : {2u, 3u, 4u}) {
    for (const uint32_t blocks : {2048u, 4096u, 16'384u}) {
      cases.push_back(
          {.name =
               fmt::format("sweep/bf16/4096/b32/g8/buffers{}/blocks{}/{}", buffers, blocks, target),
           .prepare = [=, &backend] {
             return Decode(backend, {.tokens = 4096,
                                     .batch = 32,
                                     .group = 8,
                                     .options = {.buffers = buffers, .blocks_wanted = blocks}});
           }});
    }
  }
  for (const uint32_t lane_blocks : {UINT32_MAX, 1024u}) {
    cases.push_back({.name = fmt::format("sweep/bf16/8192/b32/g4/{}/{}",
                                         lane_blocks == UINT32_MAX ? "states" : "lanes", target),
                     .prepare = [=, &backend] {
                       return Decode(backend, {.tokens = 8192,
                                               .batch = 32,
                                               .options = {.lane_blocks_wanted = lane_blocks}});
                     }});
  }
  for (const uint32_t folding_blocks : {132u, 264u, 528u}) {
    cases.push_back({.name = fmt::format("sweep/prefill/bf16/8192/chunk2048/blocks{}/{}",
                                         folding_blocks, target),
                     .prepare = [=, &backend] {
                       return Prefill(backend, {.tokens = 8192,
                                                .rows = 2048,
                                                .options = {.folding_blocks = folding_blocks}});
                     }});
  }
  for (const Codec codec : {Codec::kBf16, Codec::kInt8}) {
    Shape of{.codec = codec, .tokens = 32'768, .rows = 2048};
    if (IsEmulated(backend)) of = {.codec = codec, .tokens = 512, .rows = 32};
    cases.push_back({.name = fmt::format("prefill/{}/{}/chunk{}/{}", CodecName(codec), of.tokens,
                                         of.rows, target),
                     .prepare = [=, &backend] { return Prefill(backend, of); }});
  }
  return cases;
}

std::vector<Case> DeviceCascadeCases(cuda::Backend& backend) {
  std::vector<Shape> shapes;
  for (const uint32_t group : {4u, 8u}) {
    for (const uint32_t tokens : {4096u, 32'768u}) {
      shapes.push_back({.tokens = tokens, .rows = 32, .group = group});
    }
  }
  for (const Codec codec : {Codec::kInt8, Codec::kNf4}) {
    shapes.push_back({.codec = codec, .tokens = 32'768, .rows = 32});
  }
  if (IsEmulated(backend)) shapes = {{.tokens = 512, .rows = 4}};
  std::vector<Case> cases;
  for (const Shape& of : shapes) {
    cases.push_back({.name = fmt::format("cascade/{}/{}/{}_beside_1/g{}/{}", CodecName(of.codec),
                                         of.tokens, of.rows, of.group, backend.device().target()),
                     .prepare = [=, &backend] { return Cascade(backend, of); }});
  }
  return cases;
}

}  // namespace quire::bench
