// Rows of an engine into the planes of a slot and back: conversion, and for K the transpose.
#ifndef QUIRE_CODEC_ROWS_H_
#define QUIRE_CODEC_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "quire/attention.h"
#include "quire/sequence.h"

namespace quire::codec {

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

}  // namespace quire::codec

#endif  // QUIRE_CODEC_ROWS_H_
