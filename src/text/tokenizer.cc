#include "text/tokenizer.h"

#include <absl/container/flat_hash_map.h>
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "env/file.h"
#include "text/json_node.h"
#include "text/tokenizer/stages.h"
#include "text/tokenizer/vocabulary.h"

namespace quire::model {
namespace {

constexpr uint64_t kTokenizerBytesMax = 1 << 26;

// What a token gives when it is decoded.
struct Decoded {
  std::string bytes;
  bool special = false;
};

}  // namespace

struct Tokenizer::Impl {
  AddedTokenFinder raw_added;         // looked for in the text as it comes
  AddedTokenFinder normalized_added;  // and in what the normalizer makes of it
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  PostProcessor post_processor;
  Decoder decoder;
  absl::flat_hash_map<TokenId, Decoded> decoded;
  uint32_t id_end = 0;

  Result<void> EncodeStretch(std::string_view text, bool at_start, uint64_t tokens_max,
                             RegexBudget& budget, std::vector<TokenId>& ids) const;
};

namespace {

Result<void> RefuseUnsupported(const JsonNode& root) {
  for (const char* field : {"truncation", "padding"}) {
    if (const auto node = root.Find(field)) return node->Unsupported("only null is supported");
  }
  return {};
}

// Tokens that are looked for in normalized text, as they look there.
Result<AddedTokenFinder> NormalizedFinder(std::vector<AddedToken> tokens,
                                          const Normalizer& normalizer) {
  std::erase_if(tokens, [](const AddedToken& token) { return !token.normalized; });
  RegexBudget budget(0);
  for (AddedToken& token : tokens) {
    QUIRE_ASSIGN(token.content, normalizer.Normalize(token.content, budget));
  }
  std::erase_if(tokens, [](const AddedToken& token) { return token.content.empty(); });
  return AddedTokenFinder(std::move(tokens));
}

AddedTokenFinder RawFinder(std::vector<AddedToken> tokens) {
  std::erase_if(tokens, [](const AddedToken& token) { return token.normalized; });
  return AddedTokenFinder(std::move(tokens));
}

absl::flat_hash_map<TokenId, Decoded> DecodeAll(const Vocabulary& vocabulary,
                                                const std::vector<AddedToken>& added,
                                                const Decoder& decoder) {
  absl::flat_hash_map<TokenId, Decoded> decoded;
  vocabulary.ForEach(
      [&](TokenId id, std::string_view text) { decoded[id] = {.bytes = decoder.BytesOf(text)}; });
  for (const AddedToken& token : added) {
    decoded[token.id] = {.bytes = decoder.BytesOf(token.content), .special = token.special};
  }
  return decoded;
}

Result<void> CheckCount(const std::vector<TokenId>& ids, uint64_t tokens_max) {
  if (ids.size() <= tokens_max) return {};
  return Fail(ErrorCode::kTooLarge, fmt::format("the text has more than {} tokens", tokens_max));
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&& other) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&& other) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::Load(const std::string& path) {
  QUIRE_ASSIGN(const std::string text, ReadFile(path, kTokenizerBytesMax));
  return Parse(text, path);
}

Result<Tokenizer> Tokenizer::Parse(std::string_view json, std::string_view file_name) {
  QUIRE_ASSIGN(const Json value, ParseJson(json, file_name));
  const JsonNode root(value, file_name);
  QUIRE_ASSIGN(const JsonNode model, root.Get("model"));
  if (!model.is_object()) return model.Corrupt("must be an object");
  QUIRE_TRY(RefuseUnsupported(root));
  QUIRE_ASSIGN(Normalizer normalizer, Normalizer::Parse(root.Find("normalizer")));
  QUIRE_ASSIGN(PreTokenizer pre_tokenizer, PreTokenizer::Parse(root.Find("pre_tokenizer")));
  QUIRE_ASSIGN(PostProcessor post_processor, PostProcessor::Parse(root.Find("post_processor")));
  QUIRE_ASSIGN(Decoder decoder, Decoder::Parse(root));
  QUIRE_ASSIGN(const JsonNode vocab, model.Get("vocab"));
  QUIRE_ASSIGN(Vocabulary vocabulary, Vocabulary::Parse(vocab));
  QUIRE_ASSIGN(const auto added, ParseAddedTokens(root.Find("added_tokens"), vocabulary));
  QUIRE_ASSIGN(AddedTokenFinder normalized_added, NormalizedFinder(added, normalizer));
  auto decoded = DecodeAll(vocabulary, added, decoder);
  QUIRE_ASSIGN(Bpe bpe, Bpe::Parse(model, std::move(vocabulary), pre_tokenizer.byte_level()));

  auto impl = std::make_unique<Impl>(Impl{.raw_added = RawFinder(added),
                                          .normalized_added = std::move(normalized_added),
                                          .normalizer = std::move(normalizer),
                                          .pre_tokenizer = std::move(pre_tokenizer),
                                          .bpe = std::move(bpe),
                                          .post_processor = std::move(post_processor),
                                          .decoder = std::move(decoder),
                                          .decoded = std::move(decoded)});
  for (const auto& [id, text] : impl->decoded) {
    impl->id_end = std::max(impl->id_end, static_cast<uint32_t>(id) + 1);
  }
  return Tokenizer(std::move(impl));
}

// A stretch between added tokens of the text.
Result<void> Tokenizer::Impl::EncodeStretch(std::string_view text, bool at_start,
                                            uint64_t tokens_max, RegexBudget& budget,
                                            std::vector<TokenId>& ids) const {
  QUIRE_ASSIGN(const std::string normalized, normalizer.Normalize(std::string(text), budget));
  bool first = at_start;
  for (const auto& [node, token] : normalized_added.Split(normalized)) {
    if (token) {
      ids.push_back(*token);
    } else {
      QUIRE_ASSIGN(const auto pieces, pre_tokenizer.Cut(std::string(node), first, budget));
      for (const std::string& piece : pieces) {
        bpe.Encode(piece, ids);
        QUIRE_TRY(CheckCount(ids, tokens_max));
      }
    }
    first = false;
  }
  return {};
}

Result<std::vector<TokenId>> Tokenizer::Encode(std::string_view text,
                                               const EncodeOptions& options) const {
  const std::string valid = ToUtf8(text);
  std::vector<TokenId> ids;
  ids.reserve(valid.size() / 2);
  const PostProcessor& around = impl_->post_processor;
  if (options.add_special) ids = around.before;
  RegexBudget budget(valid.size());
  bool first = true;
  for (const auto& [stretch, token] : impl_->raw_added.Split(valid)) {
    if (token) {
      ids.push_back(*token);
    } else {
      QUIRE_TRY(impl_->EncodeStretch(stretch, first, options.tokens_max, budget, ids));
    }
    first = false;
  }
  if (options.add_special) ids.insert(ids.end(), around.behind.begin(), around.behind.end());
  QUIRE_TRY(CheckCount(ids, options.tokens_max));
  return ids;
}

std::string Tokenizer::Decode(std::span<const TokenId> tokens, const DecodeOptions& options) const {
  TextStream stream(*this, options);
  std::string text;
  for (const TokenId token : tokens) text += stream.Add(token);
  return text + stream.Finish();
}

std::string Tokenizer::BytesOf(TokenId token) const {
  const auto decoded = impl_->decoded.find(token);
  return decoded == impl_->decoded.end() ? std::string() : decoded->second.bytes;
}

uint32_t Tokenizer::id_end() const { return impl_->id_end; }

std::string TextStream::Add(TokenId token) {
  const Tokenizer::Impl& impl = *tokenizer_.impl_;
  const auto decoded = impl.decoded.find(token);
  if (decoded == impl.decoded.end()) return {};
  if (decoded->second.special && options_.skip_special) return {};
  return std::string(impl.decoder.Strip(utf8_.Add(decoded->second.bytes), stripped_));
}

std::string TextStream::Finish() {
  return std::string(tokenizer_.impl_->decoder.Strip(utf8_.Finish(), stripped_));
}

}  // namespace quire::model
