// What the tests of twins share: caches that read their last tokens open, and the bytes of blocks.
#ifndef QUIRE_CACHE_SEQUENCE_TWINS_TEST_UTIL_H_
#define QUIRE_CACHE_SEQUENCE_TWINS_TEST_UTIL_H_

#include <cstddef>
#include <vector>

#include "cache/test_util.h"

namespace quire::cache {

inline NumericProfile ResidualProfile(uint32_t residual_tokens, Codec codec = Codec::kInt8) {
  NumericProfile profile = NumericProfile::Uniform(Codec::kBf16);
  for (CodecRule& rule : profile.codecs) rule.codec = codec;
  profile.residual_tokens = residual_tokens;
  return profile;
}

/// The planes of one block and layer, K then V; empty where there is no block.
inline std::vector<std::byte> PlanesOf(const std::byte* slot, const StreamLayout& key,
                                       const StreamLayout& value) {
  std::vector<std::byte> bytes;
  if (slot == nullptr) return bytes;
  for (const StreamLayout& stream : {key, value}) {
    const std::byte* const begin = OnHost(slot + stream.offset_bytes);
    bytes.insert(bytes.end(), begin, begin + stream.heads * stream.head_stride_bytes);
  }
  return bytes;
}

/// What a row right after the sequence's last token reads of whole blocks: of each its sealed form,
/// of the last ones the open form.
inline std::vector<std::vector<std::byte>> ReadAtEnd(const Sequence& sequence, uint32_t layer,
                                                     uint32_t block_tokens) {
  const LayerBlocks blocks = sequence.Blocks(layer);
  const uint64_t whole = sequence.length() / block_tokens;
  std::vector<std::vector<std::byte>> read;
  for (uint64_t block = 0; block < whole; ++block) {
    const bool open = block + blocks.open_blocks >= whole;
    read.push_back(open ? PlanesOf(blocks.open(block), blocks.open_key, blocks.open_value)
                        : PlanesOf(blocks.sealed(block), blocks.key, blocks.value));
  }
  return read;
}

}  // namespace quire::cache

#endif  // QUIRE_CACHE_SEQUENCE_TWINS_TEST_UTIL_H_
