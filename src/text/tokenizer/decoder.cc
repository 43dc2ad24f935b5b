#include "text/tokenizer/decoder.h"

#include <fmt/core.h>

#include "text/tokenizer/vocabulary.h"
#include "text/unicode/unicode.h"

namespace quire::model {
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
