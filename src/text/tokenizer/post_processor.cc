#include "text/tokenizer/post_processor.h"

#include <fmt/core.h>

namespace quire::model {
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

}  // namespace quire::model
