#include "cuda/runtime/kernel_list.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <functional>
#include <utility>

#include "cuda/runtime/launch.h"
#include "cuda/runtime/launched.h"
#include "quire/geometry.h"

namespace quire::cuda {
namespace {

constexpr uint32_t kQueryHeads = 16;
constexpr uint32_t kHeads = 8;
constexpr uint32_t kDim = 128;
constexpr uint32_t kTokens = 16;  // of a block

StreamLayout LayoutOf(Codec codec, InnerAxis inner) {
  return {.codec = codec, .inner = inner, .heads = kHeads, .dim = kDim, .block_tokens = kTokens};
}

AttentionShape ShapeOf(Codec codec) {
  AttentionShape shape{.query_heads = kQueryHeads,
                       .key = LayoutOf(codec, InnerAxis::kToken),
                       .value = LayoutOf(codec, InnerAxis::kDim)};
  if (codec > Codec::kBf16) {
    shape.open_key = LayoutOf(Codec::kF16, InnerAxis::kToken);
    shape.open_value = LayoutOf(Codec::kF16, InnerAxis::kDim);
  }
  return shape;
}

class KernelLister {
 public:
  explicit KernelLister(uint32_t threads_of_processor)
      : threads_of_processor_(threads_of_processor) {}

  void Attention() {
    for (const uint32_t queries : {4u, 8u, 16u}) {
      for (const Codec codec : kCodecs) {
        // Pairs of codecs that differ, and f32, have one kernel together.
        Add(fmt::format("{}, {} query vectors", codec == Codec::kF32 ? "any" : CodecName(codec),
                        queries),
            [&](LaunchSink& sink) {
              LaunchSplits({.shape = ShapeOf(codec)}, {.blocks = 1, .queries_max = queries}, sink);
            });
      }
    }
    Add("", [](LaunchSink& sink) {
      LaunchFold({.value = LayoutOf(Codec::kF16, InnerAxis::kDim)}, 1, sink);
    });
  }

  void MatrixAttention(bool bulk_copies) {
    struct Way {
      Staging staging;
      const char* name;
      Codec codec;
    };
    for (const Way& way :
         {Way{Staging::kBulk, "bulk", Codec::kBf16}, Way{Staging::kCopied, "copied", Codec::kBf16},
          Way{Staging::kCodes, "codes", Codec::kInt8}}) {
      if (way.staging == Staging::kBulk && !bulk_copies) continue;
      for (const uint32_t tiles : {1u, kQueryTilesMax}) {
        Add(fmt::format("{}, {} query vectors", way.name, tiles * kMmaColumns),
            [&](LaunchSink& sink) {
              LaunchMatrix(way.codec, {.staging = way.staging, .query_tiles = tiles}, sink);
            });
      }
      if (way.staging == Staging::kCodes) continue;  // no block folds
      Add(way.name, [&](LaunchSink& sink) {
        LaunchMatrix(way.codec, {.folds = true, .staging = way.staging}, sink);
      });
    }
  }

  void Blocks() {
    WriteArgs write{.stream_count = 1, .heads_max = kHeads};
    write.streams[0] = {.layout = LayoutOf(Codec::kF16, InnerAxis::kDim), .dtype = Codec::kF32};
    Add("", [&](LaunchSink& sink) { LaunchWrite(write, sink); });
    Add("", [](LaunchSink& sink) {
      LaunchRead({.stream = LayoutOf(Codec::kF16, InnerAxis::kDim), .tokens = 1}, sink);
    });
    EncodeArgs encode{.stream_count = 1};
    encode.streams[0] = {.open = LayoutOf(Codec::kF16, InnerAxis::kDim),
                         .sealed = LayoutOf(Codec::kInt8, InnerAxis::kDim)};
    Add("", [&](LaunchSink& sink) { LaunchEncode(encode, sink); });
    Add("", [](LaunchSink& sink) { LaunchChecksum({.slot_count = 1, .blocks = 1}, sink); });
  }

  void Model() {
    const auto product = [](uint32_t rows, bool mma) {
      return MatmulArgs{
          .w = {.n = kDim, .k = kDim, .type = Round::kBf16}, .rows = rows, .mma = mma};
    };
    Add("", [&](LaunchSink& sink) { LaunchMatmul(product(kMatmulRows, false), sink); });
    for (const uint32_t rows : {16u, 32u, 64u, 128u}) {
      Add(fmt::format("{} rows", rows),
          [&](LaunchSink& sink) { LaunchMmaProduct(product(rows, true), sink); });
    }
    Add("", [](LaunchSink& sink) { LaunchEmbed({.rows = 1}, sink); });
    Add("", [](LaunchSink& sink) { LaunchNorm({.n = kDim, .rows = 1}, sink); });
    Add("", [](LaunchSink& sink) { LaunchHeads({.rows = 1, .head_dim = kDim}, sink); });
    Add("", [](LaunchSink& sink) { LaunchGate({.n = kDim, .rows = 1}, sink); });
    Add("", [](LaunchSink& sink) { LaunchAdd({.count = kDim}, sink); });
  }

  Result<std::vector<ListedKernel>> Take(uint32_t device) {
    if (error_ != cudaSuccess) {
      return Fail(
          ErrorCode::kIo,
          fmt::format("cuda:{}: {}", device, cudaGetErrorString(static_cast<cudaError_t>(error_))));
    }
    return std::move(kernels_);
  }

 private:
  static void LaunchMatrix(Codec codec, MmaLaunch how, LaunchSink& sink) {
    how.blocks = 1;
    MmaArgs args{.splits = {.shape = ShapeOf(codec)}, .blocks = 1};
    args.shared = SharedOf(args.splits.shape, how.folds, how.staging, how.query_tiles);
    LaunchMma(args, how, sink);
  }

  void Add(const std::string& of, const std::function<void(LaunchSink&)>& launch) {
    ListedLaunches listed;
    launch(listed);
    if (error_ == cudaSuccess) error_ = listed.error();
    for (const KernelUse& use : listed.uses()) {
      kernels_.push_back(
          {.name = use.name,
           .of = of,
           .threads = use.grid.threads,
           .shared_bytes = use.grid.shared_bytes,
           .registers = use.registers,
           .local_bytes = use.local_bytes,
           .blocks = use.blocks_of_processor,
           .occupancy = 1.0 * use.blocks_of_processor * use.grid.threads / threads_of_processor_});
    }
  }

  const uint32_t threads_of_processor_;
  int error_ = cudaSuccess;  // the first one
  std::vector<ListedKernel> kernels_;
};

}  // namespace

Result<std::vector<ListedKernel>> ListKernels(uint32_t device) {
  cudaDeviceProp properties{};
  const int number = static_cast<int>(device);
  cudaError_t error = cudaGetDeviceProperties(&properties, number);
  if (error == cudaSuccess) error = cudaSetDevice(number);
  if (error != cudaSuccess) {
    return Fail(ErrorCode::kIo, fmt::format("cuda:{}: {}", device, cudaGetErrorString(error)));
  }
  KernelLister lister(static_cast<uint32_t>(properties.maxThreadsPerMultiProcessor));
  lister.Attention();
  lister.MatrixAttention(/*bulk_copies=*/properties.major >= 9);
  lister.Blocks();
  lister.Model();
  return lister.Take(device);
}

}  // namespace quire::cuda
