// The codecs that the conformance suite runs on, and what each promises.
#ifndef QUIRE_TESTS_SUITE_CODEC_MODELS_H_
#define QUIRE_TESTS_SUITE_CODEC_MODELS_H_

#include <gtest/gtest.h>

#include "quire/geometry.h"

namespace quire::codec {

/// Bits for each value with scales at head_dim 128, and the least signal-to-noise ratio of normal
/// values in decibels: about half a decibel below what the format gives.
template <Codec kCodecOfModel, int kMilliBitsMax, int kDecibelMin>
struct CodecModel {
  static constexpr Codec kCodec = kCodecOfModel;
  static constexpr double kBitsMax = kMilliBitsMax / 1000.0;
  static constexpr double kDecibel = kDecibelMin;
};

using CodecModels =
    testing::Types<CodecModel<Codec::kFp8E4m3, 8125, 31>, CodecModel<Codec::kFp8E5m2, 8125, 25>,
                   CodecModel<Codec::kInt8, 8250, 44>, CodecModel<Codec::kInt4, 4250, 19>,
                   CodecModel<Codec::kNf4, 4125, 20>, CodecModel<Codec::kFp4, 4125, 18>,
                   CodecModel<Codec::kQ25, 2750, 12>>;

}  // namespace quire::codec

#endif  // QUIRE_TESTS_SUITE_CODEC_MODELS_H_
