#include "text/byte_level.h"

#include <array>
#include <cstdint>

#include "text/utf8.h"

namespace quire::model {
namespace {

constexpr char32_t kCodeEnd = 0x144;  // 256 and the 68 bytes that are not printable

struct Tables {
  std::array<std::string, 256> characters;
  std::array<int16_t, kCodeEnd> bytes{};  // by code point; -1: stands for none

  Tables() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
      const char32_t code = printable ? byte : next++;
      AppendUtf8(code, characters[byte]);
      bytes[code] = static_cast<int16_t>(byte);
    }
  }
};

const Tables& Get() {
  static const Tables tables;
  return tables;
}

}  // namespace

std::string_view ByteCharacter(unsigned char byte) { return Get().characters[byte]; }

std::string BytesToCharacters(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += ByteCharacter(static_cast<unsigned char>(byte));
  return text;
}

std::optional<std::string> CharactersToBytes(std::string_view text) {
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const char32_t code = NextCharacter(text, at);
    if (code >= kCodeEnd || Get().bytes[code] < 0) return std::nullopt;
    bytes += static_cast<char>(Get().bytes[code]);
  }
  return bytes;
}

}  // namespace quire::model
