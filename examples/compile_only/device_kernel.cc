// What the inside of a device kernel sees of the cache: plain structs and indices. Compilers of
// device code read C++17 and nothing of the library but this one header; so is this file compiled.
#include <quire/attention_types.h>

namespace example {

using namespace quire;

// The scores of one query head against one block of f32 keys, as one thread of a kernel for the
// rows of `task` would compute them. What `task` and `tables` point to lies in device memory.
//
// Shape: query [key.dim]; scores [block_tokens]
inline void ScoreBlock(const AttentionShape& shape, const BlockTables& tables,
                       const AttentionTask& task, uint64_t block, uint32_t head, const float* query,
                       float* scores) {
  const uint64_t own_block = task.first_position / shape.key.block_tokens;
  const bool is_open = block + shape.open_blocks >= own_block;
  const StreamLayout& key = is_open && shape.open_key.heads != 0 ? shape.open_key : shape.key;
  const std::byte* const slot =
      (is_open ? tables.open : tables.sealed).BlockAt(task.sequence, block);
  if (slot == nullptr) return;  // a window has passed it
  const auto* const plane =
      reinterpret_cast<const float*>(slot + key.offset_bytes + head * key.head_stride_bytes);
  for (uint32_t token = 0; token < key.block_tokens; ++token) {
    float score = 0.0f;
    for (uint32_t d = 0; d < key.dim; ++d) {
      score += query[d] * shape.scale * plane[uint64_t{d} * key.block_tokens + token];
    }
    scores[token] = score;
  }
}

// Whether a lane of the states that a call goes on from has seen anything yet.
inline bool HasSeen(const AttentionShape& shape, const LaneStates& states, uint32_t row,
                    uint32_t head, uint32_t lane) {
  return states.max[states.At(row, shape.query_heads, head, lane)] > -3.0e38f;
}

void UseBoth(const AttentionShape& shape, const BlockTables& tables, const AttentionTask& task,
             float* scores) {
  if (HasSeen(shape, task.from, 0, 0, 0)) {
    ScoreBlock(shape, tables, task, 0, 0, task.queries, scores);
  }
}

}  // namespace example
