// Regular expressions from files, within limits. syntax.cc has ToPcre2.
#ifndef QUIRE_TEXT_REGEX_REGEX_H_
#define QUIRE_TEXT_REGEX_REGEX_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "quire/error.h"
#include "text/json_node.h"

namespace quire::model {

/// The steps that the patterns of one file may take on one text, beyond the few of a normal match.
class RegexBudget {
 public:
  explicit RegexBudget(size_t text_bytes);

  /// Takes up to `steps`; returns how many.
  uint64_t Take(uint64_t steps);

 private:
  uint64_t left_;
};

/// Threads: any number at once
class Regex {
 public:
  using Sink = std::function<void(size_t begin, size_t end)>;

  /// Reads {"Regex": "..."} or {"String": "..."}: the latter stands for itself.
  /// Errors: kCorrupt another form, or not a pattern; kUnsupported what ToPcre2 refuses, a pattern
  ///         too long or nested too deep. The message names the field
  static Result<Regex> Parse(const JsonNode& pattern);

  /// Errors: as Parse; `where` begins the message
  static Result<Regex> Compile(std::string_view pattern, std::string where);

  /// Gives every match in ascending order, none overlapping; never an empty one where the last
  /// ended. `text` is valid UTF-8.
  ///
  /// Errors: kNoSpace a match needs more steps than the budget has left, or too much memory: `text`
  ///         would cost far more than linear time. Matches found before have been given
  Result<void> FindAll(std::string_view text, RegexBudget& budget, const Sink& sink) const;

 private:
  struct Code;

  explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}

  std::shared_ptr<const Code> code_;
};

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

#endif  // QUIRE_TEXT_REGEX_REGEX_H_
