// The table of formats, in which all other code looks formats up.
#ifndef QUIRE_CODEC_FORMATS_H_
#define QUIRE_CODEC_FORMATS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "codec/formats/format.h"
#include "codec/formats/fp4.h"
#include "codec/formats/fp8.h"
#include "codec/formats/int.h"
#include "codec/formats/nf4.h"
#include "codec/formats/q25.h"
#include "quire/attention_types.h"

namespace quire::codec {

template <class... Formats>
struct FormatList {
  static constexpr std::array kCodecs = {Formats::kCodec...};
};

/// Formats that store values as they are, and those that encode, by their numbers.
using IdentityFormats = FormatList<F32Format, F16Format, Bf16Format>;
using EncodingFormats = FormatList<Fp8E4m3, Fp8E5m2, Int8, Int4, Nf4, Fp4, Q25>;

/// The codecs that encode.
inline constexpr auto kEncodingCodecs = EncodingFormats::kCodecs;

/// Properties of a codec that is known only when the program runs.
struct FormatInfo {
  std::string_view name = "unknown";
  CodeLayout layout = CodeLayout::kNone;
  bool has_mids = false;
  float integer_unit = 1.0f;  // the value of integer 1, before scale and mid
};

template <class Format>
constexpr FormatInfo InfoOfFormat() {
  FormatInfo info{.name = Format::kName, .layout = Format::kLayout, .has_mids = Format::kHasMids};
  if constexpr (IntegerFormat<Format>) info.integer_unit = 1.0f / Format::kDivisor;
  return info;
}

namespace internal {

/// Entry i is that of codec i; 0 is none.
inline constexpr auto kInfos = []<class... Identity, class... Encoding>(FormatList<Identity...>,
                                                                        FormatList<Encoding...>) {
  std::array<FormatInfo, 1 + sizeof...(Identity) + sizeof...(Encoding)> infos;
  const auto add = [&]<class Format>(Format) {
    infos[static_cast<size_t>(Format::kCodec)] = InfoOfFormat<Format>();
  };
  (add(Identity()), ...);
  (add(Encoding()), ...);
  return infos;
}(IdentityFormats(), EncodingFormats());

template <class F, class Format, class... Others>
constexpr auto WithFormat(Codec codec, const F& f, FormatList<Format, Others...>) {
  if constexpr (sizeof...(Others) > 0) {
    if (codec != Format::kCodec) return WithFormat(codec, f, FormatList<Others...>());
  } else {
    QUIRE_CHECK(codec == Format::kCodec);
  }
  return f(Format());
}

template <Codec kCodec, class Format, class... Others>
consteval auto FormatWithNumber(FormatList<Format, Others...>) {
  if constexpr (Format::kCodec == kCodec) {
    return Format();
  } else {
    return FormatWithNumber<kCodec>(FormatList<Others...>());
  }
}

}  // namespace internal

/// Of a codec that does not exist: "unknown", CodeLayout::kNone.
constexpr const FormatInfo& InfoOf(Codec codec) {
  const auto number = static_cast<size_t>(codec);
  return internal::kInfos[number < internal::kInfos.size() ? number : 0];
}

/// The struct of a codec that encodes.
template <Codec kCodec>
using FormatOf = decltype(internal::FormatWithNumber<kCodec>(EncodingFormats()));

/// f(Format()) of a codec that encodes.
template <class F>
constexpr auto WithFormat(Codec codec, const F& f) {
  return internal::WithFormat(codec, f, EncodingFormats());
}

/// Codecs whose values are mid + scale * code; the others have no mid.
constexpr bool HasMids(Codec codec) { return InfoOf(codec).has_mids; }

/// Codecs whose codes stand for integers of at most 8 bits, in a unit of their own: attention
/// multiplies those, and sums are exact (docs/numerics.md).
constexpr bool HasIntegerCodes(Codec codec) {
  return InfoOf(codec).layout >= CodeLayout::kByteTiles;
}

/// The value of integer 1, before scale and mid.
constexpr float IntegerUnit(Codec codec) { return InfoOf(codec).integer_unit; }

/// The integer a code stands for.
inline int32_t IntegerOf(Codec codec, uint8_t code) {
  return WithFormat(codec, [&](auto format) -> int32_t {
    if constexpr (IntegerFormat<decltype(format)>) {
      return format.IntegerOf(code);
    } else {
      QUIRE_CHECK(false);
      return 0;
    }
  });
}

/// The code's value before scale and mid.
inline float CodeValue(Codec codec, uint8_t code) {
  return WithFormat(codec, [&](auto format) { return format.ValueOf(code); });
}

}  // namespace quire::codec

#endif  // QUIRE_CODEC_FORMATS_H_
