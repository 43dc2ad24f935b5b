#include "model/json_keys.h"

#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/json.h"

namespace quire::model {

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

}  // namespace quire::model
