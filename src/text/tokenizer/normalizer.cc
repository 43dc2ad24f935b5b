#include "text/tokenizer/normalizer.h"

#include <fmt/core.h>

#include "text/unicode/unicode.h"

namespace quire::model {
namespace {

// Steps of a hostile file could multiply the text.
constexpr size_t kTextBytesMax = 1 << 28;

std::unexpected<Error> TooLong() {
  return Fail(ErrorCode::kNoSpace,
              fmt::format("the normalized text is above {} bytes", kTextBytesMax));
}

Result<std::string> ReplaceAll(std::string text, const Regex& pattern, std::string_view content,
                               RegexBudget& budget) {
  std::string out;
  size_t kept = 0;
  QUIRE_TRY(pattern.FindAll(text, budget, [&](size_t begin, size_t end) {
    if (out.size() > kTextBytesMax) return;
    out.append(text, kept, begin - kept);
    out += content;
    kept = end;
  }));
  out.append(text, kept);
  if (out.size() > kTextBytesMax) return TooLong();
  return out;
}

}  // namespace

Result<Normalizer> Normalizer::Parse(const std::optional<JsonNode>& node) {
  Normalizer normalizer;
  if (node) QUIRE_TRY(normalizer.Add(*node, 0));
  return normalizer;
}

Result<void> Normalizer::Add(const JsonNode& node, int depth) {
  const std::string type = node.Type();
  if (type == "Sequence" && depth < kSequenceDepthMax) {
    QUIRE_ASSIGN(const JsonNode list, node.Get("normalizers"));
    QUIRE_ASSIGN(const std::vector<JsonNode> elements, list.Elements());
    for (const JsonNode& one : elements) QUIRE_TRY(Add(one, depth + 1));
    return {};
  }
  if (type == "NFC") {
    steps_.emplace_back(Nfc{});
    return {};
  }
  if (type == "Prepend") {
    QUIRE_ASSIGN(std::string content, node.Text("prepend"));
    steps_.emplace_back(Prepend{std::move(content)});
    return {};
  }
  if (type == "Replace") {
    QUIRE_ASSIGN(const JsonNode pattern, node.Get("pattern"));
    QUIRE_ASSIGN(Regex regex, Regex::Parse(pattern));
    QUIRE_ASSIGN(std::string content, node.Text("content"));
    steps_.emplace_back(Replace{std::move(regex), std::move(content)});
    return {};
  }
  return node.Unsupported(
      fmt::format("type \"{}\"; supported: NFC, Prepend, Replace, Sequence", type));
}

Result<std::string> Normalizer::Normalize(std::string text, RegexBudget& budget) const {
  for (const Step& step : steps_) {
    if (std::holds_alternative<Nfc>(step)) {
      text = ToNfc(text);
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (!text.empty()) text.insert(0, prepend->content);
      if (text.size() > kTextBytesMax) return TooLong();
    } else {
      const auto& replace = std::get<Replace>(step);
      QUIRE_ASSIGN(text, ReplaceAll(std::move(text), replace.pattern, replace.content, budget));
    }
  }
  return text;
}

}  // namespace quire::model
