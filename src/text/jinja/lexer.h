// The words of a Jinja template, and a walk through them.
#ifndef QUIRE_TEXT_JINJA_LEXER_H_
#define QUIRE_TEXT_JINJA_LEXER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
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

/// Tokens being read; the last one is kEnd and stays.
class TokenReader {
 public:
  explicit TokenReader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& Peek(size_t ahead = 0) const;
  Token Take();
  uint32_t line() const { return Peek().line; }

  bool Is(TokenKind kind) const { return Peek().kind == kind; }
  bool IsOperator(std::string_view text) const;
  bool IsName(std::string_view text) const;
  /// True when it was there, and is behind us now.
  bool TakeOperator(std::string_view text);
  bool TakeName(std::string_view text);
  /// Errors: kCorrupt it is not there
  Result<void> Expect(std::string_view operator_text);
  Result<std::string> ExpectName();
  Result<void> Expect(TokenKind kind, std::string_view what);

  /// One level of nesting, ended by Leave. Errors: kNoSpace too many
  Result<void> Enter();
  void Leave() { --depth_; }

  std::unexpected<Error> Bad(std::string_view wanted) const;

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
  uint32_t depth_ = 0;
};

}  // namespace quire::model::jinja

#endif  // QUIRE_TEXT_JINJA_LEXER_H_
