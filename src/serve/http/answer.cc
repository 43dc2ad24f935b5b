#include "serve/http/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace quire::serve::http {

namespace {

// Of UTF-8: bytes that go on with a character begin with the bits 10.
uint64_t CharactersIn(std::string_view text) {
  return static_cast<uint64_t>(
      std::ranges::count_if(text, [](char byte) { return (byte & 0xc0) != 0x80; }));
}

}  // namespace

std::string StopMatcher::Add(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    stopped_ = true;
    std::string before = held_.substr(0, first);
    held_.clear();
    return before;
  }
  size_t kept = 0;  // bytes at the end that a stop string may begin with
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > kept; --n) {
      if (held_.ends_with(std::string_view(stop).substr(0, n))) kept = n;
    }
  }
  std::string sure = held_.substr(0, held_.size() - kept);
  held_.erase(0, sure.size());
  return sure;
}

std::string StopMatcher::Finish() { return std::exchange(held_, {}); }

Answer::Answer(const ApiCall& call, const model::Tokenizer& tokenizer)
    : endpoint_(call.endpoint),
      tokenizer_(tokenizer),
      logprobs_wanted_(call.logprobs),
      stop_tokens_(call.stop_tokens),
      tokens_min_(call.rules.tokens_min),
      text_stream_(tokenizer),
      offset_stream_(tokenizer),
      stop_(call.stop) {}

void Answer::Echo(std::span<const TokenId> prompt) {
  if (logprobs_wanted_ && !prompt.empty()) {
    AddLogprobs({.token = prompt.front()}, /*has_logprob=*/false);
  }
  for (const TokenId token : prompt) piece_.text += text_stream_.Add(token);
  news_ = true;
}

void Answer::Take(const PromptTokens& prompt) {
  for (const NewToken& token : prompt.tokens) AddLogprobs(token, /*has_logprob=*/true);
  news_ = true;
}

void Answer::Take(const NewToken& token) {
  if (stopped()) return;
  ++tokens_;
  if (logprobs_wanted_) AddLogprobs(token, /*has_logprob=*/true);
  news_ = true;
  if (std::ranges::find(stop_tokens_, token.token) != stop_tokens_.end()) return;
  const std::string text = text_stream_.Add(token.token);
  piece_.text += tokens_ <= tokens_min_ ? text : stop_.Add(text);
}

void Answer::Take(Response response) {
  if (!stopped()) {
    piece_.text += stop_.Add(text_stream_.Finish());
    piece_.text += stop_.Finish();
  }
  news_ = true;
  response_ = std::move(response);
}

OrderedJson Answer::FinishReason() const {
  if (stopped()) return "stop";
  if (!ended()) return nullptr;
  return response_->finish == Finish::kStop ? "stop" : "length";
}

void Answer::AddLogprobs(const NewToken& token, bool has_logprob) {
  if (endpoint_ == Endpoint::kChat) {
    AddChatLogprobs(token);
  } else {
    AddCompletionLogprobs(token, has_logprob);
  }
}

// What is no whole character has U+FFFD as its text, and its bytes tell what it is.
void Answer::AddChatLogprobs(const NewToken& token) {
  const auto of = [&](TokenId id, float logprob) {
    const std::string bytes = tokenizer_.BytesOf(id);
    return OrderedJson{{"token", model::ToUtf8(bytes)},
                       {"logprob", logprob},
                       {"bytes", std::vector<uint8_t>(bytes.begin(), bytes.end())}};
  };
  if (piece_.logprobs.is_null()) {
    piece_.logprobs = {{"content", OrderedJson::array()}, {"refusal", nullptr}};
  }
  OrderedJson likeliest = OrderedJson::array();
  for (const TokenLogprob& each : token.likeliest) {
    likeliest.push_back(of(each.token, each.logprob));
  }
  OrderedJson said = of(token.token, token.logprob);
  said["top_logprobs"] = std::move(likeliest);
  piece_.logprobs["content"].push_back(std::move(said));
}

// Tokens are the names of members here, so what is no whole character shows its bytes, as OpenAI's
// own answers do: others would have the same name.
void Answer::AddCompletionLogprobs(const NewToken& token, bool has_logprob) {
  const auto name_of = [&](TokenId id) {
    const std::string bytes = tokenizer_.BytesOf(id);
    if (model::ToUtf8(bytes) == bytes) return bytes;
    std::string name = "bytes:";
    for (const char byte : bytes) name += fmt::format("\\x{:02x}", static_cast<uint8_t>(byte));
    return name;
  };
  if (piece_.logprobs.is_null()) {
    piece_.logprobs = {{"tokens", OrderedJson::array()},
                       {"token_logprobs", OrderedJson::array()},
                       {"top_logprobs", OrderedJson::array()},
                       {"text_offset", OrderedJson::array()}};
  }
  const std::string name = name_of(token.token);
  OrderedJson likeliest = nullptr;
  if (has_logprob) {
    likeliest = OrderedJson::object();
    for (const TokenLogprob& each : token.likeliest) likeliest[name_of(each.token)] = each.logprob;
    likeliest[name] = token.logprob;  // the one that was drawn is always among them
  }
  piece_.logprobs["tokens"].push_back(name);
  piece_.logprobs["token_logprobs"].push_back(has_logprob ? OrderedJson(token.logprob) : nullptr);
  piece_.logprobs["top_logprobs"].push_back(std::move(likeliest));
  piece_.logprobs["text_offset"].push_back(text_offset_);
  text_offset_ += CharactersIn(offset_stream_.Add(token.token));
}

std::optional<Answer::Piece> Answer::TakePiece() {
  if (!std::exchange(news_, false)) return std::nullopt;
  return std::exchange(piece_, {});
}

}  // namespace quire::serve::http
