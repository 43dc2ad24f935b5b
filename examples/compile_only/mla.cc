// Multi-head latent attention: one latent per token and layer, read as K and as V.
#include <quire/attention.h>
#include <quire/cache.h>

#include <numeric>
#include <vector>

namespace example {

using namespace quire;

constexpr uint32_t kLayers = 61;
constexpr uint32_t kQueryHeads = 128;
constexpr uint32_t kLatentDim = 512;  // the compressed K and V
constexpr uint32_t kRopeDim = 64;  // the part of K that carries the position, shared by all heads

Result<std::unique_ptr<Cache>> MakeLatentCache(uint64_t hot_bytes) {
  LayerGroup group{.kind = LayerKind::kFull,
                   .layers = std::vector<uint32_t>(kLayers),
                   .streams = {{StreamRole::kLatent, /*heads=*/1, kLatentDim + kRopeDim}}};
  std::iota(group.layers.begin(), group.layers.end(), 0u);
  return Cache::Create({.geometry = {.groups = {group}},
                        .profile = NumericProfile::Uniform(Codec::kBf16),
                        .hot_bytes = hot_bytes});
}

// One layer of one step. The queries are absorbed: multiplied by W_UK beforehand, so that their dot
// product with the latent is the score; W_UV follows the output.
//
// Shape: latents [tokens, 576]; queries and out [tokens, 128, 576]. The last 64 channels of `out`
// are the rope part, which no V has: the caller leaves them out.
Result<void> AttendLayer(Sequence& sequence, uint32_t layer, const std::vector<uint16_t>& latents,
                         const std::vector<float>& queries, AttentionBackend& backend,
                         Executor& executor, std::vector<float>& out) {
  constexpr uint32_t kDim = kLatentDim + kRopeDim;
  const auto tokens = static_cast<uint32_t>(latents.size() / kDim);
  const uint64_t first_position = sequence.cursor(layer);
  QUIRE_TRY(sequence.Append(layer, {.key = {.data = latents.data(),
                                            .dtype = Codec::kBf16,
                                            .token_stride = kDim,
                                            .head_stride = kDim},
                                    .tokens = tokens}));
  const LayerBlocks blocks = sequence.Blocks(layer);
  const AttentionShape shape{.query_heads = kQueryHeads,
                             .key = blocks.key,
                             .value = blocks.value,    // the same bytes as key
                             .scale = 0.0721687836f};  // 1 / sqrt(128 + 64), the uncompressed dim
  out.resize(queries.size());
  const AttentionTask task{.queries = queries.data(),
                           .out = out.data(),
                           .rows = tokens,
                           .first_position = first_position};
  return backend.Attend(shape, blocks.tables, {&task, 1}, executor);
}

}  // namespace example
