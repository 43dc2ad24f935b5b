#include "text/json_node.h"

#include <fmt/core.h>

namespace quire::model {
namespace {

// A missing value, to point at.
const Json kNull;

}  // namespace

Result<TokenId> ToTokenId(const Json& value) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > kTokenIdMax) {
    return Fail(ErrorCode::kCorrupt, fmt::format("must be a token id in 0..{}", kTokenIdMax));
  }
  return static_cast<TokenId>(value.get<uint64_t>());
}

JsonNode JsonNode::At(std::string_view key, const Json& value) const {
  return {value, file_, field_.empty() ? std::string(key) : fmt::format("{}.{}", field_, key)};
}

std::optional<JsonNode> JsonNode::Find(std::string_view key) const {
  if (!value_->is_object()) return std::nullopt;
  const auto member = value_->find(std::string(key));
  if (member == value_->end() || member->is_null()) return std::nullopt;
  return At(key, *member);
}

Result<JsonNode> JsonNode::Get(std::string_view key) const {
  if (std::optional<JsonNode> member = Find(key)) return *std::move(member);
  return At(key, kNull).Corrupt("missing");
}

JsonNode JsonNode::Member(std::string_view key) const {
  return At(key, (*value_)[std::string(key)]);
}

Result<std::vector<JsonNode>> JsonNode::Elements() const {
  if (!value_->is_array()) return Corrupt("must be an array");
  std::vector<JsonNode> elements;
  elements.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) elements.push_back(At(i));
  return elements;
}

JsonNode JsonNode::At(size_t index) const {
  return {(*value_)[index], file_, fmt::format("{}[{}]", field_, index)};
}

Result<std::string> JsonNode::Text() const {
  if (!value_->is_string()) return Corrupt("must be a string");
  return value_->get<std::string>();
}

Result<TokenId> JsonNode::Id() const {
  const Result<TokenId> id = ToTokenId(*value_);
  if (!id) return Corrupt(id.error().message);
  return *id;
}

Result<std::string> JsonNode::Text(std::string_view key) const {
  QUIRE_ASSIGN(const JsonNode member, Get(key));
  return member.Text();
}

Result<bool> JsonNode::Flag(std::string_view key, bool fallback) const {
  const std::optional<JsonNode> member = Find(key);
  if (!member) return fallback;
  if (!member->value().is_boolean()) return member->Corrupt("must be true or false");
  return member->value().get<bool>();
}

Result<uint64_t> JsonNode::Count(std::string_view key, uint64_t fallback) const {
  const std::optional<JsonNode> member = Find(key);
  if (!member) return fallback;
  if (!member->value().is_number_unsigned()) return member->Corrupt("must be a whole number");
  return member->value().get<uint64_t>();
}

std::string JsonNode::Type() const {
  const std::optional<JsonNode> type = Find("type");
  return type && type->value().is_string() ? type->value().get<std::string>() : "";
}

std::string JsonNode::Name() const {
  return field_.empty() ? file_ : fmt::format("{}: field {}", file_, field_);
}

std::unexpected<Error> JsonNode::Bad(ErrorCode code, std::string_view why) const {
  return Fail(code, fmt::format("{}: {}", Name(), why));
}

}  // namespace quire::model
