// Unicode's normalization form C.
#ifndef QUIRE_TEXT_NFC_H_
#define QUIRE_TEXT_NFC_H_

#include <string>
#include <string_view>

namespace quire::model {

/// Valid text with characters composed: "e" and U+0301 become "é".
///
/// Cost:   O(n log n), also for long runs of combining marks
/// Source: Unicode Standard Annex 15; tables of utf8proc (Unicode 15.0)
std::string ToNfc(std::string_view text);

}  // namespace quire::model

#endif  // QUIRE_TEXT_NFC_H_
