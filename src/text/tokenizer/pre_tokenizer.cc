#include "text/tokenizer/stages.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "text/unicode/unicode.h"

namespace quire::model {
namespace {

// Source: GPT-2, encoder.py; ByteLevel with use_regex.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kBehaviors = {{
    {"Removed", SplitBehavior::kRemoved},
    {"Isolated", SplitBehavior::kIsolated},
    {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
    {"MergedWithNext", SplitBehavior::kMergedWithNext},
    {"Contiguous", SplitBehavior::kContiguous},
}};

// A stretch of text: a match, or what lies between two.
struct Range {
  size_t begin;
  size_t end;
  bool is_match;
};

Result<std::vector<Range>> RangesOf(std::string_view text, const Regex& pattern, bool invert,
                                    RegexBudget& budget) {
  std::vector<Range> ranges;
  size_t last = 0;
  const auto add = [&](size_t begin, size_t end, bool is_match) {
    ranges.push_back({begin, end, is_match != invert});
  };
  QUIRE_TRY(pattern.FindAll(text, budget, [&](size_t begin, size_t end) {
    if (begin > last) add(last, begin, false);
    add(begin, end, true);
    last = end;
  }));
  if (last < text.size()) add(last, text.size(), false);
  return ranges;
}

// True when `second` continues the piece that `first` is in.
bool Join(SplitBehavior behavior, const Range& first, const Range& second) {
  switch (behavior) {
    case SplitBehavior::kMergedWithPrevious: return second.is_match && !first.is_match;
    case SplitBehavior::kMergedWithNext: return first.is_match && !second.is_match;
    case SplitBehavior::kContiguous: return first.is_match == second.is_match;
    case SplitBehavior::kRemoved:
    case SplitBehavior::kIsolated: return false;
  }
  return false;
}

void CutRanges(std::string_view text, const std::vector<Range>& ranges, SplitBehavior behavior,
               std::vector<std::string>& pieces) {
  for (size_t i = 0; i < ranges.size();) {
    const size_t begin = ranges[i].begin;
    const bool dropped = behavior == SplitBehavior::kRemoved && ranges[i].is_match;
    for (++i; i < ranges.size() && Join(behavior, ranges[i - 1], ranges[i]);) ++i;
    const size_t end = ranges[i - 1].end;
    if (!dropped && end > begin) pieces.emplace_back(text.substr(begin, end - begin));
  }
}

}  // namespace

Result<PreTokenizer> PreTokenizer::Parse(const std::optional<JsonNode>& node) {
  PreTokenizer pre_tokenizer;
  if (node) QUIRE_TRY(pre_tokenizer.Add(*node, 0));
  return pre_tokenizer;
}

Result<void> PreTokenizer::Add(const JsonNode& node, int depth) {
  const std::string type = node.Type();
  if (byte_level_) return node.Unsupported("ByteLevel must be the last step");
  if (type == "Sequence" && depth < kSequenceDepthMax) {
    QUIRE_ASSIGN(const JsonNode list, node.Get("pretokenizers"));
    QUIRE_ASSIGN(const std::vector<JsonNode> elements, list.Elements());
    for (const JsonNode& one : elements) QUIRE_TRY(Add(one, depth + 1));
    return {};
  }
  if (type == "Split") return AddSplit(node);
  if (type == "ByteLevel") return AddByteLevel(node);
  if (type == "Metaspace") return AddMetaspace(node);
  if (type == "Digits") {
    QUIRE_ASSIGN(const bool individual, node.Flag("individual_digits", false));
    QUIRE_ASSIGN(Regex digit, Regex::Compile(R"(\p{N})", node.Name()));
    const auto behavior = individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
    steps_.emplace_back(Split{std::move(digit), behavior, false});
    return {};
  }
  return node.Unsupported(
      fmt::format("type \"{}\"; supported: Split, ByteLevel, Metaspace, Digits, Sequence", type));
}

Result<void> PreTokenizer::AddSplit(const JsonNode& node) {
  QUIRE_ASSIGN(const JsonNode pattern, node.Get("pattern"));
  QUIRE_ASSIGN(const JsonNode name, node.Get("behavior"));
  QUIRE_ASSIGN(const std::string text, name.Text());
  const auto known =
      std::ranges::find(kBehaviors, text, [](const auto& pair) { return pair.first; });
  if (known == kBehaviors.end()) return name.Unsupported(fmt::format("\"{}\"", text));
  QUIRE_ASSIGN(const bool invert, node.Flag("invert", false));
  QUIRE_ASSIGN(Regex regex, Regex::Parse(pattern));
  steps_.emplace_back(Split{std::move(regex), known->second, invert});
  return {};
}

Result<void> PreTokenizer::AddByteLevel(const JsonNode& node) {
  QUIRE_ASSIGN(const bool prefix_space, node.Flag("add_prefix_space", true));
  QUIRE_ASSIGN(const bool use_regex, node.Flag("use_regex", true));
  if (prefix_space) steps_.emplace_back(PrefixSpace{});
  if (use_regex) {
    QUIRE_ASSIGN(Regex regex, Regex::Compile(kGpt2Pattern, node.Name()));
    steps_.emplace_back(Split{std::move(regex), SplitBehavior::kIsolated, false});
  }
  byte_level_ = true;
  return {};
}

Result<void> PreTokenizer::AddMetaspace(const JsonNode& node) {
  Metaspace step{.mark = {}, .prepend = Metaspace::Prepend::kAlways};
  QUIRE_ASSIGN(step.mark, node.Text("replacement"));
  size_t character = 0;
  if (!step.mark.empty()) NextCharacter(step.mark, character);
  if (step.mark.empty() || character != step.mark.size()) {
    return node.Corrupt("replacement must be one character");
  }
  if (const auto scheme = node.Find("prepend_scheme")) {
    QUIRE_ASSIGN(const std::string text, scheme->Text());
    if (text == "never") {
      step.prepend = Metaspace::Prepend::kNever;
    } else if (text == "first") {
      step.prepend = Metaspace::Prepend::kFirst;
    } else if (text != "always") {
      return scheme->Unsupported(fmt::format("\"{}\"", text));
    }
  } else {  // older files
    QUIRE_ASSIGN(const bool prefix_space, node.Flag("add_prefix_space", true));
    if (!prefix_space) step.prepend = Metaspace::Prepend::kNever;
  }
  QUIRE_ASSIGN(const bool split, node.Flag("split", true));
  const std::string mark = step.mark;
  steps_.emplace_back(std::move(step));
  if (split) {
    const Json pattern = {{"String", mark}};
    QUIRE_ASSIGN(Regex regex, Regex::Parse(JsonNode(pattern, node.Name())));
    steps_.emplace_back(Split{std::move(regex), SplitBehavior::kMergedWithNext, false});
  }
  return {};
}

std::string PreTokenizer::Metaspace::Apply(std::string_view piece, bool first) const {
  std::string out;
  if (prepend == Prepend::kAlways || (prepend == Prepend::kFirst && first)) {
    if (!piece.starts_with(' ') && !piece.starts_with(mark)) out = mark;
  }
  for (const char c : piece) {
    if (c == ' ') {
      out += mark;
    } else {
      out += c;
    }
  }
  return out;
}

Result<std::vector<std::string>> PreTokenizer::Cut(std::string text, bool at_start,
                                                   RegexBudget& budget) const {
  std::vector<std::string> pieces;
  if (!text.empty()) pieces.push_back(std::move(text));
  for (const Step& step : steps_) {
    if (const auto* split = std::get_if<Split>(&step)) {
      std::vector<std::string> cut;
      for (const std::string& piece : pieces) {
        QUIRE_ASSIGN(const auto ranges, RangesOf(piece, split->pattern, split->invert, budget));
        CutRanges(piece, ranges, split->behavior, cut);
      }
      pieces = std::move(cut);
    } else if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
      for (size_t i = 0; i < pieces.size(); ++i) {
        pieces[i] = metaspace->Apply(pieces[i], at_start && i == 0);
      }
    } else {
      for (std::string& piece : pieces) {
        if (!piece.starts_with(' ')) piece.insert(0, " ");
      }
    }
  }
  return pieces;
}

}  // namespace quire::model
