// A node of a JSON file from outside and where it stands, so that every message names the file and
// the field.
#ifndef QUIRE_TEXT_JSON_NODE_H_
#define QUIRE_TEXT_JSON_NODE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "quire/error.h"
#include "quire/identity.h"

namespace quire::model {

/// Largest token id of a file: far above any released vocabulary, and small enough that tables by
/// id stay in memory.
inline constexpr uint64_t kTokenIdMax = 1 << 24;

/// The id that a value states. Errors: kCorrupt no whole number in 0..kTokenIdMax
Result<TokenId> ToTokenId(const Json& value);

/// Sequences of steps inside one another; more is unsupported.
inline constexpr int kSequenceDepthMax = 8;

/// A view of one value. Errors of all getters: kCorrupt missing, or of another type or range.
///
/// Threads:  any number at once
/// Lifetime: the value must outlive it
class JsonNode {
 public:
  JsonNode(const Json& value, std::string_view file) : value_(&value), file_(file) {}

  const Json& value() const { return *value_; }
  bool is_object() const { return value_->is_object(); }

  /// The member `key`, when this is an object that has it and it is not null.
  std::optional<JsonNode> Find(std::string_view key) const;
  /// The same; missing or null is an error.
  Result<JsonNode> Get(std::string_view key) const;
  /// The member `key` of this object, which must have it.
  JsonNode Member(std::string_view key) const;
  Result<std::vector<JsonNode>> Elements() const;
  /// Element `index` of this array, which must have it.
  JsonNode At(size_t index) const;

  Result<std::string> Text() const;
  Result<TokenId> Id() const;
  Result<std::string> Text(std::string_view key) const;
  Result<bool> Flag(std::string_view key, bool fallback) const;
  Result<uint64_t> Count(std::string_view key, uint64_t fallback) const;

  /// The string member "type", or "" when there is none.
  std::string Type() const;

  /// "FILE: field FIELD".
  std::string Name() const;
  /// "FILE: field FIELD: WHY".
  std::unexpected<Error> Bad(ErrorCode code, std::string_view why) const;
  std::unexpected<Error> Corrupt(std::string_view why) const {
    return Bad(ErrorCode::kCorrupt, why);
  }
  std::unexpected<Error> Unsupported(std::string_view why) const {
    return Bad(ErrorCode::kUnsupported, why);
  }

 private:
  JsonNode(const Json& value, std::string file, std::string field)
      : value_(&value), file_(std::move(file)), field_(std::move(field)) {}
  JsonNode At(std::string_view key, const Json& value) const;

  const Json* value_;
  std::string file_;
  std::string field_;  // "model.merges[3]"; empty for the whole file
};

}  // namespace quire::model

#endif  // QUIRE_TEXT_JSON_NODE_H_
