#include "model/jinja_text.h"

#include <fmt/core.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/json.h"
#include "model/utf8.h"

namespace quire::model::jinja {
namespace {

// str.isspace: White_Space and the separators of ASCII.
bool IsSpace(char32_t code) { return IsWhiteSpace(code) || (code >= 0x1c && code <= 0x1f); }

bool IsTrimmed(std::string_view character, const std::optional<std::string>& characters) {
  if (characters) return characters->find(character) != std::string::npos;
  size_t at = 0;
  return IsSpace(NextCharacter(character, at));
}

template <typename Map>
std::string MapCharacters(std::string_view text, const Map& map) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    AppendUtf8(static_cast<char32_t>(map(static_cast<utf8proc_int32_t>(NextCharacter(text, at)))),
               out);
  }
  return out;
}

}  // namespace

std::string_view TrimStart(std::string_view text, const std::optional<std::string>& characters) {
  while (!text.empty()) {
    size_t end = 0;
    NextCharacter(text, end);
    if (!IsTrimmed(text.substr(0, end), characters)) break;
    text.remove_prefix(end);
  }
  return text;
}

std::string_view TrimEnd(std::string_view text, const std::optional<std::string>& characters) {
  while (!text.empty()) {
    const size_t begin = PreviousCharacter(text, text.size());
    if (!IsTrimmed(text.substr(begin), characters)) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

std::string_view Trim(std::string_view text, const std::optional<std::string>& characters) {
  return TrimEnd(TrimStart(text, characters), characters);
}

std::vector<std::string> Split(std::string_view text, const std::optional<std::string>& separator,
                               int64_t most) {
  std::vector<std::string> parts;
  if (!separator) {
    for (text = TrimStart(text); !text.empty(); text = TrimStart(text)) {
      size_t end = 0;
      if (most >= 0 && static_cast<int64_t>(parts.size()) == most) end = text.size();
      while (end < text.size()) {
        size_t next = end;
        if (IsSpace(NextCharacter(text, next))) break;
        end = next;
      }
      parts.emplace_back(text.substr(0, end));
      text.remove_prefix(end);
    }
    return parts;
  }
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t at = text.find(*separator);
    if (at == std::string_view::npos) break;
    parts.emplace_back(text.substr(0, at));
    text.remove_prefix(at + separator->size());
  }
  parts.emplace_back(text);
  return parts;
}

std::string ReplaceText(std::string_view text, std::string_view from, std::string_view to,
                        int64_t most) {
  std::string out;
  for (int64_t count = 0; most < 0 || count < most; ++count) {
    const size_t at = text.find(from);
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
      out += fmt::format("\\x{:02x}", byte);
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
