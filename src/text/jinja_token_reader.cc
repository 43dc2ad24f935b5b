#include "text/jinja_token_reader.h"

#include <fmt/core.h>

#include <algorithm>

namespace quire::model::jinja {
namespace {

// Brackets and blocks inside one another are read by recursion.
constexpr uint32_t kNestingMax = 60;

}  // namespace

const Token& TokenReader::Peek(size_t ahead) const {
  return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
}

Token TokenReader::Take() {
  Token token = Peek();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool TokenReader::IsOperator(std::string_view text) const {
  return Is(TokenKind::kOperator) && Peek().text == text;
}

bool TokenReader::IsName(std::string_view text) const {
  return Is(TokenKind::kName) && Peek().text == text;
}

bool TokenReader::TakeOperator(std::string_view text) {
  const bool is = IsOperator(text);
  if (is) Take();
  return is;
}

bool TokenReader::TakeName(std::string_view text) {
  const bool is = IsName(text);
  if (is) Take();
  return is;
}

Result<void> TokenReader::Expect(std::string_view operator_text) {
  if (TakeOperator(operator_text)) return {};
  return Bad(fmt::format("'{}'", operator_text));
}

Result<std::string> TokenReader::ExpectName() {
  if (!Is(TokenKind::kName)) return Bad("a name");
  return Take().text;
}

Result<void> TokenReader::Expect(TokenKind kind, std::string_view what) {
  if (!Is(kind)) return Bad(what);
  Take();
  return {};
}

Result<void> TokenReader::Enter() {
  if (++depth_ <= kNestingMax) return {};
  return FailAt(ErrorCode::kNoSpace, line(), fmt::format("nested deeper than {}", kNestingMax));
}

std::unexpected<Error> TokenReader::Bad(std::string_view wanted) const {
  return FailAt(ErrorCode::kCorrupt, line(),
                fmt::format("{} expected, found {}", wanted,
                            Peek().text.empty() ? "the end of the tag or file"
                                                : fmt::format("'{:.40}'", Peek().text)));
}

}  // namespace quire::model::jinja
