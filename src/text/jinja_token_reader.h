// Walks through the tokens of a Jinja template.
#ifndef QUIRE_TEXT_JINJA_TOKEN_READER_H_
#define QUIRE_TEXT_JINJA_TOKEN_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/error.h"
#include "text/jinja_lexer.h"

namespace quire::model::jinja {

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

#endif  // QUIRE_TEXT_JINJA_TOKEN_READER_H_
