// One JSON object of a config.json being read: getters that name file and field when something is
// wrong.
#ifndef QUIRE_MODEL_CONFIG_READER_H_
#define QUIRE_MODEL_CONFIG_READER_H_

#include <fmt/core.h>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "model/rope.h"
#include "quire/error.h"

namespace quire::model {

class ConfigReader {
 public:
  /// `source` begins every message: the file, and the field that holds the object if one does.
  ConfigReader(const Json& object, std::string source)
      : object_(object), source_(std::move(source)) {}

  const Json& object() const { return object_; }
  const std::string& source() const { return source_; }

  std::unexpected<Error> Bad(ErrorCode code, std::string_view field, std::string_view why) const {
    return Fail(code, fmt::format("{}: field {}: {}", source_, field, why));
  }

  /// A whole number in 1..max.
  Result<uint32_t> Count(std::string_view field, uint32_t max) const {
    QUIRE_ASSIGN(const uint64_t value, JsonGet<uint64_t>(object_, field, source_));
    if (value == 0 || value > max) {
      return Bad(ErrorCode::kCorrupt, field, fmt::format("{} is outside 1..{}", value, max));
    }
    return static_cast<uint32_t>(value);
  }

  /// A number in [min, max].
  Result<double> Number(std::string_view field, double min, double max) const {
    QUIRE_ASSIGN(const double value, JsonGet<double>(object_, field, source_));
    if (!(value >= min && value <= max)) {
      return Bad(ErrorCode::kCorrupt, field, fmt::format("{} is outside {}..{}", value, min, max));
    }
    return value;
  }

  Result<bool> Flag(std::string_view field, bool fallback) const {
    return JsonGetOr<bool>(object_, field, fallback, source_);
  }

  Result<std::string> Text(std::string_view field, std::string_view fallback) const {
    return JsonGetOr<std::string>(object_, field, std::string(fallback), source_);
  }

  /// True when the member is there, null included.
  bool Has(std::string_view field) const { return object_.contains(std::string(field)); }

  /// The member, or null when it is absent or null.
  const Json* Member(std::string_view field) const {
    const auto member = object_.find(std::string(field));
    return member == object_.end() || member->is_null() ? nullptr : &*member;
  }

 private:
  const Json& object_;
  std::string source_;
};

/// Reads rope_theta and either rope_scaling, as files were written at first, or rope_parameters, as
/// they are now.
///
/// Errors: kCorrupt a field is missing, of a wrong type or out of range; kUnsupported a variant or
///         a part of one that this build does not compute
Result<RopeConfig> ReadRope(const ConfigReader& reader, uint32_t positions_max);

}  // namespace quire::model

#endif  // QUIRE_MODEL_CONFIG_READER_H_
