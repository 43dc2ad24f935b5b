#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace quire::model {
namespace {

// The character of a byte in a byte-level vocabulary, by the rule as GPT-2 states it.
std::string Character(unsigned byte) {
  unsigned code = byte;
  const auto kept = [](unsigned b) {
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
  };
  if (!kept(byte)) {
    code = 256;
    for (unsigned b = 0; b < byte; ++b) code += kept(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
}

// What `tokenizers` writes for a vocabulary of bytes in reversed order and two special tokens.
Json Minimal() {
  Json vocab = Json::object();
  for (unsigned byte = 0; byte < 256; ++byte) vocab[Character(byte)] = 255 - byte;
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  const auto added = [](int id, const char* name, bool special) {
    return Json{{"id", id},        {"content", name},     {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", special}};
  };
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", {added(256, "<bos>", true), added(300, "<b", false)}},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"vocab", vocab},
            {"merges", Json::array()}}}};
}

Tokenizer Parsed(const Json& json) {
  Result<Tokenizer> tokenizer = Tokenizer::Parse(json.dump(), "tokenizer.json");
  EXPECT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  return *std::move(tokenizer);
}

void ExpectError(const Json& json, ErrorCode code, std::string_view field) {
  const Result<Tokenizer> tokenizer = Tokenizer::Parse(json.dump(), "dir/tokenizer.json");
  ASSERT_FALSE(tokenizer.has_value()) << field;
  EXPECT_EQ(tokenizer.error().code, code) << tokenizer.error().message;
  EXPECT_TRUE(tokenizer.error().message.contains("dir/tokenizer.json"));
  EXPECT_TRUE(tokenizer.error().message.contains(field)) << tokenizer.error().message;
}

std::vector<TokenId> Encoded(const Tokenizer& tokenizer, std::string_view text,
                             const EncodeOptions& options = {}) {
  const auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.has_value()) << ids.error().message;
  return *ids;
}

TEST(TokenizerTest, BytesAndAddedTokens) {
  const Tokenizer tokenizer = Parsed(Minimal());
  EXPECT_EQ(Encoded(tokenizer, "a"), (std::vector<TokenId>{255 - 'a'}));
  EXPECT_EQ(Encoded(tokenizer, "<bos><b<bo"), (std::vector<TokenId>{256, 300, 300, 255 - 'o'}));
  EXPECT_EQ(tokenizer.Decode(std::vector<TokenId>{256, 255 - 'h', 255 - 'i', 300}), "hi<b");
  EXPECT_EQ(tokenizer.Decode(std::vector<TokenId>{-1, 299, 301, 1 << 30}), "");
  EXPECT_EQ(tokenizer.id_end(), 301u);
}

// Bytes that are not text count as the text that they print as.
RC_GTEST_PROP(TokenizerProperty, TextComesBack, (const std::string& bytes)) {
  static const Tokenizer tokenizer = Parsed(Minimal());
  RC_ASSERT(tokenizer.Decode(Encoded(tokenizer, bytes)) == ToUtf8(bytes));
}

TEST(TokenizerTest, ATextHasAsManyTokensAsItMayOrIsTooLarge) {
  const Tokenizer tokenizer = Parsed(Minimal());
  for (const std::string& text : {std::string("one two three"), std::string(100, 'a'),
                                  std::string("<bos>a<b b<bos>"), std::string("<bos><bos>")}) {
    const auto all = Encoded(tokenizer, text);
    EXPECT_EQ(Encoded(tokenizer, text, {.tokens_max = all.size()}), all);
    const auto refused = tokenizer.Encode(text, {.tokens_max = all.size() - 1});
    ASSERT_FALSE(refused.has_value()) << text;
    EXPECT_EQ(refused.error().code, ErrorCode::kTooLarge);
  }
}

TEST(TokenizerTest, InvalidUtf8IsReplaced) {
  const Tokenizer tokenizer = Parsed(Minimal());
  EXPECT_EQ(Encoded(tokenizer, "a\xff<bos>"), Encoded(tokenizer, "a\xef\xbf\xbd<bos>"));
}

TEST(TokenizerTest, StreamGivesWholeCharacters) {
  const Tokenizer tokenizer = Parsed(Minimal());
  TextStream stream(tokenizer);
  const std::vector<TokenId> tokens = Encoded(tokenizer, "\xe2\x82\xacx\xf0\x9f\x98\x80");
  std::vector<std::string> parts;
  for (const TokenId token : tokens) parts.push_back(stream.Add(token));
  EXPECT_EQ(parts, (std::vector<std::string>{"", "", "\xe2\x82\xac", "x", "", "", "",
                                             "\xf0\x9f\x98\x80"}));
  EXPECT_EQ(stream.Add(tokens[0]), "");
  EXPECT_EQ(stream.Finish(), "\xef\xbf\xbd");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(Utf8StreamTest, DamageBecomesReplacements) {
  const std::string r = "\xef\xbf\xbd";
  const auto all = [](std::string_view bytes) {
    Utf8Stream stream;
    std::string text;
    for (const char c : bytes) text += stream.Add(std::string_view(&c, 1));
    return text + stream.Finish();
  };
  EXPECT_EQ(all("\x80"), r);
  EXPECT_EQ(all("\xc0\xaf"), r + r);                  // overlong
  EXPECT_EQ(all("\xed\xa0\x80"), r + r + r);          // surrogate
  EXPECT_EQ(all("\xf4\x90\x80\x80"), r + r + r + r);  // above U+10FFFF
  EXPECT_EQ(all("\xe2\x82z"), r + "z");               // cut
  EXPECT_EQ(all("\xe2\xe2\x82\xac"), r + "\xe2\x82\xac");
  EXPECT_EQ(all("\xf1\x80\x80\xe1\x80\xc2z"), r + r + r + "z");  // example of the standard
  EXPECT_EQ(all("\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf"),
            "\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf");
}

Json WithMerges() {
  Json json = Minimal();
  Json& model = json["model"];
  for (const auto& [text, id] : {std::pair("ab", 400),
                                 {"bc", 401},
                                 {"abc", 402},
                                 {"aa", 403},
                                 {"aaa", 404},
                                 {"aaaa", 405},
                                 {"abcabc", 406}}) {
    model["vocab"][text] = id;
  }
  model["merges"] = {"b c", Json::array({"a", "bc"}), "a b", "a a", "aa aa", "aa a"};
  return json;
}

TEST(TokenizerTest, LowerRanksMergeFirstThenTheLeftmost) {
  const Tokenizer tokenizer = Parsed(WithMerges());
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(Encoded(tokenizer, "abc"), Ids{402});
  EXPECT_EQ(Encoded(tokenizer, "abb"), (Ids{400, 255 - 'b'}));
  EXPECT_EQ(Encoded(tokenizer, "aaa"), Ids{404});
  EXPECT_EQ(Encoded(tokenizer, "aaaaaaa"), (Ids{405, 404}));
  EXPECT_EQ(Encoded(tokenizer, "abcabc"), (Ids{402, 402}));  // a token, but no merge makes it
  EXPECT_EQ(Encoded(tokenizer, "abc<bos>a"), (Ids{402, 256, 255 - 'a'}));
  EXPECT_EQ(tokenizer.Decode(Ids{402, 401}), "abcbc");
}

TEST(TokenizerTest, IgnoreMergesTakesWholePieces) {
  Json json = WithMerges();
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(Encoded(Parsed(json), "abcabc"), std::vector<TokenId>{406});
}

// The rule, step by step over the whole word.
std::vector<std::string> MergedSlowly(
    std::vector<std::string> word, const std::vector<std::pair<std::string, std::string>>& merges) {
  while (true) {
    size_t best = merges.size();
    size_t place = 0;
    for (size_t i = 0; i + 1 < word.size(); ++i) {
      const auto merge = std::ranges::find(merges, std::pair(word[i], word[i + 1]));
      const auto rank = static_cast<size_t>(merge - merges.begin());
      if (rank < best) {
        best = rank;
        place = i;
      }
    }
    if (best == merges.size()) return word;
    word[place] += word[place + 1];
    word.erase(word.begin() + static_cast<int64_t>(place) + 1);
  }
}

RC_GTEST_PROP(TokenizerProperty, MergesAsTheRuleSays, ()) {
  const std::vector<std::pair<std::string, std::string>> all = {
      {"a", "b"},   {"b", "c"}, {"a", "bc"},  {"ab", "c"}, {"a", "a"},     {"aa", "a"},
      {"aa", "aa"}, {"c", "a"}, {"abc", "a"}, {"ca", "b"}, {"abc", "abc"}, {"b", "b"}};
  std::vector<std::pair<std::string, std::string>> merges;
  for (const size_t i : *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(0, 12))) {
    if (std::ranges::find(merges, all[i]) == merges.end()) merges.push_back(all[i]);
  }
  Json json = Minimal();
  int next = 400;
  Json& vocab = json["model"]["vocab"];
  for (const auto& [left, right] : all) {
    for (const std::string& text : {left, right, left + right}) {
      if (!vocab.contains(text)) vocab[text] = next++;
    }
  }
  json["model"]["merges"] = merges;
  const auto text = *rc::gen::container<std::string>(rc::gen::elementOf(std::string("aaabbc")));
  std::vector<std::string> word;
  for (const char c : text) word.emplace_back(1, c);
  std::vector<TokenId> wanted;
  for (const std::string& token : MergedSlowly(word, merges)) wanted.push_back(vocab[token]);
  RC_ASSERT(Encoded(Parsed(json), text) == wanted);
}

TEST(TokenizerTest, LongWordsTakeNoSquareOfTheirLength) {
  const Tokenizer tokenizer = Parsed(WithMerges());
  EXPECT_EQ(Encoded(tokenizer, std::string(1'000'000, 'a')), std::vector<TokenId>(250'000, 405));
}

// As Llama 2 has it.
Json Sentencepiece() {
  Json vocab = {{"<unk>", 0}, {"<s>", 1}, {"\u2581", 300}, {"a", 301}, {"\u2581a", 302}};
  for (int byte = 0; byte < 256; ++byte) {
    constexpr const char* kHex = "0123456789ABCDEF";
    vocab[std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">"] = byte + 3;
  }
  Json json = Minimal();
  json["added_tokens"] = {{{"id", 1}, {"content", "<s>"}, {"special", true}}};
  json["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "Prepend"}, {"prepend", "\u2581"}},
        {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}};
  json["pre_tokenizer"] = nullptr;
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}}}}};
  json["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                       {{"type", "ByteFallback"}},
                       {{"type", "Fuse"}},
                       {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  json["model"] = {{"type", "BPE"},         {"unk_token", "<unk>"}, {"fuse_unk", true},
                   {"byte_fallback", true}, {"vocab", vocab},       {"merges", {"\u2581 a"}}};
  return json;
}

TEST(TokenizerTest, CharactersWithBytesToFallBackOn) {
  const Tokenizer tokenizer = Parsed(Sentencepiece());
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(Encoded(tokenizer, "a a"), (Ids{1, 302, 302}));
  EXPECT_EQ(Encoded(tokenizer, "a\u00e9", {.add_special = false}), (Ids{302, 0xc3 + 3, 0xa9 + 3}));
  EXPECT_EQ(tokenizer.Decode(Ids{1, 302, 302, 0xc3 + 3, 0xa9 + 3}), "a a\u00e9");
  EXPECT_EQ(tokenizer.Decode(Ids{1, 302}, {.skip_special = false}), "<s> a");
  EXPECT_EQ(tokenizer.Decode(Ids{300, 302}), " a");  // one space goes, not two
  TextStream stream(tokenizer);
  EXPECT_EQ(stream.Add(1), "");
  EXPECT_EQ(stream.Add(300), "");
  EXPECT_EQ(stream.Add(300), " ");
  EXPECT_EQ(stream.Add(0xc3 + 3), "");
  EXPECT_EQ(stream.Add(0xa9 + 3), "\u00e9");
}

TEST(TokenizerTest, UnknownCharactersAreFusedOrDropped) {
  Json json = Sentencepiece();
  json["model"]["byte_fallback"] = false;
  EXPECT_EQ(Encoded(Parsed(json), "xya"), (std::vector<TokenId>{1, 300, 0, 301}));
  json["model"]["fuse_unk"] = false;
  EXPECT_EQ(Encoded(Parsed(json), "xya"), (std::vector<TokenId>{1, 300, 0, 0, 301}));
  json["model"]["unk_token"] = nullptr;
  EXPECT_EQ(Encoded(Parsed(json), "xya"), (std::vector<TokenId>{1, 302}));
}

TEST(TokenizerTest, AddedTokensTakeSpaceAndStandAlone) {
  Json json = Minimal();
  const auto added = [](int id, const char* name, const char* flag) {
    Json token = {{"id", id}, {"content", name}, {"normalized", false}, {"special", false}};
    token[flag] = true;
    return token;
  };
  json["added_tokens"] = {added(500, "<l>", "lstrip"), added(501, "<r>", "rstrip"),
                          added(502, "word", "single_word"), added(503, "e\u0301", "normalized")};
  json["normalizer"] = {{"type", "NFC"}};
  const Tokenizer tokenizer = Parsed(json);
  using Ids = std::vector<TokenId>;
  const TokenId space = 255 - ' ';
  EXPECT_EQ(Encoded(tokenizer, " \u3000<l> "), (Ids{500, space}));
  EXPECT_EQ(Encoded(tokenizer, " <r> \n<l>"), (Ids{space, 501, 500}));
  EXPECT_EQ(Encoded(tokenizer, "word word!"), (Ids{502, space, 502, 255 - '!'}));
  EXPECT_EQ(Encoded(tokenizer, "words").size(), 5u);
  EXPECT_EQ(Encoded(tokenizer, "_word").size(), 5u);
  EXPECT_EQ(Encoded(tokenizer, "\u00e9e\u0301"), (Ids{503, 503}));
}

TEST(TokenizerTest, CostlyPatternsEndInAnError) {
  Json json = Minimal();
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "(?:a|a)+b"}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  const Tokenizer tokenizer = Parsed(json);
  const auto ids = tokenizer.Encode(std::string(100, 'a'));
  ASSERT_FALSE(ids.has_value());
  EXPECT_EQ(ids.error().code, ErrorCode::kNoSpace);
  EXPECT_TRUE(ids.error().message.contains("pretokenizers[0].pattern.Regex"));
}

TEST(TokenizerTest, OtherKindsAreRefusedByField) {
  const auto refused = [](const char* pointer, const Json& value, std::string_view field) {
    Json json = Minimal();
    json[Json::json_pointer(pointer)] = value;
    ExpectError(json, ErrorCode::kUnsupported, field);
  };
  refused("/model/type", "Unigram", "model: type \"Unigram\"");
  refused("/model/dropout", 0.1, "model.dropout");
  refused("/model/continuing_subword_prefix", "##", "model.continuing_subword_prefix");
  refused("/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix");
  refused("/truncation", {{"max_length", 5}}, "truncation");
  refused("/normalizer", {{"type", "Lowercase"}}, "normalizer: type \"Lowercase\"");
  refused("/pre_tokenizer", {{"type", "BertPreTokenizer"}}, "pre_tokenizer");
  refused("/post_processor", {{"type", "BertProcessing"}}, "post_processor");
  refused("/decoder", {{"type", "WordPiece"}}, "decoder");
  refused("/decoder", nullptr, "decoder");
  const auto sequence = [](const Json& list) {
    return Json{{"type", "Sequence"}, {"decoders", list}};
  };
  const Json strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  refused("/decoder", sequence(Json::array({strip})), "decoder.decoders[0]");
  refused("/decoder", sequence({{{"type", "ByteLevel"}}, {{"type", "Fuse"}}}), "decoders[1]");
  refused("/decoder", sequence({{{"type", "Fuse"}}, {{"type", "Fuse"}}}), "decoders[1]");
  const Json longer = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "bb"}};
  refused("/decoder", sequence(Json::array({longer})), "decoders[0]");
  const Json text = {{"Sequence", {{"id", "A"}}}};
  const Json post = {{"type", "TemplateProcessing"}, {"special_tokens", Json::object()}};
  Json twice = post;
  twice["single"] = {text, text};
  refused("/post_processor", twice, "single[1]");
  Json none = post;
  none["single"] = Json::array();
  refused("/post_processor", none, "post_processor.single");
  refused("/added_tokens/0/content", std::string(5000, 'x'), "added_tokens[0]");
}

TEST(TokenizerTest, DamageIsNamedByField) {
  ExpectError(Json::array(), ErrorCode::kCorrupt, "model");
  ExpectError({{"model", 3}}, ErrorCode::kCorrupt, "model");
  Json json = Minimal();
  json["model"].erase("vocab");
  ExpectError(json, ErrorCode::kCorrupt, "model.vocab");
  json = Minimal();
  json["model"]["vocab"].erase("a");
  ExpectError(json, ErrorCode::kCorrupt, "byte 97");
  json = Minimal();
  json["model"]["vocab"]["a"] = 255 - 'b';
  ExpectError(json, ErrorCode::kCorrupt, "id 157 is");
  json = Minimal();
  json["model"]["vocab"]["a"] = 4'000'000'000u;
  ExpectError(json, ErrorCode::kCorrupt, "model.vocab.");
  json = Minimal();
  json["model"]["vocab"]["a"] = -1;
  ExpectError(json, ErrorCode::kCorrupt, "model.vocab.");
  json = Minimal();
  json["added_tokens"][0]["id"] = 7;
  ExpectError(json, ErrorCode::kCorrupt, "added_tokens[0]");
  json = Minimal();
  json["added_tokens"][1]["content"] = "<bos>";
  ExpectError(json, ErrorCode::kCorrupt, "content \"<bos>\" appears twice");
  json = WithMerges();
  json["model"]["merges"][2] = "a x y";
  ExpectError(json, ErrorCode::kCorrupt, "model.merges[2]");
  json["model"]["merges"][2] = {"a"};
  ExpectError(json, ErrorCode::kCorrupt, "model.merges[2]");
  json["model"]["merges"][2] = "ab";
  ExpectError(json, ErrorCode::kCorrupt, "model.merges[2]");
  json["model"].erase("merges");
  ExpectError(json, ErrorCode::kCorrupt, "model.merges");
  json = Sentencepiece();
  json["model"]["unk_token"] = "<none>";
  ExpectError(json, ErrorCode::kCorrupt, "model.unk_token");
  json["added_tokens"][0]["id"] = 2;
  ExpectError(json, ErrorCode::kCorrupt, "added_tokens[0]");
  json = Sentencepiece();
  json["post_processor"]["special_tokens"] = Json::object();
  ExpectError(json, ErrorCode::kCorrupt, "special_tokens.<s>");
  json["post_processor"].erase("special_tokens");
  ExpectError(json, ErrorCode::kCorrupt, "special_tokens");
  json = Minimal();
  json["added_tokens"][0].erase("content");
  ExpectError(json, ErrorCode::kCorrupt, "added_tokens[0]");
  json = Minimal();
  json["added_tokens"][0]["content"] = "";
  ExpectError(json, ErrorCode::kCorrupt, "added_tokens[0]");
  EXPECT_FALSE(Tokenizer::Parse("{\"model\": ", "t").has_value());
}

}  // namespace
}  // namespace quire::model
