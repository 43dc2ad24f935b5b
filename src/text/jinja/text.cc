#include "text/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/json.h"
#include "text/unicode/unicode.h"

namespace quire::model::jinja {
namespace {

// str.isspace: White_Space and the separators of ASCII.
bool IsSpace(char32_t code) { return IsWhiteSpace(code) || (code >= 0x1c && code <= 0x1f); }

bool IsTrimmed(std::string_view character, const CharacterSet* characters) {
  size_t at = 0;
  const char32_t code = NextCharacter(character, at);
  return characters != nullptr ? characters->Contains(code) : IsSpace(code);
}

// Of UTF-8, whether a byte begins a character.
bool IsFirstByte(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

template <typename Map>
std::string MapCharacters(std::string_view text, const Map& map) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte < 0x80) {  // what it becomes is ASCII too
      out += static_cast<char>(map(byte));
      ++at;
      continue;
    }
    AppendUtf8(static_cast<char32_t>(map(static_cast<utf8proc_int32_t>(NextCharacter(text, at)))),
               out);
  }
  return out;
}

}  // namespace

CharacterSet::CharacterSet(std::string_view characters) {
  codes_.reserve(CountCharacters(characters));
  for (size_t at = 0; at < characters.size();) codes_.push_back(NextCharacter(characters, at));
  std::ranges::sort(codes_);
}

bool CharacterSet::Contains(char32_t code) const {
  return std::ranges::binary_search(codes_, code);
}

std::string_view TrimStart(std::string_view text, const CharacterSet* characters) {
  while (!text.empty()) {
    size_t end = 0;
    NextCharacter(text, end);
    if (!IsTrimmed(text.substr(0, end), characters)) break;
    text.remove_prefix(end);
  }
  return text;
}

std::string_view TrimEnd(std::string_view text, const CharacterSet* characters) {
  while (!text.empty()) {
    const size_t begin = PreviousCharacter(text, text.size());
    if (!IsTrimmed(text.substr(begin), characters)) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

std::string_view Trim(std::string_view text, const CharacterSet* characters) {
  return TrimEnd(TrimStart(text, characters), characters);
}

TextFinder::TextFinder(std::string_view needle) : needle_(needle), borders_(needle.size()) {
  size_t border = 0;
  for (size_t i = 1; i < needle_.size(); ++i) {
    while (border > 0 && needle_[i] != needle_[border]) border = borders_[border - 1];
    if (needle_[i] == needle_[border]) ++border;
    borders_[i] = border;
  }
}

size_t TextFinder::Find(std::string_view text, size_t from) const {
  size_t matched = 0;
  for (size_t at = from; at < text.size(); ++at) {
    if (matched == 0) {
      at = text.find(needle_[0], at);
      if (at == std::string_view::npos) return at;
      matched = 1;
    } else {
      while (matched > 0 && text[at] != needle_[matched]) matched = borders_[matched - 1];
      if (text[at] == needle_[matched]) ++matched;
    }
    if (matched == needle_.size()) return at + 1 - matched;
  }
  return std::string_view::npos;
}

Splitter::Splitter(std::string_view text, const std::string* separator, int64_t most)
    : rest_(text), cuts_left_(most) {
  if (separator != nullptr) separator_.emplace(*separator);
}

std::optional<std::string_view> Splitter::Next() {
  if (!separator_) return NextWord();
  if (ended_) return std::nullopt;
  const size_t at = cuts_left_ == 0 ? std::string_view::npos : separator_->Find(rest_);
  const std::string_view piece = rest_.substr(0, at);
  ended_ = at == std::string_view::npos;
  if (!ended_) rest_.remove_prefix(at + separator_->needle_bytes());
  if (cuts_left_ > 0) --cuts_left_;
  return piece;
}

std::optional<std::string_view> Splitter::NextWord() {
  rest_ = TrimStart(rest_);
  if (rest_.empty()) return std::nullopt;
  size_t end = cuts_left_ == 0 ? rest_.size() : 0;
  while (end < rest_.size()) {
    size_t next = end;
    if (IsSpace(NextCharacter(rest_, next))) break;
    end = next;
  }
  const std::string_view word = rest_.substr(0, end);
  rest_.remove_prefix(end);
  if (cuts_left_ > 0) --cuts_left_;
  return word;
}

std::string ReplaceText(std::string_view text, std::string_view from, std::string_view to,
                        int64_t most) {
  const TextFinder finder(from);
  std::string out;
  for (int64_t count = 0; most < 0 || count < most; ++count) {
    const size_t at = finder.Find(text);
    if (at == std::string_view::npos) break;
    out.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  return out.append(text);
}

std::string ToUpper(std::string_view text) { return MapCharacters(text, utf8proc_toupper); }

std::string ToLower(std::string_view text) { return MapCharacters(text, utf8proc_tolower); }

std::string Capitalize(std::string_view text) {
  if (text.empty()) return {};
  size_t first = 0;
  NextCharacter(text, first);
  return MapCharacters(text.substr(0, first), utf8proc_totitle) + ToLower(text.substr(first));
}

std::string Title(std::string_view text) {
  bool inside = false;
  return MapCharacters(text, [&](utf8proc_int32_t code) {
    const utf8proc_int32_t changed = inside ? utf8proc_tolower(code) : utf8proc_totitle(code);
    // Letters of scripts without case count as outside, as in Python.
    inside = utf8proc_islower(code) != 0 || utf8proc_isupper(code) != 0;
    return changed;
  });
}

std::vector<std::string_view> Characters(std::string_view text) {
  std::vector<std::string_view> characters;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    NextCharacter(text, at);
    characters.push_back(text.substr(begin, at - begin));
  }
  return characters;
}

size_t CountCharacters(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(text, IsFirstByte));
}

std::string_view SkipCharacters(std::string_view text, size_t count) {
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) NextCharacter(text, at);
  return text.substr(at);
}

std::string Quoted(std::string_view text) {
  const bool use_double = text.contains('\'') && !text.contains('"');
  const char quote = use_double ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (byte < 0x20 || byte == 0x7f) {
      constexpr std::string_view kDigits = "0123456789abcdef";
      out += "\\x";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    } else {
      out += c;
    }
  }
  return out + quote;
}

std::string JsonQuoted(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 40> buffer{};
  const double size = std::abs(value);
  const bool scientific = size != 0 && (size < 1e-4 || size >= 1e16);
  const auto format = scientific ? std::chars_format::scientific : std::chars_format::fixed;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format);
  std::string text(buffer.data(), end.ptr);
  if (!scientific && !text.contains('.')) text += ".0";
  return text;
}

}  // namespace quire::model::jinja
