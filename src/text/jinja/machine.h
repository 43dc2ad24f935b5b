// The state of a template that runs: statements in interpreter.cc, expressions in
// evaluate.cc, calls in call.cc.
#ifndef QUIRE_TEXT_JINJA_MACHINE_H_
#define QUIRE_TEXT_JINJA_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"
#include "text/jinja/budget.h"
#include "text/jinja/lexer.h"
#include "text/jinja/operators.h"
#include "text/jinja/template.h"
#include "text/jinja/value.h"

namespace quire::model::jinja {

/// What a statement does to the loop around it.
enum class Flow : uint8_t { kNext, kBreak, kContinue };

/// The same failure with its line, unless it has one.
template <typename T>
Result<T> At(uint32_t line, Result<T> result) {
  if (result || result.error().message.starts_with("line ")) return result;
  return FailAt(result.error().code, line, result.error().message);
}

/// Gives a name its value in a scope.
///
/// Errors: kNoSpace the budget
Result<void> Assign(Members& scope, std::string_view name, Value value, Budget& budget);

class Machine {
 public:
  explicit Machine(const RenderInput& input);

  Result<Flow> Run(const Block& block, std::string& out);

 private:
  // One call more on the stack, while it lives.
  class Nesting;

  Result<Flow> RunOne(const Statement& statement, std::string& out);
  Result<Flow> RunIf(const Statement& statement, std::string& out);
  Result<Flow> RunFor(const Statement& statement, std::string& out);
  Result<Flow> RunSet(const Statement& statement);
  Result<Flow> RunIn(Members scope, const Block& block, std::string& out);
  Result<Items> Filtered(const Statement& statement, Items items);

  Result<Value> Lookup(std::string_view name);
  Result<Value> Evaluate(const Expression& expression);
  Result<Value> EvaluateOne(const Expression& expression);
  Result<Items> EvaluateFrom(const Expression& expression, size_t first);
  Result<Arguments> ArgumentsOf(const Expression& expression);
  Result<Value> EvaluateMap(const Expression& expression);
  Result<Value> EvaluateSlice(const Expression& expression);
  Result<Value> EvaluateUnary(const Expression& expression);
  Result<Value> EvaluateChain(const Expression& expression);
  Result<Value> EvaluateLogic(const Expression& expression);
  Result<Value> EvaluateCompare(const Expression& expression);

  Result<Value> EvaluateCall(const Expression& expression);
  Result<Value> CallMacro(const Statement& macro, const Arguments& arguments);
  Result<void> RunMacro(const Statement& macro, const Arguments& arguments, std::string& text);
  Result<Value> CallFunction(std::string_view name, const Arguments& arguments);

  const RenderInput& input_;
  Budget budget_;
  std::vector<Members> scopes_;  // the outermost first: the template's own
  size_t scopes_from_ = 0;       // where those of the running macro begin
  int nesting_ = 0;
};

class Machine::Nesting {
 public:
  explicit Nesting(Machine& machine) : machine_(machine) { ++machine_.nesting_; }
  ~Nesting() { --machine_.nesting_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

  /// Errors: kNoSpace the stack is deep enough
  Result<void> allowed() const;

 private:
  Machine& machine_;
};

}  // namespace quire::model::jinja

#endif  // QUIRE_TEXT_JINJA_MACHINE_H_
