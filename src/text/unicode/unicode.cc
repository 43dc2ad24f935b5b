#include "text/unicode/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"

namespace quire::model {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

}  // namespace

std::string Utf8Stream::Add(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) AddByte(static_cast<unsigned char>(c), out);
  return out;
}

std::string Utf8Stream::Finish() {
  const bool cut = missing_ > 0;
  pending_.clear();
  missing_ = 0;
  return std::string(cut ? kReplacement : "");
}

void Utf8Stream::AddByte(unsigned char byte, std::string& out) {
  if (missing_ > 0) {
    if (byte >= low_ && byte <= high_) {
      pending_ += static_cast<char>(byte);
      low_ = 0x80;
      high_ = 0xbf;
      if (--missing_ > 0) return;
      out += pending_;
      pending_.clear();
      return;
    }
    out += kReplacement;  // and this byte begins anew
    pending_.clear();
    missing_ = 0;
  }
  if (byte < 0x80) {
    out += static_cast<char>(byte);
    return;
  }
  if (byte < 0xc2 || byte > 0xf4) {  // not a first byte, or only of overlong or too large codes
    out += kReplacement;
    return;
  }
  pending_ = static_cast<char>(byte);
  missing_ = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
  // The second byte is where overlong forms, surrogates and codes above U+10FFFF show.
  low_ = byte == 0xe0 ? 0xa0 : byte == 0xf0 ? 0x90 : 0x80;
  high_ = byte == 0xed ? 0x9f : byte == 0xf4 ? 0x8f : 0xbf;
}

std::string ToUtf8(std::string_view bytes) {
  Utf8Stream stream;
  std::string text = stream.Add(bytes);
  return text + stream.Finish();
}

char32_t NextCharacter(std::string_view text, size_t& at) {
  const auto lead = static_cast<unsigned char>(text[at++]);
  if (lead < 0x80) return lead;
  const size_t more = lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
  char32_t code = lead & (0x3fu >> more);
  for (size_t i = 0; i < more; ++i) {
    code = code << 6 | (static_cast<unsigned char>(text[at++]) & 0x3fu);
  }
  return code;
}

size_t PreviousCharacter(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while ((static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
  return begin;
}

void AppendUtf8(char32_t code, std::string& out) {
  const auto tail = [&](unsigned shift) {
    out += static_cast<char>(0x80 | (code >> shift & 0x3f));
  };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | code >> 12);
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xf0 | code >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

std::optional<uint32_t> HexDigit(char c) {
  if (c >= '0' && c <= '9') return static_cast<uint32_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<uint32_t>(c - 'a' + 10);
  if (c >= 'A' && c <= 'F') return static_cast<uint32_t>(c - 'A' + 10);
  return std::nullopt;
}

bool IsWhiteSpace(char32_t code) {
  return (code >= 0x09 && code <= 0x0d) || code == 0x20 || code == 0x85 || code == 0xa0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 ||
         code == 0x202f || code == 0x205f || code == 0x3000;
}

namespace {

constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

// Text of characters below U+0300 alone is composed already.
bool IsPlain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0xcc; });
}

uint16_t CombiningClass(utf8proc_int32_t code) {
  return static_cast<uint16_t>(utf8proc_get_property(code)->combining_class);
}

// Full canonical decomposition of each character, not yet in canonical order.
std::vector<utf8proc_int32_t> Decompose(std::string_view text) {
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size() + 1);
  std::array<utf8proc_int32_t, 32> decomposed{};
  for (size_t at = 0; at < text.size();) {
    const auto code = static_cast<utf8proc_int32_t>(NextCharacter(text, at));
    int boundary = UTF8PROC_BOUNDCLASS_START;
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        code, decomposed.data(), decomposed.size(),
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &boundary);
    QUIRE_CHECK(count >= 0 && static_cast<size_t>(count) <= decomposed.size());
    codes.insert(codes.end(), decomposed.begin(), decomposed.begin() + count);
  }
  return codes;
}

// utf8proc's own ordering takes quadratic time on a long run of marks.
void Order(std::vector<utf8proc_int32_t>& codes) {
  const auto is_mark = [](utf8proc_int32_t code) { return CombiningClass(code) != 0; };
  for (auto begin = codes.begin(); begin != codes.end();) {
    begin = std::find_if(begin, codes.end(), is_mark);
    const auto end = std::find_if_not(begin, codes.end(), is_mark);
    std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return CombiningClass(a) < CombiningClass(b);
    });
    begin = end;
  }
}

}  // namespace

std::string ToNfc(std::string_view text) {
  if (IsPlain(text)) return std::string(text);
  std::vector<utf8proc_int32_t> codes = Decompose(text);
  Order(codes);
  const utf8proc_ssize_t count =
      utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()), kOptions);
  QUIRE_CHECK(count >= 0);
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    AppendUtf8(static_cast<char32_t>(codes[static_cast<size_t>(i)]), out);
  }
  return out;
}

}  // namespace quire::model
