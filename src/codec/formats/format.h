// What a format of stored values is made of. Each is a struct with no data:
//
//   kCodec, kName      its number, and its name on the command line
//   kLayout            how its codes lie in a plane (codec/planes.h)
//   kHasMids           values are mid + scale * value of code, instead of scale * value of code
//   kCodeMax           the largest magnitude of a code's value, if it has no mids
//   CodeOf(scaled)     the code of a value divided by its token's scale: the judge of the vector
//                      version, Codes() in the format's -inl.h
//   ValueOf(code)      what the code stands for, before scale and mid
//
// Those whose codes stand for integers of at most eight bits, which attention multiplies as such:
//
//   IntegerOf(code)    the integer
//   kDivisor           integers per value of 1: ValueOf is IntegerOf / kDivisor
//   kBias              added to an integer it has no sign (0: attention reads it signed)
//
// Identity formats have the first four only, without mids. codec/formats.h lists all formats.
#ifndef QUIRE_CODEC_FORMATS_FORMAT_H_
#define QUIRE_CODEC_FORMATS_FORMAT_H_

#include <cstdint>
#include <string_view>

#include "quire/attention_types.h"

namespace quire::codec {

/// How codes lie in a plane.
enum class CodeLayout : uint8_t {
  kNone,         // there is no such codec
  kValues,       // no codes: values of two or four bytes
  kBytes,        // a byte each, in the order of values
  kByteTiles,    // tiles of integers, a byte each
  kNibbleTiles,  // tiles of codes of half a byte
  kPairTiles,    // tiles of codes of five bits, each for two channels
};

/// Tokens of K, or channels of V, that a tile has sums for.
inline constexpr uint32_t kTileLanes = 16;

/// Formats with integer codes.
template <class Format>
concept IntegerFormat = requires { Format::IntegerOf(0); };

struct F32Format {
  static constexpr Codec kCodec = Codec::kF32;
  static constexpr std::string_view kName = "f32";
  static constexpr CodeLayout kLayout = CodeLayout::kValues;
  static constexpr bool kHasMids = false;
};

struct F16Format {
  static constexpr Codec kCodec = Codec::kF16;
  static constexpr std::string_view kName = "f16";
  static constexpr CodeLayout kLayout = CodeLayout::kValues;
  static constexpr bool kHasMids = false;
};

struct Bf16Format {
  static constexpr Codec kCodec = Codec::kBf16;
  static constexpr std::string_view kName = "bf16";
  static constexpr CodeLayout kLayout = CodeLayout::kValues;
  static constexpr bool kHasMids = false;
};

}  // namespace quire::codec

#endif  // QUIRE_CODEC_FORMATS_FORMAT_H_
