#include "model/normalizer.h"

#include <fmt/core.h>

#include "model/nfc.h"

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

Result<Normalizer> Normalizer::Parse(const std::optional<JsonPart>& part) {
  Normalizer normalizer;
  if (part) QUIRE_TRY(normalizer.Add(*part, 0));
  return normalizer;
}

Result<void> Normalizer::Add(const JsonPart& part, int depth) {
  const std::string type = part.Type();
  if (type == "Sequence" && depth < kSequenceDepthMax) {
    QUIRE_ASSIGN(const JsonPart list, part.Get("normalizers"));
    QUIRE_ASSIGN(const std::vector<JsonPart> parts, list.Elements());
    for (const JsonPart& one : parts) QUIRE_TRY(Add(one, depth + 1));
    return {};
  }
  if (type == "NFC") {
    steps_.emplace_back(Nfc{});
    return {};
  }
  if (type == "Prepend") {
    QUIRE_ASSIGN(std::string content, part.Text("prepend"));
    steps_.emplace_back(Prepend{std::move(content)});
    return {};
  }
  if (type == "Replace") {
    QUIRE_ASSIGN(const JsonPart pattern, part.Get("pattern"));
    QUIRE_ASSIGN(Regex regex, Regex::Parse(pattern));
    QUIRE_ASSIGN(std::string content, part.Text("content"));
    steps_.emplace_back(Replace{std::move(regex), std::move(content)});
    return {};
  }
  return part.Unsupported(
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
