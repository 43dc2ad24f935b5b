// What each of several ranks will hold of a model and of a context (docs/ranks.md).
#ifndef QUIRE_APPS_PLAN_RANKS_H_
#define QUIRE_APPS_PLAN_RANKS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "model/config.h"
#include "quire/error.h"
#include "quire/identity.h"

namespace quire::app {

struct RanksPlan {
  uint32_t ranks = 1;
  uint64_t tokens = 0;
  ComputeType type = ComputeType::kBf16;  // of the weights
};

/// The members "pipeline" and "sequence" of the report: one object for each rank, with the bytes of
/// its matrices and of its KV; null where a mode cannot have so many ranks.
///
/// Errors: kInvalidArgument neither mode can; as cache::PlanBytes
Result<nlohmann::ordered_json> PlanRanks(const RanksPlan& plan, const model::ModelConfig& config,
                                         const NumericProfile& profile);

/// The same as lines for people.
std::string RanksTable(const nlohmann::ordered_json& plan);

}  // namespace quire::app

#endif  // QUIRE_APPS_PLAN_RANKS_H_
