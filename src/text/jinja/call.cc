#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "text/jinja/machine.h"
#include "text/unicode/unicode.h"

namespace quire::model::jinja {
namespace {

constexpr size_t kRangeMax = 100'000;
constexpr std::array<std::string_view, 5> kFunctions = {"namespace", "range", "dict",
                                                        "raise_exception", "strftime_now"};

// Named arguments, behind the members of a mapping.
Result<Members> MembersOf(const Arguments& arguments, Budget& budget) {
  Members members;
  if (!arguments.values.empty()) {
    const Members* first = arguments.values[0].members();
    if (first == nullptr || arguments.values.size() > 1) {
      return Fail(ErrorCode::kInvalidArgument, "at most one mapping expected");
    }
    for (const auto& [name, value] : *first) {
      QUIRE_TRY(budget.Charge(sizeof(Members::value_type) + name.size()));
    }
    members = *first;
  }
  for (const auto& [name, value] : arguments.named) {
    if (value.space() != nullptr) {
      return Fail(ErrorCode::kUnsupported, "a namespace inside a namespace");
    }
    QUIRE_TRY(Assign(members, name, value, budget));
  }
  return members;
}

Result<Value> Range(const Arguments& arguments, Budget& budget) {
  QUIRE_TRY(arguments.ExpectAtMost(3));
  const bool one = arguments.values.size() == 1;
  QUIRE_ASSIGN(const int64_t first,
               one ? Result<int64_t>(0) : WholeArgument(arguments, 0, "start", 0));
  QUIRE_ASSIGN(const int64_t last, WholeArgument(arguments, one ? 0 : 1, "stop", 0));
  QUIRE_ASSIGN(const int64_t step, WholeArgument(arguments, 2, "step", 1));
  constexpr int64_t kBound = int64_t{1} << 32;  // far from where sums overflow
  for (const int64_t value : {first, last, step}) {
    if (value > kBound || value < -kBound) {
      return Fail(ErrorCode::kNoSpace, fmt::format("a range at {}", value));
    }
  }
  if (step == 0 || !arguments.named.empty() || arguments.values.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "range() takes one to three numbers, no step 0");
  }
  Items items;
  for (int64_t i = first; step > 0 ? i < last : i > last; i += step) {
    if (items.size() == kRangeMax) {
      return Fail(ErrorCode::kNoSpace, fmt::format("a range of more than {}", kRangeMax));
    }
    QUIRE_TRY(budget.Charge(sizeof(Value)));
    items.emplace_back(i);
  }
  return Value::MakeList(std::move(items));
}

}  // namespace

Result<Value> Machine::Lookup(std::string_view name) {
  for (size_t i = scopes_.size(); i-- > 0;) {
    // A macro sees its own variables and the template's, not those of its caller.
    if (i < scopes_from_ && i > 0) continue;
    QUIRE_TRY(budget_.Step(SearchSteps(scopes_[i].size(), name)));
    const auto found = std::ranges::find(scopes_[i], name, &Members::value_type::first);
    if (found != scopes_[i].end()) return found->second;
  }
  const auto function = std::ranges::find(kFunctions, name);
  if (function == kFunctions.end()) return Value();
  if (name == "strftime_now" && !input_.strftime_now) return Value();
  return Value(Value::Function{*function});
}

Result<Value> Machine::EvaluateCall(const Expression& expression) {
  const Expression& callee = *expression.operands[0];
  // object.name(...): a macro or function in a variable has no members.
  if (callee.kind == Expression::Kind::kAttribute) {
    QUIRE_ASSIGN(const Value object, Evaluate(*callee.operands[0]));
    QUIRE_ASSIGN(const Arguments arguments, ArgumentsOf(expression));
    return CallMethod(object, callee.text, arguments, budget_);
  }
  QUIRE_ASSIGN(const Value value, Evaluate(callee));
  QUIRE_ASSIGN(Arguments arguments, ArgumentsOf(expression));
  if (value.macro() != nullptr) return CallMacro(*value.macro()->statement, arguments);
  if (value.function() != nullptr) return CallFunction(value.function()->name, arguments);
  const bool unknown = value.is_undefined() && callee.kind == Expression::Kind::kName;
  if (unknown) {
    return Fail(ErrorCode::kUnsupported, fmt::format("function {}", callee.text));
  }
  return Fail(ErrorCode::kInvalidArgument, fmt::format("a call of {}", value.TypeName()));
}

Result<Value> Machine::CallMacro(const Statement& macro, const Arguments& arguments) {
  if (arguments.values.size() > macro.targets.size()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{} arguments for macro {}", arguments.values.size(), macro.text));
  }
  const size_t outer_from = std::exchange(scopes_from_, scopes_.size());
  scopes_.emplace_back();
  std::string text;
  const Result<void> done = RunMacro(macro, arguments, text);
  scopes_.pop_back();
  scopes_from_ = outer_from;
  if (!done) return std::unexpected(done.error());
  return Value(std::move(text));
}

Result<void> Machine::RunMacro(const Statement& macro, const Arguments& arguments,
                               std::string& text) {
  for (const auto& [name, value] : arguments.named) {
    QUIRE_TRY(budget_.Step(SearchSteps(macro.targets.size(), name)));
    if (std::ranges::find(macro.targets, name) == macro.targets.end()) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("macro {} has no argument {}", macro.text, name));
    }
  }
  for (size_t i = 0; i < macro.targets.size(); ++i) {
    QUIRE_TRY(budget_.Step(SearchSteps(arguments.named.size(), macro.targets[i])));
    const Value* given = arguments.Get(i, macro.targets[i]);
    const ExpressionPtr& fallback = macro.expressions[i];
    Value value;
    if (given != nullptr) {
      value = *given;
    } else if (fallback != nullptr) {
      QUIRE_ASSIGN(value, Evaluate(*fallback));
    }
    QUIRE_TRY(Assign(scopes_.back(), macro.targets[i], std::move(value), budget_));
  }
  QUIRE_TRY(Run(macro.blocks[0], text));
  return {};
}

Result<Value> Machine::CallFunction(std::string_view name, const Arguments& arguments) {
  if (name == "namespace") {
    auto space = std::make_shared<Value::Namespace>();
    QUIRE_ASSIGN(space->members, MembersOf(arguments, budget_));
    return Value(std::move(space));
  }
  if (name == "dict") {
    QUIRE_ASSIGN(Members members, MembersOf(arguments, budget_));
    return Value::MakeMap(std::move(members));
  }
  if (name == "range") return Range(arguments, budget_);
  QUIRE_TRY(arguments.ExpectAtMost(1));
  QUIRE_ASSIGN(const auto text, TextArgument(arguments, 0, "text"));
  if (text == nullptr)
    return Fail(ErrorCode::kInvalidArgument, fmt::format("{}() takes a string", name));
  if (name == "strftime_now") {
    QUIRE_TRY(budget_.Charge(text->size()));
    std::string date = input_.strftime_now(*text);
    QUIRE_TRY(budget_.Charge(date.size()));
    return Value(ToUtf8(date));
  }
  return Fail(ErrorCode::kInvalidArgument, fmt::format("the template refuses: {}", *text));
}

}  // namespace quire::model::jinja
