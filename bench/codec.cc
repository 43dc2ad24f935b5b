// Codecs: how fast blocks are sealed and read back beside a plain copy, and what that does to K, V
// and the output of attention. The floor of a distortion is the least any code of as many bits has
// for normal values, 6.02 dB for each bit.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

#include "base/prng.h"
#include "bench/bench.h"
#include "bench/pairs.h"
#include "bench/quiet.h"
#include "codec/planes.h"
#include "codec/slot_layout.h"
#include "codec/streams.h"
#include "codec/token_codec.h"
#include "quire/env.h"

namespace quire::bench {
namespace {

constexpr uint32_t kDim = 128;
constexpr uint32_t kSlotTokens = 16;
constexpr uint32_t kSampleTokens = 256;
constexpr uint32_t kQueries = 32;
constexpr uint32_t kScaleTokens = 64;  // that share a per-channel scale

/// The transformation of K that makes one scale for each token enough.
enum class Method { kPlain, kRotated, kFactors, kRotatedFactors, kChannelScales };
constexpr std::pair<Method, const char*> kMethods[] = {{Method::kPlain, "plain"},
                                                       {Method::kRotated, "rotated"},
                                                       {Method::kFactors, "factors"},
                                                       {Method::kRotatedFactors, "rotated_factors"},
                                                       {Method::kChannelScales, "channel_scales"}};

struct Outliers {
  uint32_t channels = 0;
  float times = 1.0f;
};

float NextNormal(Prng& prng) {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - prng.NextFloat(0.0f, 1.0f)));
  return static_cast<float>(radius * std::cos(2.0 * std::numbers::pi * prng.NextFloat(0.0f, 1.0f)));
}

/// One head. Outlier channels of K are larger by a factor, those of the queries smaller by it, as
/// in a model that normalizes both: the scores are those of normal values.
struct Sample {
  std::vector<float> key;      // [kSampleTokens][kDim]
  std::vector<float> value;    // [kSampleTokens][kDim]
  std::vector<float> queries;  // [kQueries][kDim]
};

Sample MakeSample(const Outliers& outliers, uint64_t seed) {
  Prng prng(seed);
  Sample sample;
  const auto fill = [&](std::vector<float>& rows, uint32_t count, float times) {
    rows.resize(uint64_t{count} * kDim);
    for (uint32_t i = 0; i < rows.size(); ++i) {
      const uint32_t d = i % kDim;
      const bool outlier = d % 31 == 7 && d / 31 < outliers.channels;
      rows[i] = NextNormal(prng) * (outlier ? times : 1.0f);
    }
  };
  fill(sample.key, kSampleTokens, outliers.times);
  fill(sample.value, kSampleTokens, 1.0f);
  fill(sample.queries, kQueries, 1.0f / outliers.times);
  return sample;
}

/// Rows as they come back from sealed blocks.
Result<std::vector<float>> ThroughBlocks(Codec codec, StreamRole role, bool rotated,
                                         const std::vector<float>& rows) {
  NumericProfile profile = NumericProfile::Uniform(codec);
  profile.open_dtype = Codec::kF16;
  const Geometry geometry = Geometry::Uniform(1, 1, kDim);
  QUIRE_ASSIGN(const auto sealed,
               codec::SlotLayout::Create(geometry, profile, ArenaLayout::kBlockMajor));
  QUIRE_ASSIGN(const auto open, codec::SlotLayout::CreateOpen(geometry, profile));
  QUIRE_ASSIGN(StreamLayout from, open.Find(0, role));
  QUIRE_ASSIGN(StreamLayout to, sealed.Find(0, role));
  from.rotated = rotated;
  to.rotated = rotated;
  std::vector<std::byte> open_slot(open.slot_bytes(0));
  std::vector<std::byte> sealed_slot(sealed.slot_bytes(0));
  std::vector<float> read(rows.size());
  for (uint32_t t = 0; t < kSampleTokens; t += kSlotTokens) {
    codec::WriteRows(from, {.data = rows.data(), .token_stride = kDim, .head_stride = kDim}, t,
                     kSlotTokens, 0, open_slot.data());
    codec::EncodeBlock(from, open_slot.data(), to, sealed_slot.data());
    codec::ReadRows(to, sealed_slot.data(), 0, kSlotTokens, read.data() + uint64_t{t} * kDim,
                    int64_t{kSlotTokens} * kDim);
  }
  return read;
}

/// A scale for each channel of kScaleTokens tokens.
std::vector<float> WithChannelScales(Codec codec, const std::vector<float>& rows) {
  std::vector<float> read(rows.size());
  std::vector<float> column(kScaleTokens);
  std::vector<uint8_t> codes(kScaleTokens);
  const bool pairs = codec::CodeCount(codec, InnerAxis::kToken, kScaleTokens) != kScaleTokens;
  for (uint32_t begin = 0; begin < kSampleTokens; begin += kScaleTokens) {
    for (uint32_t d = 0; d < kDim; ++d) {
      for (uint32_t t = 0; t < kScaleTokens; ++t) column[t] = rows[(begin + t) * kDim + d];
      const codec::TokenScale scale = codec::EncodeToken(codec, InnerAxis::kToken, column, codes);
      for (uint32_t t = 0; t < kScaleTokens; ++t) {
        const codec::PairMember member = codec::PairOf(InnerAxis::kToken, t);
        const uint32_t code =
            pairs ? codes[member.pair] | (member.second ? codec::kSecondOfPair : 0u) : codes[t];
        read[(begin + t) * kDim + d] =
            F16ToF32(scale.mid) +
            F16ToF32(scale.scale) * codec::CodeValue(codec, static_cast<uint8_t>(code));
      }
    }
  }
  return read;
}

/// Powers of two near each channel's root mean square.
std::vector<float> Factors(const std::vector<float>& rows) {
  std::vector<float> factors(kDim);
  for (uint32_t d = 0; d < kDim; ++d) {
    double squares = 0;
    for (uint32_t t = 0; t < kSampleTokens; ++t) squares += std::pow(double{rows[t * kDim + d]}, 2);
    factors[d] = std::exp2(std::round(static_cast<float>(std::log2(squares / kSampleTokens) / 2)));
  }
  return factors;
}

Result<std::vector<float>> Key(Codec codec, Method method, const std::vector<float>& rows) {
  if (method == Method::kChannelScales) return WithChannelScales(codec, rows);
  const bool rotated = method == Method::kRotated || method == Method::kRotatedFactors;
  if (method == Method::kPlain || method == Method::kRotated) {
    return ThroughBlocks(codec, StreamRole::kKey, rotated, rows);
  }
  const std::vector<float> factors = Factors(rows);
  std::vector<float> scaled = rows;
  for (uint32_t i = 0; i < scaled.size(); ++i) scaled[i] /= factors[i % kDim];
  QUIRE_ASSIGN(auto read, ThroughBlocks(codec, StreamRole::kKey, rotated, scaled));
  for (uint32_t i = 0; i < read.size(); ++i) read[i] *= factors[i % kDim];
  return read;
}

double Decibel(const std::vector<float>& exact, const std::vector<float>& got) {
  double signal = 0;
  double noise = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    signal += std::pow(double{exact[i]}, 2);
    noise += std::pow(double{exact[i]} - got[i], 2);
  }
  return 10 * std::log10(signal / noise);
}

std::vector<float> Attend(const std::vector<float>& queries, const std::vector<float>& key,
                          const std::vector<float>& value) {
  std::vector<float> out(queries.size());
  for (uint32_t q = 0; q < kQueries; ++q) {
    std::vector<double> scores(kSampleTokens);
    for (uint32_t t = 0; t < kSampleTokens; ++t) {
      for (uint32_t d = 0; d < kDim; ++d) {
        scores[t] += double{queries[q * kDim + d]} * key[t * kDim + d] / std::sqrt(double{kDim});
      }
    }
    const double max = *std::ranges::max_element(scores);
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - max);
    for (uint32_t d = 0; d < kDim; ++d) {
      double dot = 0;
      for (uint32_t t = 0; t < kSampleTokens; ++t) dot += scores[t] * value[t * kDim + d];
      out[q * kDim + d] = static_cast<float>(dot / sum);
    }
  }
  return out;
}

/// What a case of distortion codes: K alone, as it is or in the output of attention, or V too.
enum class Distorted : uint8_t { kKey, kAttention, kValue, kKeyAndValue };

Result<double> DistortionDb(Codec codec, const Outliers& outliers, Method method, Distorted what) {
  const Sample sample = MakeSample(outliers, 1);
  std::vector<float> key = sample.key;
  std::vector<float> value = sample.value;
  if (what != Distorted::kValue) {
    QUIRE_ASSIGN(key, Key(codec, method, sample.key));
  }
  if (what == Distorted::kValue || what == Distorted::kKeyAndValue) {
    QUIRE_ASSIGN(value, ThroughBlocks(codec, StreamRole::kValue, /*rotated=*/true, sample.value));
  }
  if (what == Distorted::kKey) return Decibel(sample.key, key);
  if (what == Distorted::kValue) return Decibel(sample.value, value);
  return Decibel(Attend(sample.queries, sample.key, sample.value),
                 Attend(sample.queries, key, value));
}

Case DistortionCase(Codec codec, const std::string& name, const Outliers& outliers, Method method,
                    Distorted what) {
  return {.name = fmt::format("distortion/{}/{}", CodecName(codec), name),
          .prepare = [=]() -> Result<Subject> {
            QUIRE_ASSIGN(const double decibel, DistortionDb(codec, outliers, method, what));
            const double bits = CodecBitsPerValue(codec);
            return Exact{.unit = "dB",
                         .value = decibel,
                         .floor = bits * 20 * std::log10(2.0),
                         .note = fmt::format("{} bits", bits)};
          }};
}

void AddDistortionCases(Codec codec, std::vector<Case>& cases) {
  for (const Outliers& outliers :
       {Outliers{}, Outliers{.channels = 1, .times = 100}, Outliers{.channels = 4, .times = 10},
        Outliers{.channels = 4, .times = 32}}) {
    const std::string name = fmt::format("{}x{:.0f}", outliers.channels, outliers.times);
    for (const auto& [method, method_name] : kMethods) {
      cases.push_back(DistortionCase(codec, fmt::format("k/{}/{}", name, method_name), outliers,
                                     method, Distorted::kKey));
      cases.push_back(DistortionCase(codec, fmt::format("attention/{}/{}", name, method_name),
                                     outliers, method, Distorted::kAttention));
    }
  }
  cases.push_back(
      DistortionCase(codec, "v/rotated", Outliers{}, Method::kRotated, Distorted::kValue));
  cases.push_back(DistortionCase(codec, "attention/k_and_v/rotated", Outliers{}, Method::kRotated,
                                 Distorted::kKeyAndValue));
}

/// Blocks of one layer of Qwen3-0.6B, beyond most last-level caches, in slices of kSliceBlocks.
class Blocks {
 public:
  static constexpr uint32_t kHeads = 8;
  static constexpr uint32_t kBlocks = 2048;
  static constexpr uint32_t kSliceBlocks = 64;
  static constexpr uint32_t kSlices = kBlocks / kSliceBlocks;

  static Result<std::shared_ptr<Blocks>> Create(Codec codec) {
    NumericProfile profile = NumericProfile::Uniform(codec);
    profile.open_dtype = Codec::kF16;
    const Geometry geometry = Geometry::Uniform(1, kHeads, kDim);
    QUIRE_ASSIGN(auto sealed,
                 codec::SlotLayout::Create(geometry, profile, ArenaLayout::kBlockMajor));
    QUIRE_ASSIGN(auto open, codec::SlotLayout::CreateOpen(geometry, profile));
    auto made = std::shared_ptr<Blocks>(new Blocks(std::move(open), std::move(sealed)));
    Prng prng(1);
    for (uint64_t i = 0; i < made->from_.size() / 2; ++i) {
      codec::StoreValue(Codec::kF16, prng.NextFloat(-2.0f, 2.0f), made->from_.data(), i);
    }
    for (uint32_t slice = 0; slice < kSlices; ++slice) made->Encode(slice);
    return made;
  }

  double gigabytes() const { return static_cast<double>(from_.size()) * 1e-9; }

  double Encode(uint32_t slice) {
    return SecondsOf(*executor_, [&] {
      for (uint32_t b = slice * kSliceBlocks; b < (slice + 1) * kSliceBlocks; ++b) {
        const std::byte* block = from_.data() + b * open_.slot_bytes(0);
        std::byte* slot = to_.data() + b * sealed_.slot_bytes(0);
        codec::EncodeBlock(open_.key(0), block, sealed_.key(0), slot);
        codec::EncodeBlock(open_.value(0), block, sealed_.value(0), slot);
      }
    });
  }

  double Decode(uint32_t slice) {
    return SecondsOf(*executor_, [&] {
      for (uint32_t b = slice * kSliceBlocks; b < (slice + 1) * kSliceBlocks; ++b) {
        const std::byte* slot = to_.data() + b * sealed_.slot_bytes(0);
        for (const StreamLayout& stream : {sealed_.key(0), sealed_.value(0)}) {
          codec::ReadRows(stream, slot, 0, kSlotTokens, read_.data(), int64_t{kSlotTokens} * kDim);
        }
      }
    });
  }

  /// Of the slice half a round away, which has left the cache.
  double Copy(uint32_t slice) {
    const uint64_t bytes = kSliceBlocks * open_.slot_bytes(0);
    const uint64_t at = (slice + kSlices / 2) % kSlices * bytes;
    return SecondsOf(*executor_, [&] { std::memcpy(copy_.data() + at, from_.data() + at, bytes); });
  }

 private:
  Blocks(codec::SlotLayout open, codec::SlotLayout sealed)
      : open_(std::move(open)),
        sealed_(std::move(sealed)),
        from_(kBlocks * open_.slot_bytes(0)),
        copy_(from_.size()),
        to_(kBlocks * sealed_.slot_bytes(0)),
        read_(uint64_t{kSlotTokens} * kHeads * kDim) {}

  const codec::SlotLayout open_, sealed_;
  const std::unique_ptr<Executor> executor_ = MakePinnedPool(1);
  std::vector<std::byte> from_;  // f16
  std::vector<std::byte> copy_;
  std::vector<std::byte> to_;
  std::vector<float> read_;  // one block
};

Case SpeedCase(Codec codec, const std::string& what, double (Blocks::*work)(uint32_t)) {
  return {.name = fmt::format("{}/{}/t1", what, CodecName(codec)),
          .prepare = [=]() -> Result<Subject> {
            QUIRE_ASSIGN(const auto blocks, Blocks::Create(codec));
            return Timed{.unit = "GB/s of f16",
                         .amount = blocks->gigabytes(),
                         .places = Blocks::kSlices,
                         .slice = fmt::format("{} blocks of {} tokens, {} heads, K and V",
                                              Blocks::kSliceBlocks, kSlotTokens, Blocks::kHeads),
                         .work = [=](uint32_t slice) { return ((*blocks).*work)(slice); },
                         .floor = [=](uint32_t slice) { return blocks->Copy(slice); }};
          }};
}

}  // namespace

std::vector<Case> CodecCases(const Options&) {
  std::vector<Case> cases;
  for (const Codec codec : codec::kEncodingCodecs) {
    AddDistortionCases(codec, cases);
    cases.push_back(SpeedCase(codec, "encode", &Blocks::Encode));
    cases.push_back(SpeedCase(codec, "decode", &Blocks::Decode));
  }
  return cases;
}

}  // namespace quire::bench
