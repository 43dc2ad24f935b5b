// The words of a Jinja template.
#ifndef QUIRE_TEXT_JINJA_LEXER_H_
#define QUIRE_TEXT_JINJA_LEXER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"

namespace quire::model::jinja {

enum class TokenKind : uint8_t {
  kText,            // outside of tags, white space already as its neighbours want it
  kOutputBegin,     // {{
  kOutputEnd,       // }}
  kStatementBegin,  // {%
  kStatementEnd,    // %}
  kName,
  kString,  // text: without quotes and escapes
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text{};
  uint32_t line = 1;
};

/// The template's tokens, the last one kEnd. White space is treated as transformers does it: a
/// statement takes the newline behind it and the indentation before it (trim_blocks,
/// lstrip_blocks), '-' takes all white space, '+' none; comments and the template's last newline
/// are left out.
///
/// Errors: kCorrupt a tag or string without end; kUnsupported a character no expression has, the
///         escape \N; both name the line
/// Source: jinja2 3.1, lexer.py
Result<std::vector<Token>> Lex(std::string_view source);

/// "line N: WHY".
std::unexpected<Error> FailAt(ErrorCode code, uint32_t line, std::string_view why);

}  // namespace quire::model::jinja

#endif  // QUIRE_TEXT_JINJA_LEXER_H_
