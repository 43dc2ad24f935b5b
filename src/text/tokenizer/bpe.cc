#include "text/tokenizer/stages.h"

#include <absl/container/flat_hash_map.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>
#include <queue>
#include <string>
#include <utility>

#include "text/tokenizer/vocabulary.h"
#include "text/unicode/unicode.h"

namespace quire::model {
namespace {

// Two tokens side by side.
uint64_t PairKey(TokenId left, TokenId right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

struct Merge {
  uint32_t rank;  // of two possible merges the lower rank goes first
  TokenId id;     // of both together
};

}  // namespace

struct Bpe::Tables {
  Vocabulary vocabulary;
  bool byte_level = false;
  bool ignore_merges = false;  // a piece that is a token is that token
  bool fuse_unk = false;       // unknown characters side by side are one unk_token
  std::optional<TokenId> unk{};
  std::array<std::optional<TokenId>, 256> bytes{};  // of a byte level, or of byte_fallback
  absl::flat_hash_map<uint64_t, Merge> merges{};    // by PairKey
};

class Bpe::Builder {
 public:
  Builder(const JsonNode& model, Vocabulary vocabulary, bool byte_level)
      : model_(model),
        tables_(std::make_unique<Tables>(
            Tables{.vocabulary = std::move(vocabulary), .byte_level = byte_level})) {}

  Result<void> Settings() {
    // Older files do not name the type.
    const std::string type = model_.Type();
    if (type != "BPE" && (!type.empty() || !model_.Find("merges"))) {
      return model_.Unsupported(fmt::format("type \"{}\"; supported: BPE", type));
    }
    for (const char* field : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const auto member = model_.Find(field);
      if (member && member->value() != "") return member->Unsupported("only null is supported");
    }
    const auto dropout = model_.Find("dropout");
    if (dropout && dropout->value() != 0.0) return dropout->Unsupported("only null is supported");
    QUIRE_ASSIGN(tables_->ignore_merges, model_.Flag("ignore_merges", false));
    QUIRE_ASSIGN(tables_->fuse_unk, model_.Flag("fuse_unk", false));
    const auto unk = model_.Find("unk_token");
    if (!unk) return {};
    QUIRE_ASSIGN(const std::string text, unk->Text());
    tables_->unk = tables_->vocabulary.Find(text);
    if (!tables_->unk) return unk->Corrupt(fmt::format("\"{}\" has no token", text));
    return {};
  }

  Result<void> Bytes() {
    QUIRE_ASSIGN(const bool fallback, model_.Flag("byte_fallback", false));
    if (!fallback && !tables_->byte_level) return {};
    for (unsigned byte = 0; byte < 256; ++byte) {
      const std::string text = tables_->byte_level
                                   ? std::string(ByteCharacter(static_cast<unsigned char>(byte)))
                                   : fmt::format("<0x{:02X}>", byte);
      tables_->bytes[byte] = tables_->vocabulary.Find(text);
      if (tables_->byte_level && !tables_->bytes[byte]) {
        return model_.Corrupt(fmt::format("byte {} has no token \"{}\" in vocab", byte, text));
      }
    }
    return {};
  }

  Result<void> Merges() {
    QUIRE_ASSIGN(const JsonNode list, model_.Get("merges"));
    if (!list.value().is_array()) return list.Corrupt("must be an array");
    tables_->merges.reserve(list.value().size());
    for (size_t i = 0; i < list.value().size(); ++i) {
      const Json& merge = list.value()[i];
      std::string_view left;
      std::string_view right;
      if (merge.is_string()) {
        const std::string_view text = merge.get_ref<const std::string&>();
        if (text.starts_with("#version")) continue;
        const size_t space = std::min(text.find(' '), text.size());
        left = text.substr(0, space);
        right = text.substr(std::min(space + 1, text.size()));
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        left = merge[0].get_ref<const std::string&>();
        right = merge[1].get_ref<const std::string&>();
      } else {
        return list.At(i).Corrupt(R"(must be "left right" or ["left", "right"])");
      }
      const auto a = tables_->vocabulary.Find(left);
      const auto b = tables_->vocabulary.Find(right);
      const auto both = tables_->vocabulary.Find(std::string(left).append(right));
      if (!a || !b || !both) {
        return list.At(i).Corrupt(
            fmt::format("\"{}\" and \"{}\" or both together have no token", left, right));
      }
      // As in `tokenizers`, the last of equal pairs counts.
      tables_->merges[PairKey(*a, *b)] = {static_cast<uint32_t>(i), *both};
    }
    return {};
  }

  Bpe Take() { return Bpe(std::move(tables_)); }

 private:
  const JsonNode& model_;
  std::unique_ptr<Tables> tables_;
};

// One piece while its tokens merge: a linked list, and a heap of the merges that may be next.
class Bpe::Word {
 public:
  Word(const Tables& tables, size_t bytes) : tables_(tables) { tokens_.reserve(bytes); }

  void Add(TokenId id) {
    const auto place = static_cast<int32_t>(tokens_.size());
    tokens_.push_back({.id = id, .previous = place - 1, .next = place + 1});
  }

  void MergeAll() {
    if (tokens_.empty()) return;
    tokens_.back().next = kNone;
    for (int32_t place = 0; At(place).next != kNone; ++place) Propose(place);
    while (!heap_.empty()) {
      const Candidate best = heap_.top();
      heap_.pop();
      Token& left = At(best.place);
      // One of its tokens may have gone into another merge meanwhile.
      if (left.id != best.left || left.next == kNone || At(left.next).id != best.right) continue;
      Token& right = At(left.next);
      left.id = best.merged;
      left.next = right.next;
      right.id = kGone;
      if (left.next != kNone) {
        At(left.next).previous = best.place;
        Propose(best.place);
      }
      if (left.previous != kNone) Propose(left.previous);
    }
  }

  void Append(std::vector<TokenId>& ids) const {
    for (const Token& token : tokens_) {
      if (token.id != kGone) ids.push_back(token.id);
    }
  }

 private:
  static constexpr int32_t kNone = -1;
  static constexpr TokenId kGone = -1;

  struct Token {
    TokenId id;
    int32_t previous;  // kNone: the first
    int32_t next;      // kNone: the last
  };
  struct Candidate {
    uint32_t rank;
    int32_t place;  // of the left token
    TokenId left;
    TokenId right;
    TokenId merged;

    // std::priority_queue takes the largest first.
    bool operator<(const Candidate& other) const {
      return std::pair(rank, place) > std::pair(other.rank, other.place);
    }
  };

  Token& At(int32_t place) { return tokens_[static_cast<size_t>(place)]; }

  void Propose(int32_t place) {
    const TokenId left = At(place).id;
    const TokenId right = At(At(place).next).id;
    const auto merge = tables_.merges.find(PairKey(left, right));
    if (merge == tables_.merges.end()) return;
    heap_.push({.rank = merge->second.rank,
                .place = place,
                .left = left,
                .right = right,
                .merged = merge->second.id});
  }

  const Tables& tables_;
  std::vector<Token> tokens_;
  std::priority_queue<Candidate> heap_;
};

Bpe::Bpe(std::unique_ptr<const Tables> tables) : tables_(std::move(tables)) {}
Bpe::Bpe(Bpe&& other) noexcept = default;
Bpe& Bpe::operator=(Bpe&& other) noexcept = default;
Bpe::~Bpe() = default;

Result<Bpe> Bpe::Parse(const JsonNode& model, Vocabulary vocabulary, bool byte_level) {
  Builder builder(model, std::move(vocabulary), byte_level);
  QUIRE_TRY(builder.Settings());
  QUIRE_TRY(builder.Bytes());
  QUIRE_TRY(builder.Merges());
  return builder.Take();
}

void Bpe::Encode(std::string_view piece, std::vector<TokenId>& ids) const {
  const Tables& tables = *tables_;
  if (tables.ignore_merges) {
    const auto whole =
        tables.vocabulary.Find(tables.byte_level ? BytesToCharacters(piece) : std::string(piece));
    if (whole) {
      ids.push_back(*whole);
      return;
    }
  }
  Word word(tables, piece.size());
  bool fusing = false;  // the last token is an unk_token that takes in the next unknown character
  for (size_t at = 0; at < piece.size();) {
    if (tables.byte_level) {
      word.Add(*tables.bytes[static_cast<unsigned char>(piece[at++])]);
      continue;
    }
    const size_t begin = at;
    NextCharacter(piece, at);
    const std::string_view character = piece.substr(begin, at - begin);
    const auto byte_token = [&](char byte) -> const std::optional<TokenId>& {
      return tables.bytes[static_cast<unsigned char>(byte)];
    };
    if (const auto id = tables.vocabulary.Find(character)) {
      word.Add(*id);
      fusing = false;
    } else if (std::ranges::all_of(character,
                                   [&](char byte) { return byte_token(byte).has_value(); })) {
      for (const char byte : character) word.Add(*byte_token(byte));
      fusing = false;
    } else if (tables.unk && !fusing) {
      word.Add(*tables.unk);
      fusing = tables.fuse_unk;
    }
  }
  word.MergeAll();
  word.Append(ids);
}

}  // namespace quire::model
