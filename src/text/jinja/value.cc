#include "text/jinja/value.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "text/jinja/text.h"
#include "text/unicode/unicode.h"

namespace quire::model::jinja {

namespace {

// What a container is made of.
struct Extent {
  uint32_t depth = 1;
  uint64_t bytes = 16;

  Result<void> Add(uint32_t inner_depth, uint64_t inner_bytes) {
    depth = std::max(depth, inner_depth + 1);
    bytes += inner_bytes + 16;
    if (depth <= kValueDepthMax && bytes <= kValueBytesMax) return {};
    return Fail(ErrorCode::kNoSpace, fmt::format("a value nested deeper than {} or above {} bytes",
                                                 kValueDepthMax, kValueBytesMax));
  }
};

}  // namespace

struct Value::List {
  Items items;
  Extent extent;
};

struct Value::Map {
  // Few are searched one by one.
  static constexpr size_t kFewMembers = 8;

  Members members;
  Extent extent;
  std::vector<uint32_t> order{};  // of the keys; empty for few members

  // Key number i of the order.
  const Members::value_type& at(size_t i) const { return members[order[i]]; }
};

namespace {

template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};

std::unexpected<Error> NamespaceInside() {
  return Fail(ErrorCode::kUnsupported, "a namespace inside another value");
}

// Text between brackets, separated by commas.
template <typename Range, typename Each>
void AppendBracketed(char open, const Range& range, char close, const Each& append,
                     std::string& out) {
  out += open;
  bool first = true;
  for (const auto& element : range) {
    if (!std::exchange(first, false)) out += ", ";
    append(element);
  }
  out += close;
}

}  // namespace

Result<Value> Value::MakeList(Items items) {
  Extent extent;
  for (const Value& item : items) {
    if (item.space() != nullptr) return NamespaceInside();
    QUIRE_TRY(extent.Add(item.depth(), item.bytes()));
  }
  Value value;
  value.rep_ = std::make_shared<const List>(List{std::move(items), extent});
  return value;
}

Result<Value> Value::MakeMap(Members members) {
  if (members.size() > kMembersMax) {
    return Fail(ErrorCode::kNoSpace, fmt::format("a mapping of more than {} members", kMembersMax));
  }
  Extent extent;
  for (const auto& [key, item] : members) {
    if (item.space() != nullptr) return NamespaceInside();
    QUIRE_TRY(extent.Add(item.depth(), item.bytes() + key.size()));
  }
  Map map{.members = std::move(members), .extent = extent};
  if (map.members.size() > Map::kFewMembers) {
    map.order.resize(map.members.size());
    std::iota(map.order.begin(), map.order.end(), 0);
    std::ranges::sort(map.order, {},
                      [&](uint32_t i) -> const std::string& { return map.members[i].first; });
  }
  Value value;
  value.rep_ = std::make_shared<const Map>(std::move(map));
  return value;
}

Result<Value> Value::FromJson(const OrderedJson& json) {
  if (json.is_null()) return Value(None());
  if (json.is_boolean()) return Value(json.get<bool>());
  if (json.is_string()) return Value(ToUtf8(json.get_ref<const std::string&>()));
  if (json.is_number_unsigned() &&
      json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return Value(json.get<double>());
  }
  if (json.is_number_integer()) return Value(json.get<int64_t>());
  if (json.is_number()) return Value(json.get<double>());
  if (json.is_array()) {
    Items items;
    for (const OrderedJson& element : json) {
      QUIRE_ASSIGN(Value item, FromJson(element));
      items.push_back(std::move(item));
    }
    return MakeList(std::move(items));
  }
  Members members;
  for (const auto& [key, element] : json.items()) {
    QUIRE_ASSIGN(Value item, FromJson(element));
    members.emplace_back(ToUtf8(key), std::move(item));
  }
  return MakeMap(std::move(members));
}

const std::string* Value::text() const {
  const auto* text = std::get_if<std::shared_ptr<const std::string>>(&rep_);
  return text != nullptr ? text->get() : nullptr;
}

const Items* Value::items() const {
  const auto* list = std::get_if<std::shared_ptr<const List>>(&rep_);
  return list != nullptr ? &(*list)->items : nullptr;
}

const Members* Value::members() const {
  const auto* map = std::get_if<std::shared_ptr<const Map>>(&rep_);
  return map != nullptr ? &(*map)->members : nullptr;
}

Value::Namespace* Value::space() const {
  const auto* space = std::get_if<std::shared_ptr<Namespace>>(&rep_);
  return space != nullptr ? space->get() : nullptr;
}

uint32_t Value::depth() const {
  if (const auto* list = std::get_if<std::shared_ptr<const List>>(&rep_)) {
    return (*list)->extent.depth;
  }
  const auto* map = std::get_if<std::shared_ptr<const Map>>(&rep_);
  return map != nullptr ? (*map)->extent.depth : 0;
}

uint64_t Value::bytes() const {
  if (text() != nullptr) return text()->size();
  if (const auto* list = std::get_if<std::shared_ptr<const List>>(&rep_)) {
    return (*list)->extent.bytes;
  }
  const auto* map = std::get_if<std::shared_ptr<const Map>>(&rep_);
  return map != nullptr ? (*map)->extent.bytes : 0;
}

const Value* Value::Find(std::string_view key) const {
  const auto* held = std::get_if<std::shared_ptr<const Map>>(&rep_);
  if (held == nullptr) return nullptr;
  const Map& map = **held;
  if (map.order.empty()) {
    const auto found = std::ranges::find(map.members, key, &Members::value_type::first);
    return found == map.members.end() ? nullptr : &found->second;
  }
  const auto found = std::ranges::lower_bound(
      map.order, key, {}, [&](uint32_t i) -> std::string_view { return map.members[i].first; });
  if (found == map.order.end() || map.members[*found].first != key) return nullptr;
  return &map.members[*found].second;
}

std::optional<double> Value::Number() const {
  if (real() != nullptr) return *real();
  if (const auto whole = Whole()) return static_cast<double>(*whole);
  return std::nullopt;
}

std::optional<int64_t> Value::Whole() const {
  if (integer() != nullptr) return *integer();
  if (boolean() != nullptr) return *boolean() ? 1 : 0;
  return std::nullopt;
}

bool Value::Truth() const {
  if (const auto number = Number()) return *number != 0;
  if (text() != nullptr) return !text()->empty();
  if (items() != nullptr) return !items()->empty();
  if (members() != nullptr) return !members()->empty();
  return !is_undefined() && !is_none();
}

bool Value::Equals(const Value& other) const {
  if (Whole() && other.Whole()) return *Whole() == *other.Whole();
  if (Number() && other.Number()) return *Number() == *other.Number();
  if (text() != nullptr && other.text() != nullptr) return *text() == *other.text();
  if (items() != nullptr && other.items() != nullptr) {
    return std::ranges::equal(*items(), *other.items(),
                              [](const Value& a, const Value& b) { return a.Equals(b); });
  }
  if (members() != nullptr && other.members() != nullptr) {
    return EqualsMap(other);
  }
  if (space() != nullptr || other.space() != nullptr) return space() == other.space();
  return (is_none() && other.is_none()) || (is_undefined() && other.is_undefined());
}

bool Value::EqualsMap(const Value& other) const {
  const Map& a = *std::get<std::shared_ptr<const Map>>(rep_);
  const Map& b = *std::get<std::shared_ptr<const Map>>(other.rep_);
  if (a.members.size() != b.members.size()) return false;
  if (a.order.empty()) {
    return std::ranges::all_of(a.members, [&](const Members::value_type& member) {
      const Value* same = other.Find(member.first);
      return same != nullptr && member.second.Equals(*same);
    });
  }
  for (size_t i = 0; i < a.order.size(); ++i) {
    if (a.at(i).first != b.at(i).first || !a.at(i).second.Equals(b.at(i).second)) return false;
  }
  return true;
}

std::string Value::Text() const {
  if (text() != nullptr) return *text();
  return Repr();
}

std::string Value::Repr() const {
  std::string out;
  AppendRepr(out);
  return out;
}

void Value::AppendRepr(std::string& out) const {
  std::visit(
      Overloaded{
          [](const Undefined&) {},
          [&](const None&) { out += "None"; },
          [&](bool value) { out += value ? "True" : "False"; },
          [&](int64_t value) { out += fmt::format("{}", value); },
          [&](double value) { out += FloatText(value); },
          [&](const std::shared_ptr<const std::string>& text) { out += Quoted(*text); },
          [&](const std::shared_ptr<const List>& list) {
            AppendBracketed(
                '[', list->items, ']', [&](const Value& item) { item.AppendRepr(out); }, out);
          },
          [&](const std::shared_ptr<const Map>& map) {
            const auto append = [&](const Members::value_type& member) {
              out += Quoted(member.first) + ": ";
              member.second.AppendRepr(out);
            };
            AppendBracketed('{', map->members, '}', append, out);
          },
          [&](const std::shared_ptr<Namespace>&) { out += "<Namespace>"; },
          [&](const Function& function) { out += fmt::format("<function {}>", function.name); },
          [&](const Macro&) { out += "<Macro>"; },
      },
      rep_);
}

Result<std::string> Value::ToJson(std::optional<uint32_t> indent, uint64_t bytes_max) const {
  std::string out;
  QUIRE_TRY(AppendJson(indent, bytes_max, 0, out));
  return out;
}

Result<void> Value::AppendJson(std::optional<uint32_t> indent, uint64_t bytes_max, uint32_t level,
                               std::string& out) const {
  if (out.size() > bytes_max) {
    return Fail(ErrorCode::kNoSpace, fmt::format("more than {} bytes of JSON", bytes_max));
  }
  const auto new_line = [&](uint32_t at) {
    if (indent) out += '\n' + std::string(size_t{*indent} * at, ' ');
  };
  const std::string_view comma = indent ? "," : ", ";
  if (items() != nullptr) {
    out += '[';
    for (const Value& item : *items()) {
      if (&item != items()->data()) out += comma;
      new_line(level + 1);
      QUIRE_TRY(item.AppendJson(indent, bytes_max, level + 1, out));
    }
    if (!items()->empty()) new_line(level);
    out += ']';
  } else if (members() != nullptr) {
    out += '{';
    for (const auto& member : *members()) {
      if (&member != members()->data()) out += comma;
      new_line(level + 1);
      out += JsonQuoted(member.first) + ": ";
      QUIRE_TRY(member.second.AppendJson(indent, bytes_max, level + 1, out));
    }
    if (!members()->empty()) new_line(level);
    out += '}';
  } else if (text() != nullptr) {
    out += JsonQuoted(*text());
  } else if (is_none()) {
    out += "null";
  } else if (boolean() != nullptr) {
    out += *boolean() ? "true" : "false";
  } else if (real() != nullptr && std::isfinite(*real())) {
    out += FloatText(*real());
  } else if (integer() != nullptr) {
    out += Repr();
  } else {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("{} is no JSON", TypeName()));
  }
  return {};
}

std::string_view Value::TypeName() const {
  return std::visit(
      Overloaded{
          [](const Undefined&) -> std::string_view { return "an undefined value"; },
          [](const None&) -> std::string_view { return "none"; },
          [](bool) -> std::string_view { return "a boolean"; },
          [](int64_t) -> std::string_view { return "a whole number"; },
          [](double) -> std::string_view { return "a float"; },
          [](const std::shared_ptr<const std::string>&) -> std::string_view { return "a string"; },
          [](const std::shared_ptr<const List>&) -> std::string_view { return "a list"; },
          [](const std::shared_ptr<const Map>&) -> std::string_view { return "a mapping"; },
          [](const std::shared_ptr<Namespace>&) -> std::string_view { return "a namespace"; },
          [](const Function&) -> std::string_view { return "a function"; },
          [](const Macro&) -> std::string_view { return "a macro"; },
      },
      rep_);
}

}  // namespace quire::model::jinja
