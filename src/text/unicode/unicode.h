// UTF-8: bytes that come in pieces to text that comes whole, characters of text, and normalization.
#ifndef QUIRE_TEXT_UNICODE_UNICODE_H_
#define QUIRE_TEXT_UNICODE_UNICODE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire::model {

/// Holds back the bytes of a UTF-8 sequence until it is complete. Bytes that can never become a
/// character come out as U+FFFD, one for each longest part of a sequence, as Unicode recommends.
///
/// Threads: one object on one thread at a time
/// Source:  The Unicode Standard, table 3-7 and section 3.9, substitution of maximal subparts
class Utf8Stream {
 public:
  /// The characters that `bytes` completes; may be empty.
  std::string Add(std::string_view bytes);
  /// The rest: U+FFFD for a sequence that was cut, else nothing.
  std::string Finish();

 private:
  void AddByte(unsigned char byte, std::string& out);

  std::string pending_;       // first bytes of a sequence
  unsigned missing_ = 0;      // bytes until it is complete
  unsigned char low_ = 0x80;  // range of the next one
  unsigned char high_ = 0xbf;
};

/// `bytes` as text, by the rule of Utf8Stream; text as it is.
std::string ToUtf8(std::string_view bytes);

/// The character at `at` of valid text; moves `at` behind it.
char32_t NextCharacter(std::string_view text, size_t& at);
/// Where the character that ends before `end` begins; `end` > 0.
size_t PreviousCharacter(std::string_view text, size_t end);
/// Appends a code point that is not a surrogate.
void AppendUtf8(char32_t code, std::string& out);

std::optional<uint32_t> HexDigit(char c);

/// Unicode's White_Space.
bool IsWhiteSpace(char32_t code);

/// Valid text with characters composed: "e" and U+0301 become "é".
///
/// Cost:   O(n log n), also for long runs of combining marks
/// Source: Unicode Standard Annex 15; tables of utf8proc (Unicode 15.0)
std::string ToNfc(std::string_view text);

}  // namespace quire::model

#endif  // QUIRE_TEXT_UNICODE_UNICODE_H_
