// The characters that stand for bytes in byte-level vocabularies.
#ifndef QUIRE_TEXT_BYTE_LEVEL_H_
#define QUIRE_TEXT_BYTE_LEVEL_H_

#include <optional>
#include <string>
#include <string_view>

namespace quire::model {

/// The character of one byte: printable bytes stand for themselves, the others follow from U+0100
/// on, in order. Source: GPT-2, bytes_to_unicode.
std::string_view ByteCharacter(unsigned char byte);

/// Every byte as its character.
std::string BytesToCharacters(std::string_view bytes);

/// The bytes of valid text made of such characters; nothing when another one is in it.
std::optional<std::string> CharactersToBytes(std::string_view text);

}  // namespace quire::model

#endif  // QUIRE_TEXT_BYTE_LEVEL_H_
