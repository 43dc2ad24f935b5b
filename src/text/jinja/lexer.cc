#include "text/jinja/lexer.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "text/jinja/text.h"
#include "text/unicode/unicode.h"

namespace quire::model::jinja {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsNameCharacter(char c) { return IsNameStart(c) || IsDigit(c); }
bool IsBlank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Every line ends with \n, but the last.
std::string WithPlainNewlines(std::string_view source) {
  std::string plain;
  plain.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      plain += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      plain += source[i];
    }
  }
  if (plain.ends_with('\n')) plain.pop_back();
  return plain;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> Run() {
    while (at_ < source_.size()) {
      const size_t tag = NextTag();
      const bool at_end = tag == source_.size();
      Text(tag);
      if (at_end) break;
      const char kind = source_[tag + 1];
      at_ = tag + 2;
      if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) ++at_;
      if (kind == '#') {
        QUIRE_TRY(Comment());
      } else {
        QUIRE_TRY(Tag(kind == '%'));
      }
    }
    Push(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
  }
  bool StartsWith(std::string_view text) const {
    return std::string_view(source_).substr(at_).starts_with(text);
  }
  void Push(TokenKind kind, std::string text) {
    tokens_.push_back({.kind = kind, .text = std::move(text), .line = line_});
  }
  // Moves on to `end`, counting lines.
  void Skip(size_t end) {
    line_ += static_cast<uint32_t>(std::count(source_.begin() + static_cast<int64_t>(at_),
                                              source_.begin() + static_cast<int64_t>(end), '\n'));
    at_ = end;
  }

  // Where the next {{, {% or {# begins.
  size_t NextTag() const {
    for (size_t i = at_; (i = source_.find('{', i)) != std::string::npos; ++i) {
      const char next = i + 1 < source_.size() ? source_[i + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') return i;
    }
    return source_.size();
  }

  // The text up to a tag, less what the tag takes of its end.
  void Text(size_t tag) {
    std::string_view text = std::string_view(source_).substr(at_, tag - at_);
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    if (tag < source_.size() && sign == '-') {
      text = TrimEnd(text);
    } else if (tag < source_.size() && sign != '+' && source_[tag + 1] != '{') {
      const size_t newline = text.rfind('\n');
      const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
      const bool on_own_line = newline != std::string_view::npos || line_starts_;
      if (on_own_line && TrimEnd(text.substr(line_begin)).empty())
        text = text.substr(0, line_begin);
    }
    if (!text.empty()) Push(TokenKind::kText, std::string(text));
    Skip(tag);
  }

  // What stands behind the end of a tag and belongs to it. `statement`: a newline does.
  void TakeBehind(char sign, bool statement) {
    const size_t begin = at_;
    if (sign == '-') {
      const std::string_view rest = std::string_view(source_).substr(at_);
      Skip(at_ + (rest.size() - TrimStart(rest).size()));
    } else if (statement && sign != '+' && Peek() == '\n') {
      Skip(at_ + 1);
    }
    line_starts_ = at_ > begin && source_[at_ - 1] == '\n';
  }

  Result<void> Comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) return FailAt(ErrorCode::kCorrupt, line_, "a comment has no end");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    Skip(end + 2);
    TakeBehind(sign, true);
    return {};
  }

  Result<void> Tag(bool statement) {
    const uint32_t begin_line = line_;
    Push(statement ? TokenKind::kStatementBegin : TokenKind::kOutputBegin, "");
    int open = 0;  // brackets; inside them }} is two of them
    while (true) {
      while (at_ < source_.size() && IsBlank(source_[at_])) Skip(at_ + 1);
      if (at_ == source_.size()) {
        return FailAt(ErrorCode::kCorrupt, begin_line, "a tag has no end");
      }
      const char sign = open == 0 && (Peek() == '-' || Peek() == '+') ? Peek() : '\0';
      const std::string_view end = statement ? "%}" : "}}";
      const bool plus_is_sign = statement || sign == '-';  // "+}}" is no end
      if (open == 0 &&
          (StartsWith(end) || (sign != '\0' && plus_is_sign &&
                               std::string_view(source_).substr(at_ + 1).starts_with(end)))) {
        at_ += sign != '\0' ? 3 : 2;
        Push(statement ? TokenKind::kStatementEnd : TokenKind::kOutputEnd, "");
        TakeBehind(sign, statement);
        return {};
      }
      QUIRE_TRY(Word());
      const Token& last = tokens_.back();
      if (last.kind != TokenKind::kOperator) continue;
      if (last.text == "(" || last.text == "[" || last.text == "{") ++open;
      if (last.text == ")" || last.text == "]" || last.text == "}") --open;
    }
  }

  Result<void> Word() {
    const char c = Peek();
    if (IsNameStart(c)) {
      size_t end = at_;
      while (end < source_.size() && IsNameCharacter(source_[end])) ++end;
      Push(TokenKind::kName, source_.substr(at_, end - at_));
      at_ = end;
      return {};
    }
    if (IsDigit(c)) return Number();
    if (c == '"' || c == '\'') return String(c);
    static constexpr std::array<std::string_view, 27> kOperators = {
        "==", "!=", "<=", ">=", "//", "**", "+", "-", "*", "/", "%", "~", "<", ">",
        "(",  ")",  "[",  "]",  "{",  "}",  ",", ":", ".", "|", "=", ";", "!"};
    for (const std::string_view text : kOperators) {
      if (!StartsWith(text)) continue;
      Push(TokenKind::kOperator, std::string(text));
      at_ += text.size();
      return {};
    }
    return FailAt(ErrorCode::kUnsupported, line_,
                  fmt::format("character 0x{:02x} in a tag", static_cast<unsigned char>(c)));
  }

  Result<void> Number() {
    size_t end = at_;
    const auto digits = [&] {
      while (end < source_.size() && IsDigit(source_[end])) ++end;
    };
    digits();
    bool whole = true;
    if (end + 1 < source_.size() && source_[end] == '.' && IsDigit(source_[end + 1])) {
      whole = false;
      ++end;
      digits();
    }
    if (end < source_.size() && IsNameCharacter(source_[end])) {
      return FailAt(ErrorCode::kUnsupported, line_, "a number in this notation");
    }
    Push(whole ? TokenKind::kInteger : TokenKind::kFloat, source_.substr(at_, end - at_));
    at_ = end;
    return {};
  }

  Result<void> String(char quote) {
    const uint32_t begin_line = line_;
    ++at_;
    std::string text;
    while (at_ < source_.size() && source_[at_] != quote) {
      if (source_[at_] == '\\') {
        QUIRE_TRY(Escape(text));
      } else {
        text += source_[at_];
        Skip(at_ + 1);
      }
    }
    if (at_ == source_.size()) {
      return FailAt(ErrorCode::kCorrupt, begin_line, "a string has no end");
    }
    ++at_;
    Push(TokenKind::kString, std::move(text));
    return {};
  }

  // One escape of Python; an unknown one stands for itself.
  Result<void> Escape(std::string& text) {
    static constexpr std::array<std::pair<char, char>, 10> kPlain = {{{'n', '\n'},
                                                                      {'t', '\t'},
                                                                      {'r', '\r'},
                                                                      {'\\', '\\'},
                                                                      {'\'', '\''},
                                                                      {'"', '"'},
                                                                      {'a', '\a'},
                                                                      {'b', '\b'},
                                                                      {'f', '\f'},
                                                                      {'v', '\v'}}};
    const char c = Peek(1);
    const auto plain = std::ranges::find(kPlain, c, [](const auto& pair) { return pair.first; });
    if (plain != kPlain.end()) {
      text += plain->second;
      at_ += 2;
      return {};
    }
    if (c == '\n') {  // a line goes on
      Skip(at_ + 2);
      return {};
    }
    if (c == 'x' || c == 'u' || c == 'U') return Code(c == 'x' ? 2 : c == 'u' ? 4 : 8, 16, 2, text);
    if (c >= '0' && c <= '7') {
      size_t digits = 1;
      while (digits < 3 && Peek(1 + digits) >= '0' && Peek(1 + digits) <= '7') ++digits;
      return Code(digits, 8, 1, text);
    }
    if (c == 'N') return FailAt(ErrorCode::kUnsupported, line_, "escape \\N in a string");
    text += '\\';
    ++at_;
    return {};
  }

  // A character by its number: `digits` of `base`, `skip` bytes on.
  Result<void> Code(size_t digits, uint32_t base, size_t skip, std::string& text) {
    char32_t code = 0;
    for (size_t i = 0; i < digits; ++i) {
      const std::optional<uint32_t> digit = HexDigit(Peek(skip + i));
      if (!digit || *digit >= base) {
        return FailAt(ErrorCode::kCorrupt, line_, "a broken escape in a string");
      }
      code = code * base + *digit;
    }
    if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) {
      return FailAt(ErrorCode::kCorrupt, line_, "an escape that is no character");
    }
    AppendUtf8(code, text);
    at_ += skip + digits;
    return {};
  }

  std::string source_;
  size_t at_ = 0;
  uint32_t line_ = 1;
  bool line_starts_ = true;  // a newline ended what stands before at_
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> Lex(std::string_view source) {
  return Lexer(WithPlainNewlines(source)).Run();
}

std::unexpected<Error> FailAt(ErrorCode code, uint32_t line, std::string_view why) {
  return Fail(code, fmt::format("line {}: {}", line, why));
}

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
