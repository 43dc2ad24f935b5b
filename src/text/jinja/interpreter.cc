#include "text/jinja/template.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "text/jinja/machine.h"

namespace quire::model::jinja {
namespace {

using Kind = Statement::Kind;

// Statements, expressions and macros inside one another.
constexpr int kStackMax = 400;

// Steps of one iteration of a loop, for the members of its variable `loop`.
constexpr uint64_t kLoopSteps = 10;

// Gives the targets of a statement their values.
Result<void> Unpack(const std::vector<std::string>& targets, const Value& item, Members& scope,
                    Budget& budget) {
  if (targets.size() == 1) return Assign(scope, targets[0], item, budget);
  const Items* elements = item.items();
  if (elements == nullptr || elements->size() != targets.size()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{} does not give {} values", item.TypeName(), targets.size()));
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    QUIRE_TRY(Assign(scope, targets[i], (*elements)[i], budget));
  }
  return {};
}

// The variable `loop`.
Result<Value> LoopAt(const Items& items, size_t i) {
  const auto number = [](size_t n) { return Value(static_cast<int64_t>(n)); };
  const size_t count = items.size();
  return Value::MakeMap({{"index", number(i + 1)},
                         {"index0", number(i)},
                         {"revindex", number(count - i)},
                         {"revindex0", number(count - i - 1)},
                         {"first", Value(i == 0)},
                         {"last", Value(i + 1 == count)},
                         {"length", number(count)},
                         {"previtem", i == 0 ? Value() : items[i - 1]},
                         {"nextitem", i + 1 == count ? Value() : items[i + 1]}});
}

}  // namespace

Result<void> Machine::Nesting::allowed() const {
  if (machine_.nesting_ <= kStackMax) return {};
  return Fail(ErrorCode::kNoSpace, fmt::format("nested deeper than {}", kStackMax));
}

Result<void> Assign(Members& scope, std::string_view name, Value value, Budget& budget) {
  QUIRE_TRY(budget.Step(SearchSteps(scope.size(), name)));
  const auto found = std::ranges::find(scope, name, &Members::value_type::first);
  if (found != scope.end()) {
    found->second = std::move(value);
  } else {
    scope.emplace_back(std::string(name), std::move(value));
  }
  return {};
}

Machine::Machine(const RenderInput& input) : input_(input), budget_(input.limits) {
  scopes_.push_back(input.variables);
}

Result<Flow> Machine::Run(const Block& block, std::string& out) {
  const Nesting nesting(*this);
  for (const Statement& statement : block) {
    QUIRE_TRY(At(statement.line, nesting.allowed()));
    QUIRE_TRY(At(statement.line, budget_.Step()));
    QUIRE_ASSIGN(const Flow flow, At(statement.line, RunOne(statement, out)));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Result<Flow> Machine::RunOne(const Statement& statement, std::string& out) {
  switch (statement.kind) {
    case Kind::kText:
      QUIRE_TRY(budget_.Charge(statement.text.size()));
      out += statement.text;
      return Flow::kNext;
    case Kind::kOutput: {
      QUIRE_ASSIGN(const Value value, Evaluate(*statement.expressions[0]));
      QUIRE_ASSIGN(const std::string text, TextOf(value, budget_));
      out += text;
      return Flow::kNext;
    }
    case Kind::kIf: return RunIf(statement, out);
    case Kind::kFor: return RunFor(statement, out);
    case Kind::kSet: return RunSet(statement);
    case Kind::kSetBlock: {
      std::string text;
      scopes_.emplace_back();
      const Result<Flow> flow = Run(statement.blocks[0], text);
      scopes_.pop_back();
      if (!flow) return flow;
      QUIRE_TRY(Assign(scopes_.back(), statement.targets[0], Value(std::move(text)), budget_));
      return Flow::kNext;
    }
    case Kind::kMacro:
      QUIRE_TRY(Assign(scopes_.back(), statement.text, Value(Value::Macro{&statement}), budget_));
      return Flow::kNext;
    case Kind::kBlock: return RunIn({}, statement.blocks[0], out);
    case Kind::kBreak: return Flow::kBreak;
    case Kind::kContinue: return Flow::kContinue;
  }
  return Flow::kNext;
}

Result<Flow> Machine::RunIf(const Statement& statement, std::string& out) {
  for (size_t i = 0; i < statement.expressions.size(); ++i) {
    QUIRE_ASSIGN(const Value condition, Evaluate(*statement.expressions[i]));
    if (condition.Truth()) return Run(statement.blocks[i], out);
  }
  if (statement.blocks.size() == statement.expressions.size()) return Flow::kNext;
  return Run(statement.blocks.back(), out);
}

Result<Flow> Machine::RunFor(const Statement& statement, std::string& out) {
  QUIRE_ASSIGN(const Value range, Evaluate(*statement.expressions[0]));
  QUIRE_ASSIGN(Items items, ItemsOf(range, budget_));
  if (statement.expressions[1] != nullptr) {
    QUIRE_ASSIGN(items, Filtered(statement, std::move(items)));
  }
  if (items.empty() && statement.blocks.size() == 2) {
    return RunIn({}, statement.blocks[1], out);
  }
  for (size_t i = 0; i < items.size(); ++i) {
    QUIRE_TRY(budget_.Step(kLoopSteps));
    Members scope;
    QUIRE_TRY(Unpack(statement.targets, items[i], scope, budget_));
    QUIRE_ASSIGN(Value loop, LoopAt(items, i));
    QUIRE_TRY(Assign(scope, "loop", std::move(loop), budget_));
    QUIRE_ASSIGN(const Flow flow, RunIn(std::move(scope), statement.blocks[0], out));
    if (flow == Flow::kBreak) break;
  }
  return Flow::kNext;
}

// The items that the loop's condition holds for.
Result<Items> Machine::Filtered(const Statement& statement, Items items) {
  Items kept;
  for (Value& item : items) {
    QUIRE_TRY(budget_.Step());
    scopes_.emplace_back();
    const auto unpacked = Unpack(statement.targets, item, scopes_.back(), budget_);
    const auto holds = unpacked ? Evaluate(*statement.expressions[1])
                                : Result<Value>(std::unexpected(unpacked.error()));
    scopes_.pop_back();
    if (!holds) return std::unexpected(holds.error());
    if (holds->Truth()) kept.push_back(std::move(item));
  }
  return kept;
}

Result<Flow> Machine::RunIn(Members scope, const Block& block, std::string& out) {
  scopes_.push_back(std::move(scope));
  const Result<Flow> flow = Run(block, out);
  scopes_.pop_back();
  return flow;
}

Result<Flow> Machine::RunSet(const Statement& statement) {
  QUIRE_ASSIGN(Value value, Evaluate(*statement.expressions[0]));
  if (statement.text.empty()) {
    QUIRE_TRY(Unpack(statement.targets, value, scopes_.back(), budget_));
    return Flow::kNext;
  }
  QUIRE_ASSIGN(const Value target, Lookup(statement.targets.back()));
  Value::Namespace* space = target.space();
  if (space == nullptr || statement.targets.size() != 1) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is no namespace", statement.targets.back()));
  }
  if (value.space() != nullptr) {
    return Fail(ErrorCode::kUnsupported, "a namespace inside a namespace");
  }
  QUIRE_TRY(Assign(space->members, statement.text, std::move(value), budget_));
  return Flow::kNext;
}

Result<std::string> Render(const Block& block, const RenderInput& input) {
  std::string out;
  QUIRE_TRY(Machine(input).Run(block, out));
  return out;
}

}  // namespace quire::model::jinja
