// Sealing: a block of one stream from its open form into its sealed one, and reading it back.
#ifndef QUIRE_CODEC_ENCODE_H_
#define QUIRE_CODEC_ENCODE_H_

#include <cstddef>
#include <cstdint>

#include "quire/attention.h"

namespace quire::codec {

/// Encodes all block_tokens tokens of one stream (docs/codecs.md). An identity codec is copied, or
/// converted if it is not the open dtype. Other streams' bytes are left as they are. A token with a
/// NaN or an infinity becomes NaN.
///
/// Shape:   `open` of an identity codec; both of the same heads, dim, block_tokens and inner
/// Threads: any, on different streams or slots
/// Cost:    no allocation
void EncodeBlock(const StreamLayout& open, const std::byte* open_slot, const StreamLayout& sealed,
                 std::byte* sealed_slot);

/// Values of tokens [token, token + tokens) of one head of a codec that encodes, as they were
/// encoded (still rotated): mid + scale * code, two roundings.
///
/// Shape:   out [tokens][dim]
/// Threads: any
/// Cost:    no allocation; sixteen tokens are decoded where one of them is wanted
void DecodeRows(const StreamLayout& sealed, const std::byte* slot, uint32_t head, uint32_t token,
                uint32_t tokens, float* out);

}  // namespace quire::codec

#endif  // QUIRE_CODEC_ENCODE_H_
