// The kernels that write rows into open slots and read tokens back, with the bits of
// codec/streams.h.
#ifndef QUIRE_CUDA_KERNELS_ROWS_INL_H_
#define QUIRE_CUDA_KERNELS_ROWS_INL_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/float_bits.h"
#include "codec/planes.h"
#include "codec/rotate.h"
#include "codec/scalar.h"
#include "cuda/kernels/blocks.h"
#include "cuda/kernels/formats-inl.h"
#include "cuda/kernels/rotate-inl.h"
#include "cuda/kernels/simt.h"

namespace quire::cuda {

/// Shared memory of a block: one row.
constexpr uint32_t RowSharedBytes(uint32_t dim) { return dim * 4; }

/// Value `index` of values as they are.
QUIRE_KERNEL float LoadValueAt(Codec codec, const std::byte* from, uint64_t index) {
  if (codec == Codec::kF32) return Load<float>(from + index * 4);
  const auto code = Load<uint16_t>(from + index * 2);
  return codec == Codec::kF16 ? F16ToF32(code) : Bf16ToF32(code);
}

QUIRE_KERNEL void StoreValueAt(Codec codec, float value, std::byte* to, uint64_t index) {
  if (codec == Codec::kF32) {
    *reinterpret_cast<float*>(to + index * 4) = value;
    return;
  }
  *reinterpret_cast<uint16_t*>(to + index * 2) =
      codec == Codec::kF16 ? codec::F32ToStoredF16(value) : F32ToBf16(value);
}

/// Blocks of threads of a launch, and the shared memory of each.
constexpr uint32_t WriteBlocks(const WriteArgs& args) {
  return args.count * args.heads_max * args.tokens_max;
}
constexpr uint32_t WriteSharedBytes(const WriteArgs& args) {
  uint32_t bytes = 0;
  for (uint32_t i = 0; i < args.stream_count; ++i) {
    bytes = std::max(bytes, RowSharedBytes(args.streams[i].layout.dim));
  }
  return bytes;
}

template <class Thread>
QUIRE_KERNEL void WriteRow(Thread& self, const WriteArgs& args) {
  const uint32_t rows = args.heads_max * args.tokens_max;
  const WrittenBlock& block = args.blocks[self.block() / rows];
  const WrittenStream& written = args.streams[block.stream];
  const StreamLayout& stream = written.layout;
  const uint32_t head = self.block() % rows / args.tokens_max;
  const uint32_t token = self.block() % args.tokens_max;
  if (head >= stream.heads || token >= block.tokens) return;
  const Codec dtype = written.dtype;
  const uint64_t value_bytes = codec::ValueBytes(dtype);
  const std::byte* from = block.rows + (token * written.token_stride + head * written.head_stride) *
                                           static_cast<int64_t>(value_bytes);
  std::byte* plane = block.slot + stream.offset_bytes + head * stream.head_stride_bytes;
  const uint32_t in_block = block.token_begin + token;
  if (!stream.rotated) {
    for (uint32_t d = self.id(); d < stream.dim; d += self.count()) {
      const uint64_t at = ValueIndex(stream, in_block, d);
      if (dtype == stream.codec && value_bytes == 2) {  // bit for bit
        *reinterpret_cast<uint16_t*>(plane + at * 2) = Load<uint16_t>(from + uint64_t{d} * 2);
      } else {
        StoreValueAt(stream.codec, LoadValueAt(dtype, from, d), plane, at);
      }
    }
    return;
  }
  auto* const row = reinterpret_cast<float*>(self.shared());
  for (uint32_t d = self.id(); d < stream.dim; d += self.count()) {
    const float value = LoadValueAt(dtype, from, d);
    const float magnitude = value < 0.0f ? -value : value;
    const bool too_large = magnitude > 0x1p116f && magnitude <= std::numeric_limits<float>::max();
    row[d] = too_large ? (value < 0.0f ? -0x1p116f : 0x1p116f) : value;
  }
  self.Sync();
  RotateShared(self, row, stream.dim);
  for (uint32_t d = self.id(); d < stream.dim; d += self.count()) {
    StoreValueAt(stream.codec, row[d], plane, ValueIndex(stream, in_block, d));
  }
}

template <class Format>
QUIRE_KERNEL float ReadOne(const StreamLayout& stream, const std::byte* slot, uint32_t head,
                           uint32_t token, uint32_t d) {
  const std::byte* plane = slot + stream.offset_bytes + head * stream.head_stride_bytes;
  if constexpr (!kEncodes<Format>) {
    return LoadValueAt(Format::kCodec, plane, ValueIndex(stream, token, d));
  } else {
    const std::byte* at = slot + codec::ScaleAt(stream, head, token);
    const float scale = F16ToF32(Load<uint16_t>(at));
    float mid = 0.0f;
    if (Format::kHasMids) mid = F16ToF32(LoadHalf(at, stream.block_tokens));
    const float product =
        scale * Format::ValueOf(codec::LoadCode(Format::kLayout, stream, plane, token, d));
    return mid + product;
  }
}

template <class Thread>
QUIRE_KERNEL void ReadRow(Thread& self, const ReadArgs& args) {
  const StreamLayout& stream = args.stream;
  const uint32_t head = self.block() / args.tokens;
  const uint32_t token = self.block() % args.tokens;
  auto* const row = reinterpret_cast<float*>(self.shared());
  Any::With(stream.codec, [&](auto format) {
    for (uint32_t d = self.id(); d < stream.dim; d += self.count()) {
      row[d] = ReadOne<decltype(format)>(stream, args.slot, head, args.token_begin + token, d);
    }
  });
  self.Sync();
  if (stream.rotated) RotateShared(self, row, stream.dim);
  for (uint32_t d = self.id(); d < stream.dim; d += self.count()) {
    args.out[uint64_t{self.block()} * stream.dim + d] = row[d];
  }
}

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_ROWS_INL_H_
