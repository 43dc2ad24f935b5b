#include <fmt/core.h>

#include <array>
#include <utility>

#include "text/jinja/machine.h"
#include "text/jinja/operators.h"

namespace quire::model::jinja {

using Kind = Expression::Kind;

Result<Value> Machine::Evaluate(const Expression& expression) {
  const Nesting nesting(*this);
  QUIRE_TRY(At(expression.line, nesting.allowed()));
  QUIRE_TRY(At(expression.line, budget_.Step()));
  return At(expression.line, EvaluateOne(expression));
}

Result<Value> Machine::EvaluateOne(const Expression& expression) {
  switch (expression.kind) {
    case Kind::kLiteral: return expression.value;
    case Kind::kName: return Lookup(expression.text);
    case Kind::kList: {
      QUIRE_ASSIGN(Items items, EvaluateFrom(expression, 0));
      return Value::MakeList(std::move(items));
    }
    case Kind::kMap: return EvaluateMap(expression);
    case Kind::kAttribute: {
      QUIRE_ASSIGN(const Value object, Evaluate(*expression.operands[0]));
      return Attribute(object, expression.text, budget_);
    }
    case Kind::kSubscript: {
      QUIRE_ASSIGN(const Value object, Evaluate(*expression.operands[0]));
      QUIRE_ASSIGN(const Value index, Evaluate(*expression.operands[1]));
      return Subscript(object, index, budget_);
    }
    case Kind::kSlice: return EvaluateSlice(expression);
    case Kind::kCall: return EvaluateCall(expression);
    case Kind::kFilter: {
      QUIRE_ASSIGN(const Value subject, Evaluate(*expression.operands[0]));
      QUIRE_ASSIGN(const Arguments arguments, ArgumentsOf(expression));
      return ApplyFilter(expression.text, subject, arguments, budget_);
    }
    case Kind::kTest: {
      QUIRE_ASSIGN(const Value subject, Evaluate(*expression.operands[0]));
      QUIRE_ASSIGN(const Arguments arguments, ArgumentsOf(expression));
      QUIRE_ASSIGN(const bool holds, ApplyTest(expression.text, subject, arguments, budget_));
      return Value(holds);
    }
    case Kind::kUnary: return EvaluateUnary(expression);
    case Kind::kBinary: return EvaluateChain(expression);
    case Kind::kLogic: return EvaluateLogic(expression);
    case Kind::kCompare: return EvaluateCompare(expression);
    case Kind::kTernary: {
      QUIRE_ASSIGN(const Value condition, Evaluate(*expression.operands[0]));
      const ExpressionPtr& chosen = expression.operands[condition.Truth() ? 1 : 2];
      return chosen != nullptr ? Evaluate(*chosen) : Value();
    }
  }
  return Value();
}

// The operands from `first` on, in order.
Result<Items> Machine::EvaluateFrom(const Expression& expression, size_t first) {
  Items items;
  QUIRE_TRY(budget_.Charge(expression.operands.size() * sizeof(Value)));
  for (size_t i = first; i < expression.operands.size(); ++i) {
    QUIRE_ASSIGN(Value item, Evaluate(*expression.operands[i]));
    items.push_back(std::move(item));
  }
  return items;
}

Result<Arguments> Machine::ArgumentsOf(const Expression& expression) {
  Arguments arguments;
  QUIRE_ASSIGN(arguments.values, EvaluateFrom(expression, 1));
  for (const auto& [name, operand] : expression.named) {
    QUIRE_ASSIGN(Value value, Evaluate(*operand));
    QUIRE_TRY(Assign(arguments.named, name, std::move(value), budget_));
  }
  return arguments;
}

Result<Value> Machine::EvaluateMap(const Expression& expression) {
  Members members;
  QUIRE_TRY(budget_.Charge(expression.operands.size() * sizeof(Value) * 2));
  for (size_t i = 0; i < expression.operands.size(); i += 2) {
    QUIRE_ASSIGN(const Value key, Evaluate(*expression.operands[i]));
    QUIRE_ASSIGN(Value value, Evaluate(*expression.operands[i + 1]));
    if (key.text() == nullptr) {
      return Fail(ErrorCode::kUnsupported, fmt::format("{} as a key", key.TypeName()));
    }
    QUIRE_TRY(Assign(members, *key.text(), std::move(value), budget_));
  }
  return Value::MakeMap(std::move(members));
}

Result<Value> Machine::EvaluateSlice(const Expression& expression) {
  QUIRE_ASSIGN(const Value object, Evaluate(*expression.operands[0]));
  std::array<Value, 3> bounds;
  for (size_t i = 0; i < bounds.size(); ++i) {
    const ExpressionPtr& operand = expression.operands[i + 1];
    QUIRE_ASSIGN(bounds[i],
                 operand != nullptr ? Evaluate(*operand) : Result<Value>(Value(Value::None())));
  }
  return Slice(object, bounds[0], bounds[1], bounds[2], budget_);
}

Result<Value> Machine::EvaluateUnary(const Expression& expression) {
  QUIRE_ASSIGN(const Value value, Evaluate(*expression.operands[0]));
  if (expression.text == "not") return Value(!value.Truth());
  return Operate(expression.text, Value(int64_t{0}), value, budget_);
}

Result<Value> Machine::EvaluateChain(const Expression& expression) {
  QUIRE_ASSIGN(Value left, Evaluate(*expression.operands[0]));
  for (size_t i = 0; i < expression.names.size(); ++i) {
    QUIRE_ASSIGN(const Value right, Evaluate(*expression.operands[i + 1]));
    QUIRE_ASSIGN(left, Operate(expression.names[i], left, right, budget_));
  }
  return left;
}

// The value that decides, as in Python.
Result<Value> Machine::EvaluateLogic(const Expression& expression) {
  const bool stops_at = expression.text == "or";
  Value value;
  for (const ExpressionPtr& operand : expression.operands) {
    QUIRE_ASSIGN(value, Evaluate(*operand));
    if (value.Truth() == stops_at) break;
  }
  return value;
}

Result<Value> Machine::EvaluateCompare(const Expression& expression) {
  QUIRE_ASSIGN(Value left, Evaluate(*expression.operands[0]));
  for (size_t i = 0; i < expression.names.size(); ++i) {
    QUIRE_ASSIGN(Value right, Evaluate(*expression.operands[i + 1]));
    QUIRE_ASSIGN(const bool holds, Compare(expression.names[i], left, right, budget_));
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

}  // namespace quire::model::jinja
