#include "text/regex/regex.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <vector>

namespace quire::model {
namespace {

constexpr std::array<std::string_view, 37> kCategories = {
    "L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M",  "Mc", "Me", "Mn", "N",  "Nd", "Nl",
    "No", "P",  "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S",  "Sc", "Sk", "Sm",
    "So", "Z",  "Zl", "Zp", "Zs", "C",  "Cc", "Cf", "Cn", "Co", "Cs"};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsHex(char c) { return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool IsNameCharacter(char c) {
  return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool IsPunctuation(char c) { return c > ' ' && c < '\x7f' && !IsNameCharacter(c); }

class Rewriter {
 public:
  explicit Rewriter(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> Run() {
    while (!AtEnd()) QUIRE_TRY(Item());
    return std::move(out_);
  }

 private:
  bool AtEnd() const { return at_ == pattern_.size(); }
  bool StartsWith(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  void Copy(size_t bytes) {
    out_ += pattern_.substr(at_, bytes);
    at_ += bytes;
  }

  std::unexpected<Error> Refuse(std::string_view construct) const {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("{} at byte {} of the pattern is not supported", construct, at_));
  }

  Result<void> Item() {
    switch (pattern_[at_]) {
      case '\\': return Escape();
      case '[': return Class();
      case '(': return Open();
      case ')':
        if (!lookaround_.empty()) lookaround_.pop_back();
        Copy(1);
        return {};
      case '*':
      case '+':
      case '?':
      case '{': return Repeat();
      case '^':
      case '$': return Refuse(fmt::format("'{}'", pattern_[at_]));  // they differ between lines
      default: Copy(1); return {};
    }
  }

  Result<void> Open() {
    const bool outer = !lookaround_.empty() && lookaround_.back();
    for (const std::string_view plain : {"(?:", "(?i:"}) {
      if (!StartsWith(plain)) continue;
      lookaround_.push_back(outer);
      Copy(plain.size());
      return {};
    }
    for (const std::string_view look : {"(?=", "(?!", "(?<=", "(?<!"}) {
      if (!StartsWith(look)) continue;
      lookaround_.push_back(true);
      Copy(look.size());
      return {};
    }
    if (StartsWith("(?") || StartsWith("(*")) return Refuse(pattern_.substr(at_, 3));
    lookaround_.push_back(outer);
    Copy(1);
    return {};
  }

  Result<void> Repeat() {
    const bool counted = pattern_[at_] == '{';
    const size_t bytes = counted ? CountBytes() : 1;
    if (bytes == 0) return Refuse("'{' that begins no repeat count");
    const char last = counted ? pattern_[at_ + bytes - 2] : pattern_[at_];
    const bool endless = last == '*' || last == '+' || last == ',';
    const char next = at_ + bytes < pattern_.size() ? pattern_[at_ + bytes] : '\0';
    if (endless && !lookaround_.empty() && lookaround_.back()) {
      return Refuse("an endless repeat inside a lookaround");
    }
    if ((counted && (next == '+' || next == '?')) || (endless && next == '+')) {
      return Refuse("a possessive or doubled repeat");
    }
    Copy(bytes);
    if (next == '+' || next == '?') Copy(1);
    return {};
  }

  // Length of {n}, {n,} or {n,m}; 0 when this is none.
  size_t CountBytes() const {
    size_t i = at_ + 1;
    const auto digits = [&] {
      const size_t begin = i;
      while (i < pattern_.size() && IsDigit(pattern_[i])) ++i;
      return i > begin;
    };
    if (!digits()) return 0;
    if (i < pattern_.size() && pattern_[i] == ',') {
      ++i;
      digits();
    }
    return i < pattern_.size() && pattern_[i] == '}' ? i + 1 - at_ : 0;
  }

  Result<void> Class() {
    Copy(StartsWith("[^") ? 2 : 1);
    if (!AtEnd() && pattern_[at_] == ']') return Refuse("']' first in a class");
    while (!AtEnd() && pattern_[at_] != ']') {
      if (pattern_[at_] == '[') return Refuse("'[' inside a class");
      if (StartsWith("&&")) return Refuse("'&&' inside a class");
      if (pattern_[at_] == '\\') {
        QUIRE_TRY(Escape());
      } else {
        Copy(1);
      }
    }
    if (AtEnd()) return Refuse("a class without end");
    Copy(1);
    return {};
  }

  Result<void> Escape() {
    const char c = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0';
    switch (c) {
      case 's':  // PCRE2's \s has U+180E, which Unicode took out of White_Space
      case 'S':
        out_ += c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
        at_ += 2;
        return {};
      case 'd':
      case 'D':
      case 'n':
      case 'r':
      case 't':
      case 'f': Copy(2); return {};
      case 'p':
      case 'P': return Property();
      case 'x':
      case 'u': return Code(c);
      default:
        if (!IsPunctuation(c))
          return Refuse(fmt::format("escape \\{}", IsNameCharacter(c) ? c : '?'));
        Copy(2);
        return {};
    }
  }

  // Categories mean the same to both; any other name is taken as a script, which PCRE2 checks.
  Result<void> Property() {
    size_t i = at_ + 2;
    if (i >= pattern_.size() || pattern_[i] != '{') return Refuse("a property without braces");
    const bool negated = i + 1 < pattern_.size() && pattern_[i + 1] == '^';
    const size_t begin = i + 1 + (negated ? 1 : 0);
    for (i = begin; i < pattern_.size() && IsNameCharacter(pattern_[i]);) ++i;
    if (i == pattern_.size() || pattern_[i] != '}') return Refuse("this form of property");
    const std::string_view name = pattern_.substr(begin, i - begin);
    const bool category = std::ranges::find(kCategories, name) != kCategories.end();
    out_ += fmt::format("\\{}{{{}{}{}}}", pattern_[at_ + 1], negated ? "^" : "",
                        category ? "" : "sc:", name);
    at_ = i + 1;
    return {};
  }

  // \x{H...}, \uHHHH, or \xHH below 0x80: above, one reads a byte and the other a character.
  Result<void> Code(char kind) {
    const bool braces = kind == 'x' && at_ + 2 < pattern_.size() && pattern_[at_ + 2] == '{';
    const size_t begin = at_ + (braces ? 3 : 2);
    const size_t most = braces ? 8 : kind == 'u' ? 4 : 2;
    size_t i = begin;
    while (i < pattern_.size() && i - begin < most && IsHex(pattern_[i])) ++i;
    const std::string_view digits = pattern_.substr(begin, i - begin);
    const bool closed = !braces || (i < pattern_.size() && pattern_[i] == '}');
    const bool whole = braces ? !digits.empty() : digits.size() == most;
    if (!closed || !whole || (!braces && kind == 'x' && digits[0] > '7')) {
      return Refuse("this form of character code");
    }
    out_ += fmt::format("\\x{{{}}}", digits);
    at_ = i + (braces ? 1 : 0);
    return {};
  }

  std::string_view pattern_;
  size_t at_ = 0;
  std::string out_;
  std::vector<bool> lookaround_;  // by open group: it is a lookaround, or inside one
};

}  // namespace

Result<std::string> ToPcre2(std::string_view pattern) { return Rewriter(pattern).Run(); }

}  // namespace quire::model
