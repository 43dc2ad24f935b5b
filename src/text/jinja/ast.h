// A parsed Jinja template.
#ifndef QUIRE_TEXT_JINJA_AST_H_
#define QUIRE_TEXT_JINJA_AST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace quire::model::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind : uint8_t {
    kLiteral,    // value
    kName,       // text
    kList,       // operands
    kMap,        // operands: key, value, key, value ...
    kAttribute,  // operands[0].text
    kSubscript,  // operands[0][operands[1]]
    kSlice,      // operands[0][operands[1]:operands[2]:operands[3]]; an absent one is null
    kCall,       // operands[0](operands[1..], named)
    kFilter,     // operands[0] | text(operands[1..], named)
    kTest,       // operands[0] is text(operands[1..])
    kUnary,      // text is "not", "-" or "+"
    kBinary,     // operands[0] names[0] operands[1] names[1] operands[2] ..., from the left
    kLogic,      // operands joined by text, "and" or "or"
    kCompare,    // as kBinary, but each operator compares its neighbours, and all must hold
    kTernary,    // operands[1] if operands[0] else operands[2], which may be null
  };

  Kind kind;
  uint32_t line = 0;
  uint32_t depth = 1;  // of the tree
  std::string text{};
  Value value{};
  std::vector<ExpressionPtr> operands{};
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

#endif  // QUIRE_TEXT_JINJA_AST_H_
