// Rotary positions of one model: the angle by which every pair of channels turns at a position.
#ifndef QUIRE_MODEL_ROPE_H_
#define QUIRE_MODEL_ROPE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace quire::model {

/// How the frequencies are stretched to contexts longer than those trained first.
enum class RopeType : uint8_t { kDefault, kLinear, kLlama3, kYarn };

/// As config.json says it, defaults filled in. A field that its type does not use keeps its
/// default, so that equal rotations compare equal.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 0;                 // above 1
  double factor = 1;                // all but kDefault: how much longer
  uint32_t original_positions = 0;  // kLlama3, kYarn: length trained first
  double low_freq_factor = 0;       // kLlama3: below this many turns, stretched
  double high_freq_factor = 0;      // kLlama3: above this many turns, as it was
  double beta_fast = 0;             // kYarn: turns, as high_freq_factor
  double beta_slow = 0;             // kYarn: turns, as low_freq_factor
  bool truncate = false;            // kYarn: the ramp begins and ends at whole channels
  double attention_factor = 1;      // kYarn: multiplies cosines and sines

  bool operator==(const RopeConfig&) const = default;
};

/// Everything that shapes the angles, for Identity: "rope:theta=10000", or with what the type
/// needs, "rope:theta=500000 type=llama3 factor=8 original=8192 low=1 high=4". Other rotations,
/// other text.
std::string RopeText(const RopeConfig& config);

class Rope {
 public:
  Rope(const RopeConfig& config, uint32_t head_dim);

  uint32_t half_dim() const { return static_cast<uint32_t>(frequencies_.size()); }
  /// Cosines, then sines, of a position, both times the attention factor.
  /// Shape: out [2, half_dim]
  void Angles(uint64_t position, float* out) const;

 private:
  std::vector<float> frequencies_;  // [half_dim]
  float attention_factor_;
};

}  // namespace quire::model

#endif  // QUIRE_MODEL_ROPE_H_
