// Reading sealed blocks back: the inverse of encode.h.
#ifndef QUIRE_CODEC_DECODE_H_
#define QUIRE_CODEC_DECODE_H_

#include <cstddef>
#include <cstdint>

#include "quire/attention.h"

namespace quire::codec {

/// Values of tokens [token, token + tokens) of one head of a codec that encodes, as they were
/// encoded (still rotated): mid + scale * code, two roundings.
///
/// Shape:   out [tokens][dim]
/// Threads: any
/// Cost:    no allocation; sixteen tokens are decoded where one of them is wanted
void DecodeRows(const StreamLayout& sealed, const std::byte* slot, uint32_t head, uint32_t token,
                uint32_t tokens, float* out);

}  // namespace quire::codec

#endif  // QUIRE_CODEC_DECODE_H_
