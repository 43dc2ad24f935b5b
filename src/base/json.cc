#include "base/json.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"

namespace quire {
namespace {

template <typename T>
struct Kind;
template <>
struct Kind<bool> {
  static constexpr std::string_view kName = "true or false";
};
template <>
struct Kind<uint32_t> {
  static constexpr std::string_view kName = "a whole number in 0..2^32-1";
};
template <>
struct Kind<uint64_t> {
  static constexpr std::string_view kName = "a whole number in 0..2^64-1";
};
template <>
struct Kind<int64_t> {
  static constexpr std::string_view kName = "a whole number in -2^63..2^63-1";
};
template <>
struct Kind<double> {
  static constexpr std::string_view kName = "a number";
};
template <>
struct Kind<std::string> {
  static constexpr std::string_view kName = "a string";
};

template <typename T>
std::optional<T> Convert(const Json& value) {
  if constexpr (std::is_same_v<T, bool>) {
    if (value.is_boolean()) return value.get<bool>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (value.is_string()) return value.get<std::string>();
  } else if constexpr (std::is_same_v<T, double>) {
    if (value.is_number()) return value.get<double>();
  } else if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number <= static_cast<uint64_t>(std::numeric_limits<T>::max())) {
      return static_cast<T>(number);
    }
  } else if (std::is_signed_v<T> && value.is_number_integer()) {
    return static_cast<T>(value.get<int64_t>());
  }
  return std::nullopt;
}

// The member, or null when there is none.
Result<const Json*> Find(const Json& object, std::string_view key, std::string_view source) {
  if (!object.is_object()) {
    return Fail(ErrorCode::kCorrupt, fmt::format("{}: {} expected in an object, found {}", source,
                                                 key, object.type_name()));
  }
  const auto member = object.find(std::string(key));
  return member == object.end() ? nullptr : &*member;
}

template <typename T>
Result<T> As(const Json& value, std::string_view key, std::string_view source) {
  if (std::optional<T> converted = Convert<T>(value)) return *std::move(converted);
  std::string found = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (found.size() > 60) found = found.substr(0, 57) + "...";
  return Fail(ErrorCode::kCorrupt,
              fmt::format("{}: field {} must be {}, found {}", source, key, Kind<T>::kName, found));
}

// Most brackets open at once. Counts on into broken text, which the parser then refuses.
size_t Depth(std::string_view text) {
  size_t depth = 0;
  size_t deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

Result<Json> ParseJson(std::string_view text, std::string_view source) {
  if (Depth(text) > kJsonDepthMax) {
    return Fail(ErrorCode::kCorrupt,
                fmt::format("{}: nested deeper than {} levels", source, kJsonDepthMax));
  }
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const std::exception& exception) {
    return Fail(ErrorCode::kCorrupt, fmt::format("{}: {}", source, exception.what()));
  }
}

template <typename T>
Result<T> JsonGet(const Json& object, std::string_view key, std::string_view source) {
  QUIRE_ASSIGN(const Json* member, Find(object, key, source));
  if (member == nullptr) {
    return Fail(ErrorCode::kCorrupt, fmt::format("{}: field {} is missing", source, key));
  }
  return As<T>(*member, key, source);
}

template <typename T>
Result<T> JsonGetOr(const Json& object, std::string_view key, T fallback, std::string_view source) {
  QUIRE_ASSIGN(const Json* member, Find(object, key, source));
  if (member == nullptr || member->is_null()) return fallback;
  return As<T>(*member, key, source);
}

#define QUIRE_JSON_INSTANTIATE_(T)                                                \
  template Result<T> JsonGet<T>(const Json&, std::string_view, std::string_view); \
  template Result<T> JsonGetOr<T>(const Json&, std::string_view, T, std::string_view)
QUIRE_JSON_INSTANTIATE_(bool);
QUIRE_JSON_INSTANTIATE_(uint32_t);
QUIRE_JSON_INSTANTIATE_(uint64_t);
QUIRE_JSON_INSTANTIATE_(int64_t);
QUIRE_JSON_INSTANTIATE_(double);
QUIRE_JSON_INSTANTIATE_(std::string);
#undef QUIRE_JSON_INSTANTIATE_

std::optional<std::string> FirstDuplicateKey(std::string_view text) {
  std::vector<std::set<std::string>> open_objects;
  std::optional<std::string> duplicate;
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key && !duplicate) {
      std::string key = value.get<std::string>();
      if (!open_objects.back().insert(key).second) duplicate = std::move(key);
    }
    return true;
  };
  const Json parsed = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  QUIRE_CHECK(!parsed.is_discarded());
  return duplicate;
}

}  // namespace quire
