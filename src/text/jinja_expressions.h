// Expressions of Jinja: tokens to trees.
#ifndef QUIRE_TEXT_JINJA_EXPRESSIONS_H_
#define QUIRE_TEXT_JINJA_EXPRESSIONS_H_

#include "quire/error.h"
#include "text/jinja_ast.h"
#include "text/jinja_token_reader.h"

namespace quire::model::jinja {

/// A whole expression. Errors: those of ParseTemplate
Result<ExpressionPtr> ParseExpression(TokenReader& reader);
/// The same without "A if B else C" at the top: what `for` loops over.
Result<ExpressionPtr> ParseWithoutTernary(TokenReader& reader);

}  // namespace quire::model::jinja

#endif  // QUIRE_TEXT_JINJA_EXPRESSIONS_H_
