// Python's ideas of text that templates rely on. All text is valid UTF-8.
#ifndef QUIRE_MODEL_JINJA_TEXT_H_
#define QUIRE_MODEL_JINJA_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire::model::jinja {

/// str.lstrip, str.rstrip and both; of `characters`, or white space when there are none given.
std::string_view TrimStart(std::string_view text,
                           const std::optional<std::string>& characters = std::nullopt);
std::string_view TrimEnd(std::string_view text,
                         const std::optional<std::string>& characters = std::nullopt);
std::string_view Trim(std::string_view text,
                      const std::optional<std::string>& characters = std::nullopt);

/// str.split: at most `most` cuts (all when negative); at runs of white space without a separator,
/// which must not be empty.
std::vector<std::string> Split(std::string_view text, const std::optional<std::string>& separator,
                               int64_t most);

/// str.replace: at most `most` times (all when negative).
std::string ReplaceText(std::string_view text, std::string_view from, std::string_view to,
                        int64_t most);

std::string ToUpper(std::string_view text);
std::string ToLower(std::string_view text);
/// The first character large, the others small.
std::string Capitalize(std::string_view text);
/// The same for every run of letters.
std::string Title(std::string_view text);

/// The characters of a text, one by one.
std::vector<std::string_view> Characters(std::string_view text);

/// repr: in quotes, escaped.
std::string Quoted(std::string_view text);
/// Between double quotes as JSON has it; characters above ASCII stand for themselves.
std::string JsonQuoted(std::string_view text);
/// repr of a float: the shortest digits that read back as it, ".0" for whole ones.
std::string FloatText(double value);

}  // namespace quire::model::jinja

#endif  // QUIRE_MODEL_JINJA_TEXT_H_
