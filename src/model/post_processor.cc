#include "model/post_processor.h"

#include <fmt/core.h>

namespace quire::model {
namespace {

constexpr size_t kAroundMax = 1024;

}  // namespace

Result<PostProcessor> PostProcessor::Parse(const std::optional<JsonPart>& part) {
  PostProcessor processor;
  if (part) QUIRE_TRY(processor.Add(*part, 0));
  return processor;
}

Result<void> PostProcessor::Add(const JsonPart& part, int depth) {
  const std::string type = part.Type();
  if (type == "Sequence" && depth < kSequenceDepthMax) {
    QUIRE_ASSIGN(const JsonPart list, part.Get("processors"));
    QUIRE_ASSIGN(const std::vector<JsonPart> parts, list.Elements());
    for (const JsonPart& one : parts) QUIRE_TRY(Add(one, depth + 1));
    return {};
  }
  if (type == "ByteLevel") return {};
  if (type == "TemplateProcessing") return AddTemplate(part);
  return part.Unsupported(
      fmt::format("type \"{}\"; supported: TemplateProcessing, ByteLevel, Sequence", type));
}

Result<void> PostProcessor::AddTemplate(const JsonPart& part) {
  QUIRE_ASSIGN(const JsonPart single, part.Get("single"));
  QUIRE_ASSIGN(const std::vector<JsonPart> pieces, single.Elements());
  std::vector<TokenId> left;
  std::vector<TokenId> right;
  bool seen = false;  // the text
  for (const JsonPart& piece : pieces) {
    if (piece.Find("Sequence")) {
      if (seen) return piece.Unsupported("the text twice");
      seen = true;
      continue;
    }
    QUIRE_ASSIGN(const JsonPart special, piece.Get("SpecialToken"));
    QUIRE_ASSIGN(const std::string name, special.Text("id"));
    QUIRE_ASSIGN(const JsonPart tokens, part.Get("special_tokens"));
    QUIRE_ASSIGN(const JsonPart token, tokens.Get(name));
    QUIRE_ASSIGN(const JsonPart list, token.Get("ids"));
    QUIRE_ASSIGN(const std::vector<JsonPart> ids, list.Elements());
    for (const JsonPart& element : ids) {
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
