// Layers that look back a window, with attention sinks, between layers that see everything.
#include <quire/attention.h>
#include <quire/cache.h>

#include <vector>

namespace example {

using namespace quire;

// Every sixth layer is global, as in Gemma 3. The two groups may differ in heads and dim, too.
Geometry MixedGeometry(uint32_t layers) {
  const std::vector<Stream> streams = {{StreamRole::kKey, /*heads=*/4, /*dim=*/256},
                                       {StreamRole::kValue, 4, 256}};
  LayerGroup global{.kind = LayerKind::kFull, .layers = {}, .streams = streams};
  LayerGroup local{.kind = LayerKind::kWindow,
                   .layers = {},
                   .window_tokens = 1024,
                   .sink_tokens = 4,
                   .streams = streams};
  for (uint32_t layer = 0; layer < layers; ++layer) {
    (layer % 6 == 5 ? global : local).layers.push_back(layer);
  }
  return {.groups = {std::move(global), std::move(local)}};
}

// The group of a layer says how far its queries see.
AttentionShape ShapeOf(const Geometry& geometry, uint32_t layer, const LayerBlocks& blocks,
                       uint32_t query_heads, float scale) {
  AttentionShape shape{
      .query_heads = query_heads, .key = blocks.key, .value = blocks.value, .scale = scale};
  for (const LayerGroup& group : geometry.groups) {
    for (const uint32_t member : group.layers) {
      if (member != layer) continue;
      shape.window_tokens = group.window_tokens;  // 0 in full-attention groups
      shape.sink_tokens = group.sink_tokens;
    }
  }
  return shape;
}

// One decode step of a batch: every sequence is one task of the same call.
//
// Shape: queries and out [sequences, query_heads, dim]
Result<void> DecodeLayer(std::span<Sequence* const> sequences, const Geometry& geometry,
                         uint32_t layer, uint32_t query_heads, const std::vector<float>& queries,
                         std::vector<float>& out, AttentionBackend& backend, Executor& executor) {
  std::vector<AttentionTask> tasks;
  BatchTables tables;
  AttentionShape shape;
  const uint64_t stride = queries.size() / sequences.size();
  for (Sequence* sequence : sequences) {
    const LayerBlocks blocks = sequence->Blocks(layer);
    QUIRE_TRY(tables.Add(blocks.tables));
    shape = ShapeOf(geometry, layer, blocks, query_heads, 0.0625f);
    const auto index = static_cast<uint32_t>(tasks.size());
    tasks.push_back({.queries = queries.data() + index * stride,
                     .out = out.data() + index * stride,
                     .rows = 1,
                     .first_position = blocks.tokens - 1,
                     .sequence = index});
  }
  return backend.Attend(shape, tables.tables(), tasks, executor);
}

}  // namespace example
