// A Jinja template: its tree, made of text, and rendered.
#ifndef QUIRE_TEXT_JINJA_TEMPLATE_H_
#define QUIRE_TEXT_JINJA_TEMPLATE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/error.h"
#include "text/jinja/budget.h"
#include "text/jinja/lexer.h"
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

/// Errors: kCorrupt not a template; kUnsupported a construct outside of docs/chat_template.md;
///         kNoSpace nested too deep. All but those of the file's end name the line
Result<Block> ParseTemplate(std::string_view source);

/// A whole expression. Errors: those of ParseTemplate
Result<ExpressionPtr> ParseExpression(TokenReader& reader);
/// The same without "A if B else C" at the top: what `for` loops over.
Result<ExpressionPtr> ParseWithoutTernary(TokenReader& reader);

struct RenderInput {
  Members variables{};
  /// The date by a format of strftime; empty: the template finds strftime_now undefined.
  std::function<std::string(const std::string& format)> strftime_now{};
  Limits limits{};
};

/// The template's output.
///
/// Errors:  kInvalidArgument raise_exception, or values an operator cannot take; kUnsupported a
///          filter, test, function or method outside of docs/chat_template.md; kNoSpace a limit.
///          The message names the line
/// Threads: any number at once on one template
Result<std::string> Render(const Block& block, const RenderInput& input);

}  // namespace quire::model::jinja

#endif  // QUIRE_TEXT_JINJA_TEMPLATE_H_
