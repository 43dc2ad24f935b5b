// The rotary positions that a config.json asks for.
#ifndef QUIRE_MODEL_CONFIG_ROPE_H_
#define QUIRE_MODEL_CONFIG_ROPE_H_

#include <cstdint>

#include "model/config_reader.h"
#include "model/rope.h"
#include "quire/error.h"

namespace quire::model {

/// Reads rope_theta and either rope_scaling, as files were written at first, or rope_parameters, as
/// they are now.
///
/// Errors: kCorrupt a field is missing, of a wrong type or out of range; kUnsupported a variant or
///         a part of one that this build does not compute
Result<RopeConfig> ReadRope(const ConfigReader& reader, uint32_t positions_max);

}  // namespace quire::model

#endif  // QUIRE_MODEL_CONFIG_ROPE_H_
