#include "text/jinja/operators.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "text/jinja/text.h"

namespace quire::model::jinja {
namespace {

constexpr int64_t kIndentMax = 16;

using Filter = Result<Value> (*)(const Value&, const Arguments&, Budget&);

Result<Value> Trim(const Value& subject, const Arguments& arguments, Budget& budget) {
  QUIRE_ASSIGN(const std::string text, TextOf(subject, budget));
  return Strip("strip", text, arguments, budget);
}

template <std::string (*kMap)(std::string_view)>
Result<Value> MapText(const Value& subject, const Arguments& arguments, Budget& budget) {
  QUIRE_TRY(arguments.ExpectAtMost(0));
  QUIRE_ASSIGN(const std::string text, TextOf(subject, budget));
  return Value(kMap(text));
}

Result<Value> ToJson(const Value& subject, const Arguments& arguments, Budget& budget) {
  QUIRE_ASSIGN(const int64_t indent, WholeArgument(arguments, 0, "indent", -1));
  if (arguments.values.size() + arguments.named.size() > 1 ||
      (!arguments.named.empty() && arguments.named[0].first != "indent") || indent > kIndentMax) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("tojson with more than an indent up to {}", kIndentMax));
  }
  std::optional<uint32_t> spaces;
  if (indent >= 0) spaces = static_cast<uint32_t>(indent);
  QUIRE_ASSIGN(std::string text, subject.ToJson(spaces, budget.bytes_left()));
  QUIRE_TRY(budget.Charge(text.size()));
  return Value(std::move(text));
}

Result<Value> Length(const Value& subject, const Arguments& arguments, Budget& budget) {
  QUIRE_TRY(arguments.ExpectAtMost(0));
  if (subject.members() != nullptr) return Value(static_cast<int64_t>(subject.members()->size()));
  if (subject.items() != nullptr) return Value(static_cast<int64_t>(subject.items()->size()));
  if (subject.text() != nullptr) {
    QUIRE_TRY(budget.Charge(subject.bytes()));
    return Value(static_cast<int64_t>(CountCharacters(*subject.text())));
  }
  QUIRE_ASSIGN(const Items items, ItemsOf(subject, budget));
  return Value(static_cast<int64_t>(items.size()));
}

Result<Value> Default(const Value& subject, const Arguments& arguments, Budget&) {
  QUIRE_TRY(arguments.ExpectAtMost(2));
  const Value* fallback = arguments.Get(0, "default_value");
  const Value* also_false = arguments.Get(1, "boolean");
  const bool replaced =
      subject.is_undefined() || (also_false != nullptr && also_false->Truth() && !subject.Truth());
  if (!replaced) return subject;
  return fallback != nullptr ? *fallback : Value("");
}

Result<Value> Join(const Value& subject, const Arguments& arguments, Budget& budget) {
  QUIRE_ASSIGN(const auto separator, TextArgument(arguments, 0, "d"));
  const Value* attribute = arguments.Get(1, "attribute");
  QUIRE_ASSIGN(const Items items, ItemsOf(subject, budget));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (attribute != nullptr) {
      QUIRE_ASSIGN(item, Subscript(item, *attribute, budget));
    }
    QUIRE_ASSIGN(const std::string text, TextOf(item, budget));
    if (i > 0 && separator != nullptr) {
      QUIRE_TRY(budget.Charge(separator->size()));
      out += *separator;
    }
    out += text;
  }
  return Value(std::move(out));
}

template <bool kFirst>
Result<Value> Edge(const Value& subject, const Arguments& arguments, Budget& budget) {
  QUIRE_TRY(arguments.ExpectAtMost(0));
  if (subject.text() != nullptr) return Subscript(subject, Value(kFirst ? 0L : -1L), budget);
  QUIRE_ASSIGN(const Items items, ItemsOf(subject, budget));
  if (items.empty()) return Value();
  return kFirst ? items.front() : items.back();
}

Result<Value> List(const Value& subject, const Arguments& arguments, Budget& budget) {
  QUIRE_TRY(arguments.ExpectAtMost(0));
  QUIRE_ASSIGN(Items items, ItemsOf(subject, budget));
  return Value::MakeList(std::move(items));
}

Result<Value> Reverse(const Value& subject, const Arguments& arguments, Budget& budget) {
  QUIRE_TRY(arguments.ExpectAtMost(0));
  QUIRE_ASSIGN(Items items, ItemsOf(subject, budget));
  std::ranges::reverse(items);
  if (subject.text() == nullptr) return Value::MakeList(std::move(items));
  std::string text;
  for (const Value& item : items) text += *item.text();
  return Value(std::move(text));
}

Result<Value> ItemPairs(const Value& subject, const Arguments& arguments, Budget& budget) {
  if (subject.is_undefined()) return Value::MakeList({});
  if (subject.members() == nullptr) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("items of {}", subject.TypeName()));
  }
  return CallMethod(subject, "items", arguments, budget);
}

Result<Value> String(const Value& subject, const Arguments& arguments, Budget& budget) {
  QUIRE_TRY(arguments.ExpectAtMost(0));
  QUIRE_ASSIGN(std::string text, TextOf(subject, budget));
  return Value(std::move(text));
}

// int(): a text that is no number becomes the default.
Result<Value> Integer(const Value& subject, const Arguments& arguments, Budget& budget) {
  QUIRE_ASSIGN(const int64_t fallback, WholeArgument(arguments, 0, "default", 0));
  QUIRE_TRY(arguments.ExpectAtMost(1));
  if (const auto whole = subject.Whole()) return Value(*whole);
  if (const auto number = subject.Number()) {
    if (!(std::abs(*number) < 9e18)) return Value(fallback);
    return Value(static_cast<int64_t>(*number));
  }
  if (subject.text() == nullptr) return Value(fallback);
  QUIRE_TRY(budget.Charge(subject.bytes()));
  std::string_view text = jinja::Trim(*subject.text());
  if (text.starts_with('+')) text.remove_prefix(1);
  int64_t value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = read.ec == std::errc() && read.ptr == text.data() + text.size();
  return Value(whole ? value : fallback);
}

Result<Value> Replace(const Value& subject, const Arguments& arguments, Budget& budget) {
  QUIRE_ASSIGN(std::string text, TextOf(subject, budget));
  return CallMethod(Value(std::move(text)), "replace", arguments, budget);
}

// Every line but the first, unless told so, moves to the right; blank ones stay.
Result<Value> Indent(const Value& subject, const Arguments& arguments, Budget& budget) {
  QUIRE_TRY(arguments.ExpectAtMost(3));
  QUIRE_ASSIGN(const int64_t width, WholeArgument(arguments, 0, "width", 4));
  const Value* first = arguments.Get(1, "first");
  const Value* blank = arguments.Get(2, "blank");
  if (width < 0 || width > 256) return Fail(ErrorCode::kUnsupported, "indent outside of 0..256");
  QUIRE_ASSIGN(const std::string text, TextOf(subject, budget));
  std::string out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const bool moved = at == 0 ? first != nullptr && first->Truth()
                               : end > at || (blank != nullptr && blank->Truth());
    if (moved) {
      QUIRE_TRY(budget.Charge(static_cast<uint64_t>(width)));
      out.append(static_cast<size_t>(width), ' ');
    }
    out.append(text, at, end - at);
    if (end < text.size()) out += '\n';
    at = end + 1;
  }
  return Value(std::move(out));
}

Result<Value> Same(const Value& subject, const Arguments& arguments, Budget&) {
  QUIRE_TRY(arguments.ExpectAtMost(0));
  return subject;
}

// The arguments behind the first `skipped`.
Arguments Rest(const Arguments& arguments, size_t skipped) {
  Arguments rest{.values = arguments.values, .named = arguments.named};
  const size_t count = std::min(skipped, rest.values.size());
  rest.values.erase(rest.values.begin(), rest.values.begin() + static_cast<int64_t>(count));
  return rest;
}

// map(attribute="name") or map("filter", ...).
Result<Value> Map(const Value& subject, const Arguments& arguments, Budget& budget) {
  const Value* attribute = Arguments{.values = {}, .named = arguments.named}.Get(0, "attribute")
                               ? arguments.Get(arguments.values.size(), "attribute")
                               : nullptr;
  QUIRE_ASSIGN(const auto filter, TextArgument(arguments, 0, "filter"));
  if (attribute == nullptr && filter == nullptr) {
    return Fail(ErrorCode::kUnsupported, "map without a filter or attribute");
  }
  QUIRE_ASSIGN(const Items items, ItemsOf(subject, budget));
  const Arguments rest = Rest(arguments, 1);
  Items mapped;
  for (const Value& item : items) {
    QUIRE_TRY(budget.Step());
    QUIRE_ASSIGN(Value value, attribute != nullptr ? Subscript(item, *attribute, budget)
                                                   : ApplyFilter(*filter, item, rest, budget));
    mapped.push_back(std::move(value));
  }
  return Value::MakeList(std::move(mapped));
}

// select, reject: items that a test holds for; with kAttribute, for a member of theirs.
template <bool kAttribute, bool kWanted>
Result<Value> Select(const Value& subject, const Arguments& arguments, Budget& budget) {
  constexpr size_t kTestAt = kAttribute ? 1 : 0;
  if (arguments.values.size() < kTestAt) {
    return Fail(ErrorCode::kInvalidArgument, "an attribute's name is missing");
  }
  QUIRE_ASSIGN(const auto test, TextArgument(arguments, kTestAt, "test"));
  QUIRE_ASSIGN(const Items items, ItemsOf(subject, budget));
  const Arguments rest = Rest(arguments, kTestAt + 1);
  Items kept;
  for (const Value& item : items) {
    QUIRE_TRY(budget.Step());
    Value tested = item;
    if (kAttribute) {
      QUIRE_ASSIGN(tested, Subscript(item, arguments.values[0], budget));
    }
    QUIRE_ASSIGN(const bool holds, test != nullptr ? ApplyTest(*test, tested, rest, budget)
                                                   : Result<bool>(tested.Truth()));
    if (holds == kWanted) kept.push_back(item);
  }
  return Value::MakeList(std::move(kept));
}

constexpr std::array<std::pair<std::string_view, Filter>, 26> kFilters = {{
    {"trim", Trim},
    {"tojson", ToJson},
    {"length", Length},
    {"count", Length},
    {"default", Default},
    {"d", Default},
    {"upper", MapText<ToUpper>},
    {"lower", MapText<ToLower>},
    {"capitalize", MapText<Capitalize>},
    {"title", MapText<Title>},
    {"join", Join},
    {"first", Edge<true>},
    {"last", Edge<false>},
    {"list", List},
    {"reverse", Reverse},
    {"items", ItemPairs},
    {"string", String},
    {"int", Integer},
    {"replace", Replace},
    {"indent", Indent},
    {"safe", Same},
    {"map", Map},
    {"select", Select<false, true>},
    {"reject", Select<false, false>},
    {"selectattr", Select<true, true>},
    {"rejectattr", Select<true, false>},
}};

using Test = bool (*)(const Value&);

constexpr std::array<std::pair<std::string_view, Test>, 13> kTests = {{
    {"defined", [](const Value& value) { return !value.is_undefined(); }},
    {"undefined", [](const Value& value) { return value.is_undefined(); }},
    {"none", [](const Value& value) { return value.is_none(); }},
    {"string", [](const Value& value) { return value.text() != nullptr; }},
    {"mapping", [](const Value& value) { return value.members() != nullptr; }},
    {"number", [](const Value& value) { return value.Number().has_value(); }},
    {"integer", [](const Value& value) { return value.integer() != nullptr; }},
    {"float", [](const Value& value) { return value.real() != nullptr; }},
    {"boolean", [](const Value& value) { return value.boolean() != nullptr; }},
    {"true", [](const Value& value) { return value.boolean() != nullptr && *value.boolean(); }},
    {"false", [](const Value& value) { return value.boolean() != nullptr && !*value.boolean(); }},
    {"iterable",
     [](const Value& value) {
       return value.is_undefined() || value.text() != nullptr || value.items() != nullptr ||
              value.members() != nullptr;
     }},
    {"sequence",
     [](const Value& value) {
       return value.is_undefined() || value.text() != nullptr || value.items() != nullptr ||
              value.members() != nullptr;
     }},
}};

// Tests that are operators under another name.
constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kComparisons = {{
    {"eq", "=="},
    {"equalto", "=="},
    {"==", "=="},
    {"ne", "!="},
    {"!=", "!="},
    {"lt", "<"},
    {"lessthan", "<"},
    {"le", "<="},
    {"gt", ">"},
    {"greaterthan", ">"},
    {"ge", ">="},
    {"in", "in"},
    {"<", "<"},
    {">", ">"},
}};

Result<bool> TestNumber(std::string_view name, const Value& subject, const Arguments& arguments) {
  QUIRE_ASSIGN(const int64_t divisor,
               name == "divisibleby" ? WholeArgument(arguments, 0, "num", 0) : Result<int64_t>(2));
  if (!subject.Whole() || divisor == 0) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is {} {}", subject.TypeName(), name, divisor));
  }
  const bool divisible = divisor == -1 || *subject.Whole() % divisor == 0;
  return name == "odd" ? !divisible : divisible;
}

}  // namespace

Result<Value> ApplyFilter(std::string_view name, const Value& subject, const Arguments& arguments,
                          Budget& budget) {
  const auto filter =
      std::ranges::find(kFilters, name, [](const auto& pair) { return pair.first; });
  if (filter == kFilters.end()) {
    return Fail(ErrorCode::kUnsupported, fmt::format("filter {}", name));
  }
  return filter->second(subject, arguments, budget);
}

Result<bool> ApplyTest(std::string_view name, const Value& subject, const Arguments& arguments,
                       Budget& budget) {
  const auto test = std::ranges::find(kTests, name, [](const auto& pair) { return pair.first; });
  if (test != kTests.end()) {
    QUIRE_TRY(arguments.ExpectAtMost(0));
    return test->second(subject);
  }
  if (name == "odd" || name == "even" || name == "divisibleby") {
    return TestNumber(name, subject, arguments);
  }
  const auto comparison =
      std::ranges::find(kComparisons, name, [](const auto& pair) { return pair.first; });
  if (comparison == kComparisons.end()) {
    return Fail(ErrorCode::kUnsupported, fmt::format("test {}", name));
  }
  if (arguments.values.size() != 1) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("test {} takes one argument", name));
  }
  return Compare(comparison->second, subject, arguments.values[0], budget);
}

}  // namespace quire::model::jinja
