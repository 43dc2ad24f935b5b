// The members of one JSON object of a request body, read by name.
#ifndef QUIRE_SERVE_HTTP_API_FIELDS_H_
#define QUIRE_SERVE_HTTP_API_FIELDS_H_

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/json.h"
#include "serve/http/api_error.h"

namespace quire::serve::http {

/// Reads the members of one object by name, and knows at the end which were not read.
class Fields {
 public:
  explicit Fields(const Json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  /// Null: it is absent or null.
  const Json* Find(const std::string& name) {
    known_.insert(name);
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  ApiResult<std::optional<std::string>> Text(const std::string& name) {
    const Json* const value = Find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) return Bad(name, "must be a string");
    return value->get<std::string>();
  }

  ApiResult<bool> Flag(const std::string& name, bool fallback) {
    const Json* const value = Find(name);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) return Bad(name, "must be true or false");
    return value->get<bool>();
  }

  ApiResult<std::optional<double>> Number(const std::string& name, double least, double most) {
    const Json* const value = Find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) return Bad(name, "must be a number");
    const double number = value->get<double>();
    if (!(number >= least && number <= most)) {
      return Bad(name, fmt::format("must be from {} to {}", least, most));
    }
    return number;
  }

  ApiResult<std::optional<uint32_t>> Count(const std::string& name, uint64_t least, uint64_t most) {
    const Json* const value = Find(name);
    if (value == nullptr) return std::nullopt;
    // Negative numbers are whole, but not unsigned.
    if (!value->is_number_unsigned() || value->get<uint64_t>() < least ||
        value->get<uint64_t>() > most) {
      return Bad(name, fmt::format("must be a whole number from {} to {}", least, most));
    }
    return static_cast<uint32_t>(value->get<uint64_t>());
  }

  ApiResult<std::optional<uint64_t>> Whole(const std::string& name) {
    const Json* const value = Find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number_unsigned()) return Bad(name, "must be a whole number");
    return value->get<uint64_t>();
  }

  /// A field that is passed over.
  void Ignore(const std::string& name) { known_.insert(name); }

  /// A field whose only value that changes nothing is `neutral`, besides null.
  ApiResult<void> Only(const std::string& name, const Json& neutral) {
    const Json* const value = Find(name);
    if (value == nullptr || *value == neutral) return {};
    // 0 and 0.0 are equal here, [] and {} count as nothing.
    if (value->is_structured() && value->empty()) return {};
    return Bad(name, fmt::format("is not supported; only {} is", neutral.dump()));
  }

  /// Errors: 400 names a field that was not read. One that is null says nothing
  ApiResult<void> NothingElse() const {
    for (const auto& [name, value] : object_.items()) {
      if (!known_.contains(name) && !value.is_null()) {
        return Bad(name.substr(0, 64), "is not a field of this call");
      }
    }
    return {};
  }

  std::unexpected<ApiError> Bad(const std::string& name, const std::string& what) const {
    return BadRequest(prefix_ + name, fmt::format("'{}{}' {}", prefix_, name, what));
  }

 private:
  const Json& object_;
  const std::string prefix_;
  std::set<std::string> known_;
};

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_API_FIELDS_H_
