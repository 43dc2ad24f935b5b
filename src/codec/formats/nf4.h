// nf4: sixteen quantiles of a normal distribution, with a scale for each token.
#ifndef QUIRE_CODEC_FORMATS_NF4_H_
#define QUIRE_CODEC_FORMATS_NF4_H_

#include "codec/formats/table16.h"

namespace quire::codec {

/// Quantiles within -1..1, zero among them, rounded to 63rds: seven bits are what attention can
/// leave joined. Source: QLoRA, arXiv 2305.14314, appendix E.
inline constexpr IntegerTable kNf4Integers = {-63, -44, -33, -25, -18, -12, -6, 0,
                                              5,   10,  16,  21,  28,  35,  46, 63};

struct Nf4 : AscendingTable16<kNf4Integers, 63> {
  static constexpr Codec kCodec = Codec::kNf4;
  static constexpr std::string_view kName = "nf4";
};

}  // namespace quire::codec

#endif  // QUIRE_CODEC_FORMATS_NF4_H_
