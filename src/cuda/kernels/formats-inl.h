// Stored values in kernels: formats by codec, and one value at a time.
#ifndef QUIRE_CUDA_KERNELS_FORMATS_INL_H_
#define QUIRE_CUDA_KERNELS_FORMATS_INL_H_

#include <cstddef>
#include <cstdint>

#include "codec/formats.h"
#include "cuda/kernels/simt.h"

namespace quire::cuda {

/// A codec that is known when the kernel is compiled.
template <class Format>
struct Known {
  template <typename F>
  QUIRE_KERNEL static void With(Codec codec, const F& f) {
    (void)codec;
    f(Format());
  }
};

/// Any codec, chosen by the stream.
struct Any {
  template <typename F>
  QUIRE_KERNEL static void With(Codec codec, const F& f) {
    switch (codec) {
      case Codec::kF32: return f(codec::F32Format());
      case Codec::kF16: return f(codec::F16Format());
      case Codec::kBf16: return f(codec::Bf16Format());
      case Codec::kFp8E4m3: return f(codec::Fp8E4m3());
      case Codec::kFp8E5m2: return f(codec::Fp8E5m2());
      case Codec::kInt8: return f(codec::Int8());
      case Codec::kInt4: return f(codec::Int4());
      case Codec::kNf4: return f(codec::Nf4());
      case Codec::kFp4: return f(codec::Fp4());
      case Codec::kQ25: return f(codec::Q25());
    }
  }
};

template <class Format>
inline constexpr bool kIsInteger = Format::kLayout >= codec::CodeLayout::kByteTiles;
template <class Format>
inline constexpr bool kEncodes = Format::kLayout != codec::CodeLayout::kValues;

/// Value `index` of a plane of values or of bytes, widened, before its scale.
template <class Format>
QUIRE_KERNEL float LoadNumber(const std::byte* plane, uint64_t index) {
  if constexpr (Format::kCodec == Codec::kF32) {
    return Load<float>(plane + index * 4);
  } else if constexpr (Format::kCodec == Codec::kF16) {
    return WidenF16(Load<uint16_t>(plane + index * 2));
  } else if constexpr (Format::kCodec == Codec::kBf16) {
    return Bf16ToF32(Load<uint16_t>(plane + index * 2));
  } else {
    return Format::ValueOf(Load<uint8_t>(plane + index));
  }
}

/// Where channel d of a token of values as they are lies in its plane.
QUIRE_KERNEL uint64_t ValueIndex(const StreamLayout& stream, uint32_t token, uint32_t d) {
  return stream.inner == InnerAxis::kToken ? uint64_t{d} * stream.block_tokens + token
                                           : uint64_t{token} * stream.dim + d;
}

/// The form in which open blocks are: values as they are, in any of three codecs.
QUIRE_KERNEL float LoadOpen(const StreamLayout& stream, const std::byte* plane, uint32_t token,
                            uint32_t d) {
  const uint64_t index = ValueIndex(stream, token, d);
  if (stream.codec == Codec::kF32) return LoadNumber<codec::F32Format>(plane, index);
  if (stream.codec == Codec::kF16) return LoadNumber<codec::F16Format>(plane, index);
  return LoadNumber<codec::Bf16Format>(plane, index);
}

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_FORMATS_INL_H_
