// Jinja templates as trees.
#ifndef QUIRE_TEXT_JINJA_PARSER_H_
#define QUIRE_TEXT_JINJA_PARSER_H_

#include <string_view>

#include "quire/error.h"
#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace quire::model::jinja {

/// Errors: kCorrupt not a template; kUnsupported a construct outside of docs/chat_template.md;
///         kNoSpace nested too deep. All but those of the file's end name the line
Result<Block> ParseTemplate(std::string_view source);

/// A whole expression. Errors: those of ParseTemplate
Result<ExpressionPtr> ParseExpression(TokenReader& reader);
/// The same without "A if B else C" at the top: what `for` loops over.
Result<ExpressionPtr> ParseWithoutTernary(TokenReader& reader);

}  // namespace quire::model::jinja

#endif  // QUIRE_TEXT_JINJA_PARSER_H_
