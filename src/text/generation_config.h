// generation_config.json: the sampling defaults of the model's makers, and the tokens that end its
// texts.
#ifndef QUIRE_TEXT_GENERATION_CONFIG_H_
#define QUIRE_TEXT_GENERATION_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"
#include "quire/identity.h"

namespace quire::model {

struct GenerationConfig {
  std::optional<TokenId> bos{};
  std::vector<TokenId> eos{};  // any of them ends a text
  bool do_sample = false;
  float temperature = 1.0f;  // the next three count when do_sample is true
  uint32_t top_k = 0;        // 0: all
  float top_p = 1.0f;
  std::vector<std::string> ignored{};  // fields that would change the output and have no part here

  /// Reads generation_config.json of a directory; the defaults when it has none.
  /// Errors: as Parse, and those of reading a file
  static Result<GenerationConfig> Load(const std::string& directory);

  /// Errors: kCorrupt broken JSON, a field of a wrong type or out of range. The message names
  ///         file_name and the field
  static Result<GenerationConfig> Parse(std::string_view json, std::string_view file_name);
};

}  // namespace quire::model

#endif  // QUIRE_TEXT_GENERATION_CONFIG_H_
