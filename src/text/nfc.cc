#include "text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "text/utf8.h"

namespace quire::model {
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
