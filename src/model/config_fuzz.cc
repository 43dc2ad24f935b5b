// Any bytes are a config or an error, and a config has a valid cache, finite angles and comes back
// from its own text.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "model/config.h"
#include "model/random_model.h"
#include "model/rope.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string_view text(reinterpret_cast<const char*>(data), bytes);
  const auto config = quire::model::ParseConfig(text, "input");
  if (!config) return 0;
  QUIRE_CHECK(quire::model::GeometryOf(*config).Validate().has_value());
  std::vector<float> angles(config->head_dim);
  quire::model::Rope(config->rope, config->head_dim).Angles(config->positions_max, angles.data());
  for (const float value : angles) QUIRE_CHECK(std::isfinite(value));
  const auto again =
      quire::model::ParseConfig(quire::model::ConfigJson(*config), "the config's own text");
  QUIRE_CHECK(again.has_value() && *again == *config);
  return 0;
}
