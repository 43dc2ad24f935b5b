// What an adapter_config.json says, as PEFT writes it: how low-rank products join a model's.
#ifndef QUIRE_MODEL_ADAPTER_CONFIG_H_
#define QUIRE_MODEL_ADAPTER_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/error.h"

namespace quire::model {

inline constexpr uint32_t kAdapterRankMax = 256;

struct AdapterConfig {
  uint32_t rank = 0;
  bool has_rank_pattern = false;  // ranks are then what the tensors' shapes say
  double alpha = 0;
  bool rank_stabilized = false;  // alpha is divided by the root of the rank
  // Alphas of single modules, by the last parts of their names, or by all of it behind a '^'.
  std::vector<std::pair<std::string, double>> alphas{};
  // Last parts of the names of all modules it changes; empty: the file gives a pattern or nothing.
  std::vector<std::string> modules{};

  /// What the low-rank product of a module is multiplied with.
  /// Errors: kUnsupported two alphas fit the module, so that their order would decide
  Result<float> ScaleOf(std::string_view module, uint32_t module_rank,
                        std::string_view source) const;
  /// False: `modules` has other names only.
  bool Names(std::string_view module) const;
};

/// Reads the file's text. What is absent means what it means to PEFT; all that would change a
/// result and that this build does not compute is an error, never ignored.
///
/// Errors:  kCorrupt broken JSON, a field missing, of a wrong type or out of range; kUnsupported
///          another kind of adapter, or a feature this build lacks. The message names file_name and
///          the field
/// Threads: any
/// Source:  peft 0.21.2, tuners/lora/config.py and layer.py
Result<AdapterConfig> ParseAdapterConfig(std::string_view json, std::string_view file_name);

}  // namespace quire::model

#endif  // QUIRE_MODEL_ADAPTER_CONFIG_H_
