// Patterns of tokenizer.json as PCRE2 reads them.
#ifndef QUIRE_TEXT_REGEX_SYNTAX_H_
#define QUIRE_TEXT_REGEX_SYNTAX_H_

#include <string>
#include <string_view>

#include "quire/error.h"

namespace quire::model {

/// The same pattern in PCRE2's syntax. Files are written for Oniguruma; what the two read
/// differently is rewritten (\s, scripts, \uHHHH) or refused, and so is what could cost more than
/// linear time without a step that PCRE2 counts: possessive and atomic groups, and endless repeats
/// inside lookarounds.
///
/// Errors:  kUnsupported names the construct and its offset
/// Threads: any
/// Source:  doc/RE of Oniguruma 6.9, pcre2pattern(3)
Result<std::string> ToPcre2(std::string_view pattern);

}  // namespace quire::model

#endif  // QUIRE_TEXT_REGEX_SYNTAX_H_
