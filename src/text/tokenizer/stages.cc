#include "text/tokenizer/stages.h"

#include <fmt/core.h>

#include "text/tokenizer/vocabulary.h"
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

namespace {

constexpr size_t kAroundMax = 1024;

}  // namespace

Result<PostProcessor> PostProcessor::Parse(const std::optional<JsonNode>& node) {
  PostProcessor processor;
  if (node) QUIRE_TRY(processor.Add(*node, 0));
  return processor;
}

Result<void> PostProcessor::Add(const JsonNode& node, int depth) {
  const std::string type = node.Type();
  if (type == "Sequence" && depth < kSequenceDepthMax) {
    QUIRE_ASSIGN(const JsonNode list, node.Get("processors"));
    QUIRE_ASSIGN(const std::vector<JsonNode> elements, list.Elements());
    for (const JsonNode& one : elements) QUIRE_TRY(Add(one, depth + 1));
    return {};
  }
  if (type == "ByteLevel") return {};
  if (type == "TemplateProcessing") return AddTemplate(node);
  return node.Unsupported(
      fmt::format("type \"{}\"; supported: TemplateProcessing, ByteLevel, Sequence", type));
}

Result<void> PostProcessor::AddTemplate(const JsonNode& node) {
  QUIRE_ASSIGN(const JsonNode single, node.Get("single"));
  QUIRE_ASSIGN(const std::vector<JsonNode> pieces, single.Elements());
  std::vector<TokenId> left;
  std::vector<TokenId> right;
  bool seen = false;  // the text
  for (const JsonNode& piece : pieces) {
    if (piece.Find("Sequence")) {
      if (seen) return piece.Unsupported("the text twice");
      seen = true;
      continue;
    }
    QUIRE_ASSIGN(const JsonNode special, piece.Get("SpecialToken"));
    QUIRE_ASSIGN(const std::string name, special.Text("id"));
    QUIRE_ASSIGN(const JsonNode tokens, node.Get("special_tokens"));
    QUIRE_ASSIGN(const JsonNode token, tokens.Get(name));
    QUIRE_ASSIGN(const JsonNode list, token.Get("ids"));
    QUIRE_ASSIGN(const std::vector<JsonNode> ids, list.Elements());
    for (const JsonNode& element : ids) {
      QUIRE_ASSIGN(const TokenId id, element.Id());
      (seen ? right : left).push_back(id);
    }
  }
  if (!seen) return single.Unsupported("a template without the text");
  if (before.size() + left.size() + behind.size() + right.size() > kAroundMax) {
    return single.Unsupported(fmt::format("more than {} special tokens", kAroundMax));
  }
  before.insert(before.begin(), left.begin(), left.end());
  behind.insert(behind.end(), right.begin(), right.end());
  return {};
}

namespace {

// The byte of "<0xHH>".
std::optional<char> FallbackByte(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  const auto high = HexDigit(text[3]);
  const auto low = HexDigit(text[4]);
  if (!high || !low) return std::nullopt;
  return static_cast<char>(*high * 16 + *low);
}

}  // namespace

Result<Decoder> Decoder::Parse(const JsonNode& root) {
  const std::optional<JsonNode> node = root.Find("decoder");
  if (!node) return root.Unsupported("field decoder: missing or null");
  Decoder decoder;
  QUIRE_TRY(decoder.Add(*node, 0));
  return decoder;
}

Result<void> Decoder::Add(const JsonNode& node, int depth) {
  const std::string type = node.Type();
  if (type == "Sequence" && depth < kSequenceDepthMax) {
    QUIRE_ASSIGN(const JsonNode list, node.Get("decoders"));
    QUIRE_ASSIGN(const std::vector<JsonNode> elements, list.Elements());
    for (const JsonNode& one : elements) QUIRE_TRY(Add(one, depth + 1));
    return {};
  }
  if (byte_level_) return node.Unsupported("ByteLevel must be the last step");
  if (type == "Strip") return AddStrip(node);
  if (fused_) return node.Unsupported("only Strip is supported behind Fuse");
  if (type == "Fuse") {
    fused_ = true;
    return {};
  }
  if (byte_fallback_) return node.Unsupported("only Fuse is supported behind ByteFallback");
  if (type == "ByteFallback") {
    byte_fallback_ = true;
    return {};
  }
  if (type == "ByteLevel") {
    byte_level_ = true;
    return {};
  }
  if (type == "Replace") return AddReplace(node);
  return node.Unsupported(fmt::format(
      "type \"{}\"; supported: ByteLevel, Replace, ByteFallback, Fuse, Strip, Sequence", type));
}

Result<void> Decoder::AddReplace(const JsonNode& node) {
  QUIRE_ASSIGN(const JsonNode pattern, node.Get("pattern"));
  if (!pattern.Find("String")) return pattern.Unsupported("only String is supported");
  QUIRE_ASSIGN(std::string text, pattern.Text("String"));
  if (text.empty()) return pattern.Corrupt("String must not be empty");
  QUIRE_ASSIGN(std::string content, node.Text("content"));
  if (content.size() > text.size()) {
    return node.Unsupported("only a content no longer than the pattern is supported");
  }
  replacements_.emplace_back(std::move(text), std::move(content));
  return {};
}

Result<void> Decoder::AddStrip(const JsonNode& node) {
  QUIRE_ASSIGN(std::string content, node.Text("content"));
  QUIRE_ASSIGN(const uint64_t start, node.Count("start", 0));
  QUIRE_ASSIGN(const uint64_t stop, node.Count("stop", 0));
  if (!fused_ || stop != 0 || strip_most_ != 0) {
    return node.Unsupported("only one with stop 0 behind Fuse is supported");
  }
  size_t character = 0;
  if (!content.empty()) NextCharacter(content, character);
  if (content.empty() || character != content.size()) {
    return node.Corrupt("content must be one character");
  }
  strip_ = std::move(content);
  strip_most_ = start;
  return {};
}

std::string Decoder::BytesOf(std::string_view text) const {
  std::string bytes(text);
  for (const auto& [from, to] : replacements_) {
    for (size_t at = 0; (at = bytes.find(from, at)) != std::string::npos; at += to.size()) {
      bytes.replace(at, from.size(), to);
    }
  }
  if (byte_fallback_) {
    if (const std::optional<char> byte = FallbackByte(bytes)) return std::string(1, *byte);
  }
  // A name with other characters stands for itself.
  if (byte_level_) return CharactersToBytes(bytes).value_or(bytes);
  return bytes;
}

std::string_view Decoder::Strip(std::string_view text, uint64_t& stripped) const {
  while (stripped < strip_most_ && !text.empty()) {
    if (!text.starts_with(strip_)) {
      stripped = strip_most_;
      break;
    }
    text.remove_prefix(strip_.size());
    ++stripped;
  }
  return text;
}

}  // namespace quire::model
