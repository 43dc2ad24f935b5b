#include "serve/http/api_hints.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>
#include <utility>

namespace quire::serve::http {

namespace {

constexpr uint64_t kSecondUs = 1'000'000;
constexpr uint64_t kDefaultTtlUs = 300 * kSecondUs;  // Anthropic's
constexpr uint64_t kTtlSecondsMost = 1'000'000'000;

// "30s", "5m", "1h".
std::optional<uint64_t> TtlOf(std::string_view text) {
  uint64_t count = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || rest != text.data() + text.size() - 1 || count == 0) {
    return std::nullopt;
  }
  const char unit = text.back();
  const uint64_t seconds = unit == 's' ? 1 : unit == 'm' ? 60 : unit == 'h' ? 3600 : 0;
  if (seconds == 0 || count > kTtlSecondsMost / seconds) return std::nullopt;
  return count * seconds * kSecondUs;
}

ApiResult<void> ReadRetention(Fields& fields, std::vector<CallHint>& hints) {
  QUIRE_ASSIGN(const auto said, fields.Text("prompt_cache_retention"));
  if (!said) return {};
  CallHint hint{.name = "prompt_cache_retention"};
  if (*said == "in_memory" || *said == "in-memory") {
    hint.why = "prompts are kept as long as there is room";
  } else if (const auto ttl_us = TtlOf(*said)) {
    hint.ttl_us = *ttl_us;
  } else {
    return fields.Bad(hint.name, "must be 'in_memory' or a time such as '24h'");
  }
  hints.push_back(std::move(hint));
  return {};
}

// {"retain_full_prompt": {"ttl_seconds": 1800}}
ApiResult<void> ReadKvHints(Fields& fields, std::vector<CallHint>& hints) {
  const Json* const value = fields.Find("kv_hints");
  if (value == nullptr) return {};
  if (!value->is_object()) return fields.Bad("kv_hints", "must be an object");
  for (const auto& [name, hint] : value->items()) {
    CallHint read{.name = "kv_hints." + name.substr(0, 64)};
    if (name != "retain_full_prompt") {
      read.why = "this server does not know it";
    } else if (hint.is_object()) {
      Fields inner(hint, "kv_hints.retain_full_prompt.");
      QUIRE_ASSIGN(const auto seconds, inner.Count("ttl_seconds", 1, kTtlSecondsMost));
      read.ttl_us = seconds ? *seconds * kSecondUs : kDefaultTtlUs;
      QUIRE_TRY(inner.NothingElse());
    } else if (hint.is_null()) {
      continue;
    } else {
      return fields.Bad("kv_hints.retain_full_prompt", "must be an object");
    }
    hints.push_back(std::move(read));
  }
  return {};
}

// Of its members those that are hints; it has others for routers.
ApiResult<void> ReadNvext(Fields& fields, std::vector<CallHint>& hints) {
  const Json* const value = fields.Find("nvext");
  if (value == nullptr) return {};
  if (!value->is_object()) return fields.Bad("nvext", "must be an object");
  for (const auto& [name, member] : value->items()) {
    const std::string full = "nvext." + name.substr(0, 64);
    if (name == "cache_control" && !member.is_null()) {
      QUIRE_ASSIGN(hints.emplace_back(), ReadCacheControl(member, full));
    } else {
      hints.push_back({.name = full, .why = "it is for routers"});
    }
  }
  return {};
}

}  // namespace

ApiResult<CallHint> ReadCacheControl(const Json& value, const std::string& name) {
  if (!value.is_object()) return BadRequest(name, fmt::format("'{}' must be an object", name));
  Fields fields(value, name + ".");
  QUIRE_ASSIGN(const auto type, fields.Text("type"));
  if (type != "ephemeral") return fields.Bad("type", "must be 'ephemeral'");
  QUIRE_ASSIGN(const auto ttl, fields.Text("ttl"));
  QUIRE_TRY(fields.NothingElse());
  CallHint hint{.name = name, .ttl_us = kDefaultTtlUs};
  if (!ttl) return hint;
  const auto read = TtlOf(*ttl);
  if (!read) return fields.Bad("ttl", "must be a time such as '5m' or '1h'");
  hint.ttl_us = *read;
  return hint;
}

ApiResult<void> ReadHints(Fields& fields, std::vector<CallHint>& hints) {
  QUIRE_ASSIGN(const auto key, fields.Text("prompt_cache_key"));
  if (key) {
    hints.push_back({.name = "prompt_cache_key",
                     .why = "prompts are found by their tokens, and there is no other server"});
  }
  QUIRE_TRY(ReadRetention(fields, hints));
  if (const Json* const control = fields.Find("cache_control")) {
    QUIRE_ASSIGN(hints.emplace_back(), ReadCacheControl(*control, "cache_control"));
  }
  QUIRE_TRY(ReadKvHints(fields, hints));
  QUIRE_TRY(ReadNvext(fields, hints));
  if (hints.size() <= kHintsMax) return {};
  return fields.Bad("cache_control", fmt::format("is said, with other hints, {} times; at most {}",
                                                 hints.size(), kHintsMax));
}

OrderedJson HintsJson(const std::vector<CallHint>& hints,
                      const std::vector<RetainOutcome>& outcomes) {
  OrderedJson json = OrderedJson::array();
  size_t next = 0;
  for (const CallHint& hint : hints) {
    RetainOutcome outcome{.what = Retained::kIgnored, .why = hint.why};
    if (hint.ttl_us != 0 && next < outcomes.size()) outcome = outcomes[next++];
    OrderedJson each = {{"hint", hint.name}, {"status", RetainedName(outcome.what)}};
    if (outcome.what != Retained::kIgnored) {
      each["tokens"] = outcome.tokens;
      each["ttl_s"] = outcome.ttl_us / kSecondUs;
    }
    if (!outcome.why.empty()) each["reason"] = outcome.why;
    json.push_back(std::move(each));
  }
  return json;
}

}  // namespace quire::serve::http
