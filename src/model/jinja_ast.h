// A parsed Jinja template.
#ifndef QUIRE_MODEL_JINJA_AST_H_
#define QUIRE_MODEL_JINJA_AST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/jinja_value.h"

namespace quire::model::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind : uint8_t {
    kLiteral,    // value
    kName,       // text
    kList,       // parts
    kMap,        // parts: key, value, key, value ...
    kAttribute,  // parts[0].text
    kSubscript,  // parts[0][parts[1]]
    kSlice,      // parts[0][parts[1]:parts[2]:parts[3]]; an absent one is null
    kCall,       // parts[0](parts[1..], named)
    kFilter,     // parts[0] | text(parts[1..], named)
    kTest,       // parts[0] is text(parts[1..])
    kUnary,      // text is "not", "-" or "+"
    kBinary,     // parts[0] names[0] parts[1] names[1] parts[2] ..., from the left
    kLogic,      // parts joined by text, "and" or "or"
    kCompare,    // as kBinary, but each operator compares its neighbours, and all must hold
    kTernary,    // parts[1] if parts[0] else parts[2], which may be null
  };

  Kind kind;
  uint32_t line = 0;
  uint32_t depth = 1;  // of the tree
  std::string text{};
  Value value{};
  std::vector<ExpressionPtr> parts{};
  std::vector<std::pair<std::string, ExpressionPtr>> named{};
  std::vector<std::string> names{};
};

struct Statement;
using Block = std::vector<Statement>;

struct Statement {
  enum class Kind : uint8_t {
    kText,      // text
    kOutput,    // expressions[0]
    kIf,        // expressions[i] guards blocks[i]; one block more is the else
    kFor,       // targets in expressions[0], if expressions[1]: blocks[0], else blocks[1]
    kSet,       // targets = expressions[0]; targets[0].text = ... when text is not empty
    kSetBlock,  // targets[0] = the output of blocks[0]
    kMacro,     // text(targets): blocks[0]; expressions are the defaults of targets, or null
    kBlock,     // blocks[0]: {% generation %}
    kBreak,
    kContinue,
  };

  Kind kind;
  uint32_t line = 0;
  std::string text{};
  std::vector<std::string> targets{};
  std::vector<ExpressionPtr> expressions{};
  std::vector<Block> blocks{};
};

}  // namespace quire::model::jinja

#endif  // QUIRE_MODEL_JINJA_AST_H_
