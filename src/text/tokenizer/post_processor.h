// The post_processor of tokenizer.json: the special tokens around a text.
#ifndef QUIRE_TEXT_TOKENIZER_POST_PROCESSOR_H_
#define QUIRE_TEXT_TOKENIZER_POST_PROCESSOR_H_

#include <optional>
#include <vector>

#include "quire/error.h"
#include "quire/identity.h"
#include "text/json_node.h"

namespace quire::model {

struct PostProcessor {
  std::vector<TokenId> before{};
  std::vector<TokenId> behind{};

  /// Reads TemplateProcessing (its form for one text), ByteLevel (which moves offsets, not ids) or
  /// a Sequence of them. Absent: none. Errors: kCorrupt; kUnsupported another type, named, a
  /// template that has the text twice or not at all
  static Result<PostProcessor> Parse(const std::optional<JsonNode>& node);

 private:
  Result<void> Add(const JsonNode& node, int depth);
  Result<void> AddTemplate(const JsonNode& node);
};

}  // namespace quire::model

#endif  // QUIRE_TEXT_TOKENIZER_POST_PROCESSOR_H_
