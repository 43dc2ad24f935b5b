#include "text/jinja/operators.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "text/jinja/text.h"

namespace quire::model::jinja {
namespace {

std::unexpected<Error> Mismatch(std::string_view name, const Value& left, const Value& right) {
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("{} {} {}", left.TypeName(), name, right.TypeName()));
}

// Rounded down, as Python divides.
int64_t FloorDivide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Result<Value> OperateOnWhole(std::string_view name, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (name == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (name == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (name == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (b == 0) {
    return Fail(ErrorCode::kInvalidArgument, "a division by zero");
  } else if (name == "/") {
    return Value(static_cast<double>(a) / static_cast<double>(b));
  } else if (b == -1) {
    overflow = name == "//" && __builtin_sub_overflow(int64_t{0}, a, &result);
  } else {
    result = name == "//" ? FloorDivide(a, b) : a - FloorDivide(a, b) * b;
  }
  if (overflow) return Fail(ErrorCode::kUnsupported, "a whole number beyond 64 bits");
  return Value(result);
}

Result<Value> OperateOnReal(std::string_view name, double a, double b) {
  if (name == "+") return Value(a + b);
  if (name == "-") return Value(a - b);
  if (name == "*") return Value(a * b);
  if (b == 0) return Fail(ErrorCode::kInvalidArgument, "a division by zero");
  if (name == "/") return Value(a / b);
  const double quotient = std::floor(a / b);
  return Value(name == "//" ? quotient : a - quotient * b);
}

// The position of `index` among `count`; negative ones count from the end.
std::optional<size_t> IndexOf(int64_t index, size_t count) {
  const auto signed_count = static_cast<int64_t>(count);
  if (index < 0) index += signed_count;
  if (index < 0 || index >= signed_count) return std::nullopt;
  return static_cast<size_t>(index);
}

constexpr std::array<std::string_view, 11> kMapMethods = {
    "items", "keys", "values",     "get",     "pop",     "update",
    "clear", "copy", "setdefault", "popitem", "fromkeys"};

Result<Value> CallOnMap(const Value& map, std::string_view name, const Arguments& arguments,
                        Budget& budget) {
  if (name == "get") {
    QUIRE_TRY(arguments.ExpectAtMost(2));
    const Value* key = arguments.Get(0, "key");
    if (key == nullptr) return Fail(ErrorCode::kInvalidArgument, "get() without a key");
    const Value* fallback = arguments.Get(1, "default");
    QUIRE_TRY(budget.Charge(key->bytes()));
    const Value* found = key->text() != nullptr ? map.Find(*key->text()) : nullptr;
    if (found != nullptr) return *found;
    return fallback != nullptr ? *fallback : Value(Value::None());
  }
  if (name != "items" && name != "keys" && name != "values") {
    return Fail(ErrorCode::kUnsupported, fmt::format("method {} of a mapping", name));
  }
  QUIRE_TRY(arguments.ExpectAtMost(0));
  Items items;
  for (const auto& [key, value] : *map.members()) {
    QUIRE_TRY(budget.Charge(sizeof(Value) * 3 + key.size()));
    if (name == "keys") {
      items.emplace_back(key);
    } else if (name == "values") {
      items.push_back(value);
    } else {
      QUIRE_ASSIGN(Value pair, Value::MakeList({Value(key), value}));
      items.push_back(std::move(pair));
    }
  }
  return Value::MakeList(std::move(items));
}

Result<void> ChargeFinder(std::string_view needle, Budget& budget) {
  return budget.Charge(needle.size() * TextFinder::kBytesPerByte);
}

Result<Value> SplitText(const std::string& text, const Arguments& arguments, Budget& budget) {
  QUIRE_ASSIGN(const auto separator, TextArgument(arguments, 0, "sep"));
  QUIRE_ASSIGN(const int64_t most, WholeArgument(arguments, 1, "maxsplit", -1));
  if (separator != nullptr && separator->empty()) {
    return Fail(ErrorCode::kInvalidArgument, "split() at an empty string");
  }
  if (separator != nullptr) QUIRE_TRY(ChargeFinder(*separator, budget));
  Splitter splitter(text, separator, most);
  Items items;
  while (const auto piece = splitter.Next()) {
    QUIRE_TRY(budget.Charge(sizeof(Value) * 2 + piece->size()));
    items.emplace_back(*piece);
  }
  return Value::MakeList(std::move(items));
}

Result<Value> FindInText(std::string_view name, const std::string& text, const std::string& needle,
                         Budget& budget) {
  if (needle.empty()) return Fail(ErrorCode::kUnsupported, fmt::format("{}('')", name));
  QUIRE_TRY(ChargeFinder(needle, budget));
  const TextFinder finder(needle);
  size_t at = finder.Find(text);
  if (name == "find") {
    if (at == std::string::npos) return Value(int64_t{-1});
    return Value(static_cast<int64_t>(CountCharacters(std::string_view(text).substr(0, at))));
  }
  int64_t count = 0;
  for (; at != std::string::npos; at = finder.Find(text, at + needle.size())) ++count;
  return Value(count);
}

Result<Value> ReplaceInText(const std::string& text, const Arguments& arguments, Budget& budget) {
  QUIRE_ASSIGN(const auto from, TextArgument(arguments, 0, "old"));
  QUIRE_ASSIGN(const auto to, TextArgument(arguments, 1, "new"));
  QUIRE_ASSIGN(const int64_t most, WholeArgument(arguments, 2, "count", -1));
  if (from == nullptr || to == nullptr)
    return Fail(ErrorCode::kInvalidArgument, "replace() takes two strings");
  if (from->empty()) return Fail(ErrorCode::kUnsupported, "replace() of an empty string");
  QUIRE_TRY(ChargeFinder(*from, budget));
  QUIRE_TRY(budget.Charge(text.size() / from->size() * to->size() + text.size()));
  return Value(ReplaceText(text, *from, *to, most));
}

Result<Value> CallOnText(const Value& object, std::string_view name, const Arguments& arguments,
                         Budget& budget) {
  const std::string& text = *object.text();
  QUIRE_TRY(arguments.ExpectAtMost(3));
  QUIRE_TRY(budget.Charge(text.size()));
  if (name == "split") return SplitText(text, arguments, budget);
  if (name == "replace") return ReplaceInText(text, arguments, budget);
  if (name == "upper") return Value(ToUpper(text));
  if (name == "lower") return Value(ToLower(text));
  if (name == "capitalize") return Value(Capitalize(text));
  if (name == "title") return Value(Title(text));
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    return Strip(name, text, arguments, budget);
  }
  if (name == "startswith" || name == "endswith" || name == "count" || name == "find") {
    QUIRE_ASSIGN(const auto argument, TextArgument(arguments, 0, "prefix"));
    if (argument == nullptr || arguments.values.size() != 1) {
      return Fail(ErrorCode::kInvalidArgument, fmt::format("{}() takes one string", name));
    }
    if (name == "startswith") return Value(text.starts_with(*argument));
    if (name == "endswith") return Value(text.ends_with(*argument));
    return FindInText(name, text, *argument, budget);
  }
  return Fail(ErrorCode::kUnsupported, fmt::format("method {} of a string", name));
}

}  // namespace

const Value* Arguments::Get(size_t index, std::string_view name) const {
  if (index < values.size()) return &values[index];
  const auto found = std::ranges::find(named, name, &Members::value_type::first);
  return found == named.end() ? nullptr : &found->second;
}

Result<void> Arguments::ExpectAtMost(size_t most) const {
  if (values.size() + named.size() <= most) return {};
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("{} arguments, at most {} expected", values.size() + named.size(), most));
}

Result<const std::string*> TextArgument(const Arguments& arguments, size_t index,
                                        std::string_view name) {
  const Value* value = arguments.Get(index, name);
  if (value == nullptr || value->is_none()) return nullptr;
  if (value->text() == nullptr) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("a string expected as {}, found {}", name, value->TypeName()));
  }
  return value->text();
}

Result<Value> Strip(std::string_view name, std::string_view text, const Arguments& arguments,
                    Budget& budget) {
  QUIRE_ASSIGN(const std::string* const characters, TextArgument(arguments, 0, "chars"));
  std::optional<CharacterSet> set;
  if (characters != nullptr) {
    QUIRE_TRY(budget.Charge(characters->size() * sizeof(char32_t)));
    set.emplace(*characters);
  }
  const CharacterSet* const stripped = set ? &*set : nullptr;
  if (name != "rstrip") text = TrimStart(text, stripped);
  if (name != "lstrip") text = TrimEnd(text, stripped);
  return Value(text);
}

Result<int64_t> WholeArgument(const Arguments& arguments, size_t index, std::string_view name,
                              int64_t fallback) {
  const Value* value = arguments.Get(index, name);
  if (value == nullptr) return fallback;
  if (const auto whole = value->Whole()) return *whole;
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("a whole number expected as {}, found {}", name, value->TypeName()));
}

Result<Value> Operate(std::string_view name, const Value& left, const Value& right,
                      Budget& budget) {
  if (name == "~") {
    QUIRE_ASSIGN(std::string text, TextOf(left, budget));
    QUIRE_ASSIGN(const std::string more, TextOf(right, budget));
    return Value(text + more);
  }
  if (left.Whole() && right.Whole()) return OperateOnWhole(name, *left.Whole(), *right.Whole());
  if (left.Number() && right.Number()) return OperateOnReal(name, *left.Number(), *right.Number());
  if (name == "+" && left.text() != nullptr && right.text() != nullptr) {
    QUIRE_TRY(budget.Charge(left.text()->size() + right.text()->size()));
    return Value(*left.text() + *right.text());
  }
  if (name == "+" && left.items() != nullptr && right.items() != nullptr) {
    QUIRE_TRY(budget.Charge((left.items()->size() + right.items()->size()) * sizeof(Value)));
    Items items = *left.items();
    items.insert(items.end(), right.items()->begin(), right.items()->end());
    return Value::MakeList(std::move(items));
  }
  if (name == "*" && left.text() != nullptr && right.Whole()) {
    const auto times = static_cast<uint64_t>(std::max<int64_t>(*right.Whole(), 0));
    if (times > 0 && left.text()->size() > budget.bytes_left() / times) {
      return Fail(ErrorCode::kNoSpace, fmt::format("a string {} times", times));
    }
    QUIRE_TRY(budget.Charge(left.text()->size() * times));
    if (left.text()->size() == 1) return Value(std::string(times, left.text()->front()));
    std::string text;
    text.reserve(left.text()->size() * times);
    for (uint64_t i = 0; i < times && !left.text()->empty(); ++i) text += *left.text();
    return Value(std::move(text));
  }
  if (name == "%" && left.text() != nullptr) {
    return Fail(ErrorCode::kUnsupported, "'%' on a string");
  }
  return Mismatch(name, left, right);
}

Result<bool> Compare(std::string_view name, const Value& left, const Value& right, Budget& budget) {
  QUIRE_TRY(budget.Charge(std::min(left.bytes(), right.bytes())));
  if (name == "==") return left.Equals(right);
  if (name == "!=") return !left.Equals(right);
  if (name == "in" || name == "not in") {
    const bool wanted = name == "in";
    if (right.text() != nullptr) {
      if (left.text() == nullptr) return Mismatch(name, left, right);
      QUIRE_TRY(budget.Charge(right.text()->size()));
      QUIRE_TRY(ChargeFinder(*left.text(), budget));
      const bool found =
          left.text()->empty() || TextFinder(*left.text()).Find(*right.text()) != std::string::npos;
      return found == wanted;
    }
    if (right.members() != nullptr) {
      return (left.text() != nullptr && right.Find(*left.text()) != nullptr) == wanted;
    }
    if (!right.is_undefined() && right.items() == nullptr) return Mismatch(name, left, right);
    if (right.is_undefined()) return !wanted;
    QUIRE_TRY(budget.Charge(right.bytes()));
    const bool found =
        std::ranges::any_of(*right.items(), [&](const Value& item) { return item.Equals(left); });
    return found == wanted;
  }
  int order = 0;
  if (left.text() != nullptr && right.text() != nullptr) {
    order = left.text()->compare(*right.text());  // the order of UTF-8 is that of code points
  } else if (left.Whole() && right.Whole()) {
    order = *left.Whole() < *right.Whole() ? -1 : *left.Whole() > *right.Whole() ? 1 : 0;
  } else if (left.Number() && right.Number()) {
    order = *left.Number() < *right.Number() ? -1 : *left.Number() > *right.Number() ? 1 : 0;
  } else {
    return Mismatch(name, left, right);
  }
  if (name == "<") return order < 0;
  if (name == "<=") return order <= 0;
  if (name == ">") return order > 0;
  return order >= 0;
}

Result<Value> Attribute(const Value& object, std::string_view name, Budget& budget) {
  QUIRE_TRY(budget.Charge(name.size()));
  if (object.is_undefined()) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("'{}' of an undefined value", name));
  }
  if (object.members() != nullptr && std::ranges::find(kMapMethods, name) != kMapMethods.end()) {
    return Fail(ErrorCode::kUnsupported, fmt::format("method {} without a call", name));
  }
  if (const Value::Namespace* space = object.space()) {
    QUIRE_TRY(budget.Step(SearchSteps(space->members.size(), name)));
    const auto found = std::ranges::find(space->members, name, &Members::value_type::first);
    return found == space->members.end() ? Value() : found->second;
  }
  const Value* found = object.Find(name);
  return found != nullptr ? *found : Value();
}

Result<Value> Subscript(const Value& object, const Value& index, Budget& budget) {
  if (object.is_undefined()) {
    return Fail(ErrorCode::kInvalidArgument, "an item of an undefined value");
  }
  if (index.text() != nullptr) {
    if (object.space() != nullptr) return Attribute(object, *index.text(), budget);
    QUIRE_TRY(budget.Charge(index.bytes()));
    const Value* found = object.Find(*index.text());
    return found != nullptr ? *found : Value();
  }
  if (!index.Whole()) return Value();
  if (const Items* items = object.items()) {
    const auto position = IndexOf(*index.Whole(), items->size());
    return position ? (*items)[*position] : Value();
  }
  if (object.text() != nullptr) {
    QUIRE_TRY(budget.Charge(object.bytes()));
    const std::string_view text = *object.text();
    const auto position = IndexOf(*index.Whole(), CountCharacters(text));
    if (!position) return Value();
    const std::string_view from = SkipCharacters(text, *position);
    return Value(from.substr(0, from.size() - SkipCharacters(from, 1).size()));
  }
  return Value();
}

Result<Value> Slice(const Value& object, const Value& begin, const Value& end, const Value& step,
                    Budget& budget) {
  for (const Value* bound : {&begin, &end, &step}) {
    if (!bound->is_none() && !bound->Whole()) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} as bound of a slice", bound->TypeName()));
    }
  }
  if (object.text() == nullptr && object.items() == nullptr) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("a slice of {}", object.TypeName()));
  }
  QUIRE_TRY(budget.Charge(object.bytes()));
  const auto count = static_cast<int64_t>(object.text() != nullptr ? CountCharacters(*object.text())
                                                                   : object.items()->size());
  const int64_t stride = step.Whole().value_or(1);
  if (stride == 0) return Fail(ErrorCode::kInvalidArgument, "a slice with step 0");
  const bool back = stride < 0;
  const auto bound = [&](const Value& value, int64_t fallback) {
    if (value.is_none()) return fallback;
    int64_t place = *value.Whole();
    if (place < 0) place = std::max<int64_t>(place, -count - 1) + count;
    return std::clamp<int64_t>(place, back ? -1 : 0, back ? count - 1 : count);
  };
  const int64_t first = bound(begin, back ? count - 1 : 0);
  const int64_t last = bound(end, back ? -1 : count);
  if (object.text() != nullptr && stride == 1) {
    const std::string_view from =
        SkipCharacters(*object.text(), static_cast<size_t>(std::min(first, last)));
    const auto taken = static_cast<size_t>(std::max<int64_t>(last - first, 0));
    return Value(from.substr(0, from.size() - SkipCharacters(from, taken).size()));
  }
  std::vector<std::string_view> characters;
  if (object.text() != nullptr) {
    QUIRE_TRY(budget.Charge(static_cast<uint64_t>(count) * sizeof(std::string_view)));
    characters = Characters(*object.text());
  }
  Items items;
  std::string text;
  // A stride that leads outside at once ends the loop too: no sum of it can overflow.
  const int64_t reach = std::clamp<int64_t>(stride, -count - 1, count + 1);
  for (int64_t i = first; back ? i > last : i < last; i += reach) {
    if (object.text() != nullptr) {
      text += characters[static_cast<size_t>(i)];
    } else {
      items.push_back((*object.items())[static_cast<size_t>(i)]);
    }
  }
  if (object.text() != nullptr) return Value(std::move(text));
  return Value::MakeList(std::move(items));
}

Result<Value> CallMethod(const Value& object, std::string_view name, const Arguments& arguments,
                         Budget& budget) {
  if (object.text() != nullptr) return CallOnText(object, name, arguments, budget);
  if (object.members() != nullptr) return CallOnMap(object, name, arguments, budget);
  if (object.is_undefined()) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("'{}' of an undefined value", name));
  }
  return Fail(ErrorCode::kUnsupported, fmt::format("method {} of {}", name, object.TypeName()));
}

Result<Items> ItemsOf(const Value& value, Budget& budget) {
  if (value.is_undefined()) return Items();
  if (value.items() != nullptr) {
    QUIRE_TRY(budget.Charge(value.items()->size() * sizeof(Value)));
    return *value.items();
  }
  Items items;
  if (value.members() != nullptr) {
    QUIRE_TRY(budget.Charge(value.members()->size() * sizeof(Value) * 2));
    for (const auto& [key, member] : *value.members()) items.emplace_back(key);
    return items;
  }
  if (value.text() != nullptr) {
    QUIRE_TRY(budget.Charge(value.text()->size() * sizeof(Value) * 2));
    for (const std::string_view character : Characters(*value.text())) {
      items.emplace_back(character);
    }
    return items;
  }
  return Fail(ErrorCode::kInvalidArgument, fmt::format("a loop over {}", value.TypeName()));
}

Result<std::string> TextOf(const Value& value, Budget& budget) {
  constexpr uint64_t kEscapedBytes = 4;  // of one byte, in a container: \x01
  QUIRE_TRY(budget.Charge(value.bytes() * (value.text() != nullptr ? 1 : kEscapedBytes)));
  return value.Text();
}

}  // namespace quire::model::jinja
