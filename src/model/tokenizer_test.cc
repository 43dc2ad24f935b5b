#include "model/tokenizer.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <string>

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

TEST(TokenizerTest, BytesAndAddedTokens) {
  const Tokenizer tokenizer = Parsed(Minimal());
  EXPECT_EQ(tokenizer.Encode("a"), (std::vector<TokenId>{255 - 'a'}));
  EXPECT_EQ(tokenizer.Encode("<bos><b<bo"), (std::vector<TokenId>{256, 300, 300, 255 - 'o'}));
  EXPECT_EQ(tokenizer.Decode(std::vector<TokenId>{256, 255 - 'h', 255 - 'i', 300}), "hi<b");
  EXPECT_EQ(tokenizer.Decode(std::vector<TokenId>{-1, 299, 301, 1 << 30}), "");
  EXPECT_EQ(tokenizer.id_end(), 301u);
}

RC_GTEST_PROP(TokenizerProperty, TextComesBack, (const std::string& text)) {
  static const Tokenizer tokenizer = Parsed(Minimal());
  RC_ASSERT(tokenizer.Decode(tokenizer.Encode(text)) == text);
}

TEST(TokenizerTest, StreamGivesWholeCharacters) {
  const Tokenizer tokenizer = Parsed(Minimal());
  TextStream stream(tokenizer);
  const std::vector<TokenId> tokens = tokenizer.Encode("\xe2\x82\xacx\xf0\x9f\x98\x80\xc3");
  std::vector<std::string> parts;
  for (const TokenId token : tokens) parts.push_back(stream.Add(token));
  EXPECT_EQ(parts, (std::vector<std::string>{"", "", "\xe2\x82\xac", "x", "", "", "",
                                             "\xf0\x9f\x98\x80", ""}));
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

TEST(TokenizerTest, OtherKindsAreRefusedByField) {
  Json json = Minimal();
  json["model"]["merges"] = {"a b"};
  ExpectError(json, ErrorCode::kUnsupported, "model.merges");
  json = Minimal();
  json["model"]["type"] = "Unigram";
  ExpectError(json, ErrorCode::kUnsupported, "model.type");
  json = Minimal();
  json["model"]["vocab"]["ab"] = 400;
  ExpectError(json, ErrorCode::kUnsupported, "model.vocab");
  json = Minimal();
  json["model"]["dropout"] = 0.1;
  ExpectError(json, ErrorCode::kUnsupported, "model.dropout");
  json = Minimal();
  json["normalizer"] = {{"type", "NFC"}};
  ExpectError(json, ErrorCode::kUnsupported, "normalizer");
  json = Minimal();
  json["pre_tokenizer"] = {{"type", "Sequence"}};
  ExpectError(json, ErrorCode::kUnsupported, "pre_tokenizer");
  json = Minimal();
  json["pre_tokenizer"]["add_prefix_space"] = true;
  ExpectError(json, ErrorCode::kUnsupported, "pre_tokenizer.add_prefix_space");
  json = Minimal();
  json["post_processor"] = {{"type", "TemplateProcessing"}};
  ExpectError(json, ErrorCode::kUnsupported, "post_processor");
  json = Minimal();
  json["added_tokens"][1]["lstrip"] = true;
  ExpectError(json, ErrorCode::kUnsupported, "added_tokens[1].lstrip");
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
  ExpectError(json, ErrorCode::kCorrupt, "appears twice");
  json = Minimal();
  json["model"]["vocab"]["a"] = 4'000'000'000u;
  ExpectError(json, ErrorCode::kCorrupt, "model.vocab[\"a\"]");
  json = Minimal();
  json["model"]["vocab"]["a"] = -1;
  ExpectError(json, ErrorCode::kCorrupt, "model.vocab[\"a\"]");
  json = Minimal();
  json["added_tokens"][0]["id"] = 7;
  ExpectError(json, ErrorCode::kCorrupt, "added_tokens[0]");
  json = Minimal();
  json["added_tokens"][1]["content"] = "<bos>";
  ExpectError(json, ErrorCode::kCorrupt, "content \"<bos>\" appears twice");
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
