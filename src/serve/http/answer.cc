#include "serve/http/answer.h"

#include <algorithm>
#include <utility>

namespace quire::serve::http {

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
      text_stream_(tokenizer),
      stop_(call.stop) {}

void Answer::Take(const NewToken& token) {
  if (stopped()) return;
  ++tokens_;
  const std::string text = text_stream_.Add(token.token);
  if (logprobs_wanted_) AddLogprobs(token);
  text_offset_ += text.size();
  piece_.text += stop_.Add(text);
  news_ = true;
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

// A token's own text: what is no whole character shows as U+FFFD.
void Answer::AddLogprobs(const NewToken& token) {
  const auto text_of = [&](TokenId id) {
    return tokenizer_.Decode({&id, 1}, {.skip_special = false});
  };
  if (endpoint_ == Endpoint::kChat) {
    if (piece_.logprobs.is_null()) {
      piece_.logprobs = {{"content", OrderedJson::array()}, {"refusal", nullptr}};
    }
    OrderedJson likeliest = OrderedJson::array();
    for (const TokenLogprob& each : token.likeliest) {
      likeliest.push_back(
          {{"token", text_of(each.token)}, {"logprob", each.logprob}, {"bytes", nullptr}});
    }
    piece_.logprobs["content"].push_back({{"token", text_of(token.token)},
                                          {"logprob", token.logprob},
                                          {"bytes", nullptr},
                                          {"top_logprobs", std::move(likeliest)}});
    return;
  }
  if (piece_.logprobs.is_null()) {
    piece_.logprobs = {{"tokens", OrderedJson::array()},
                       {"token_logprobs", OrderedJson::array()},
                       {"top_logprobs", OrderedJson::array()},
                       {"text_offset", OrderedJson::array()}};
  }
  OrderedJson likeliest = OrderedJson::object();
  for (const TokenLogprob& each : token.likeliest) likeliest[text_of(each.token)] = each.logprob;
  piece_.logprobs["tokens"].push_back(text_of(token.token));
  piece_.logprobs["token_logprobs"].push_back(token.logprob);
  piece_.logprobs["top_logprobs"].push_back(std::move(likeliest));
  piece_.logprobs["text_offset"].push_back(text_offset_);
}

std::optional<Answer::Piece> Answer::TakePiece() {
  if (!std::exchange(news_, false)) return std::nullopt;
  return std::exchange(piece_, {});
}

}  // namespace quire::serve::http
