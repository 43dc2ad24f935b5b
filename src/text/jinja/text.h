// Python's ideas of text that templates rely on. All text is valid UTF-8.
#ifndef QUIRE_TEXT_JINJA_TEXT_H_
#define QUIRE_TEXT_JINJA_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire::model::jinja {

// Functions that take longer than the length of the text, or take memory, have a line Cost.

/// Characters to look for.
///
/// Cost: 4 bytes for each
class CharacterSet {
 public:
  explicit CharacterSet(std::string_view characters);
  bool Contains(char32_t code) const;

 private:
  std::vector<char32_t> codes_;  // ascending
};

/// str.lstrip, str.rstrip and both; of `characters`, or white space when there are none given.
std::string_view TrimStart(std::string_view text, const CharacterSet* characters = nullptr);
std::string_view TrimEnd(std::string_view text, const CharacterSet* characters = nullptr);
std::string_view Trim(std::string_view text, const CharacterSet* characters = nullptr);

/// Finds a text inside others in time linear in both lengths, whatever they are.
///
/// Cost:     8 bytes for each of the needle
/// Lifetime: `needle` must outlive it
/// Source:   Knuth, Morris and Pratt, SIAM Journal on Computing 6 (2), 1977
class TextFinder {
 public:
  static constexpr size_t kBytesPerByte = sizeof(size_t);

  /// `needle` is not empty.
  explicit TextFinder(std::string_view needle);
  /// Where it begins, at `from` or later; npos when it is not there.
  size_t Find(std::string_view text, size_t from = 0) const;
  size_t needle_bytes() const { return needle_.size(); }

 private:
  std::string_view needle_;
  std::vector<size_t> borders_;  // of the first i + 1 bytes: the longest prefix that is a suffix
};

/// str.split, piece by piece: at most `most` cuts (all when negative); at runs of white space
/// without a separator, which must not be empty.
///
/// Lifetime: text and separator must outlive it and its pieces
class Splitter {
 public:
  Splitter(std::string_view text, const std::string* separator, int64_t most);
  /// The next piece; nothing after the last.
  std::optional<std::string_view> Next();

 private:
  std::optional<std::string_view> NextWord();

  std::string_view rest_;
  std::optional<TextFinder> separator_;
  int64_t cuts_left_;  // negative: any number
  bool ended_ = false;
};

/// str.replace: at most `most` times (all when negative). `from` is not empty.
std::string ReplaceText(std::string_view text, std::string_view from, std::string_view to,
                        int64_t most);

std::string ToUpper(std::string_view text);
std::string ToLower(std::string_view text);
/// The first character large, the others small.
std::string Capitalize(std::string_view text);
/// The same for every run of letters.
std::string Title(std::string_view text);

/// The characters of a text, one by one.
///
/// Cost: 16 bytes for each
std::vector<std::string_view> Characters(std::string_view text);
/// How many there are.
size_t CountCharacters(std::string_view text);
/// The text behind its first `count` characters; it has as many.
std::string_view SkipCharacters(std::string_view text, size_t count);

/// repr: in quotes, escaped.
std::string Quoted(std::string_view text);
/// Between double quotes as JSON has it; characters above ASCII stand for themselves.
std::string JsonQuoted(std::string_view text);
/// repr of a float: the shortest digits that read back as it, ".0" for whole ones.
std::string FloatText(double value);

}  // namespace quire::model::jinja

#endif  // QUIRE_TEXT_JINJA_TEXT_H_
