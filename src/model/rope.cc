#include "model/rope.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace quire::model {
namespace {

// Slow channels are stretched, fast ones left alone, a ramp by turns within the original length
// between.
double Llama3Frequency(const RopeConfig& config, double frequency) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(config.original_positions);
  if (wavelength < original / config.high_freq_factor) return frequency;
  if (wavelength > original / config.low_freq_factor) return frequency / config.factor;
  const double smooth = (original / wavelength - config.low_freq_factor) /
                        (config.high_freq_factor - config.low_freq_factor);
  return (1 - smooth) * frequency / config.factor + smooth * frequency;
}

// The channel that turns so many times within the original length, between channels too.
double YarnChannel(const RopeConfig& config, uint32_t head_dim, double turns) {
  const auto original = static_cast<double>(config.original_positions);
  return static_cast<double>(head_dim) * std::log(original / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(config.theta));
}

// As Llama3Frequency, but the ramp goes by channels.
double YarnFrequency(const RopeConfig& config, uint32_t head_dim, uint32_t i, double frequency) {
  double low = YarnChannel(config, head_dim, config.beta_fast);
  double high = YarnChannel(config, head_dim, config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim) - 1);
  if (low == high) high += 0.001;
  const double stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
  return frequency / config.factor * stretched + frequency * (1 - stretched);
}

double Frequency(const RopeConfig& config, uint32_t head_dim, uint32_t i) {
  const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(head_dim);
  const double frequency = std::pow(config.theta, exponent);
  switch (config.type) {
    case RopeType::kDefault: return frequency;
    case RopeType::kLinear: return frequency / config.factor;
    case RopeType::kLlama3: return Llama3Frequency(config, frequency);
    case RopeType::kYarn: return YarnFrequency(config, head_dim, i, frequency);
  }
  return frequency;
}

}  // namespace

std::string RopeText(const RopeConfig& config) {
  std::string text = fmt::format("rope:theta={}", config.theta);
  switch (config.type) {
    case RopeType::kDefault: break;
    case RopeType::kLinear: text += fmt::format(" type=linear factor={}", config.factor); break;
    case RopeType::kLlama3:
      text +=
          fmt::format(" type=llama3 factor={} original={} low={} high={}", config.factor,
                      config.original_positions, config.low_freq_factor, config.high_freq_factor);
      break;
    case RopeType::kYarn:
      text +=
          fmt::format(" type=yarn factor={} original={} fast={} slow={} truncate={} attention={}",
                      config.factor, config.original_positions, config.beta_fast, config.beta_slow,
                      config.truncate, config.attention_factor);
      break;
  }
  return text;
}

Rope::Rope(const RopeConfig& config, uint32_t head_dim)
    : frequencies_(head_dim / 2), attention_factor_(static_cast<float>(config.attention_factor)) {
  for (uint32_t i = 0; i < half_dim(); ++i) {
    frequencies_[i] = static_cast<float>(Frequency(config, head_dim, i));
  }
}

void Rope::Angles(uint64_t position, float* out) const {
  for (uint32_t i = 0; i < half_dim(); ++i) {
    const float angle = static_cast<float>(position) * frequencies_[i];
    const auto cosine = static_cast<float>(std::cos(static_cast<double>(angle)));
    const auto sine = static_cast<float>(std::sin(static_cast<double>(angle)));
    out[i] = cosine * attention_factor_;
    out[half_dim() + i] = sine * attention_factor_;
  }
}

}  // namespace quire::model
