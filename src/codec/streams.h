// The operations on one stream of a block: writing an engine's rows into its open form, reading
// them back, and encoding the open form into the sealed one.
#ifndef QUIRE_CODEC_STREAMS_H_
#define QUIRE_CODEC_STREAMS_H_

#include <cstddef>
#include <cstdint>

#include "quire/attention.h"
#include "quire/sequence.h"

namespace quire::codec {

// Rows of an engine into the planes of a slot and back: conversion, and for K the transpose.

/// Stores rows [row_begin, row_begin + tokens) of `rows` as tokens token_in_block ... of a slot, in
/// the stream's codec: nearest even, f16 saturating finite values at +-65504. Rows that have the
/// stream's dtype already are copied bit for bit. Rows of a rotated stream are rotated first
/// (codec/rotate.h), finite values beyond +-2^116 as those. Bytes of other tokens are left as they
/// are.
///
/// Shape:   rows (token, head, dim); needs token_in_block + tokens <= stream.block_tokens
/// Threads: different tokens of one slot may be written by different threads at once
void WriteRows(const StreamLayout& stream, const RowsView& rows, uint32_t row_begin,
               uint32_t tokens, uint32_t token_in_block, std::byte* slot);

/// The inverse, widened to f32; of a stream that is encoded mid + scale * code, two roundings. Rows
/// of a rotated stream are rotated back.
///
/// Shape: out [heads][tokens][dim], heads out_head_stride elements apart
void ReadRows(const StreamLayout& stream, const std::byte* slot, uint32_t token_in_block,
              uint32_t tokens, float* out, int64_t out_head_stride);

// Sealing: a block of one stream from its open form into its sealed one, and reading it back.

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

#endif  // QUIRE_CODEC_STREAMS_H_
