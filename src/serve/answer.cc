#include "serve/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>
#include <utility>

namespace quire::serve {

namespace {

// Otherwise no token is the most likely one, nor are there probabilities to draw by.
Result<void> CheckFinite(std::span<const float> logits, uint64_t position) {
  if (std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); })) return {};
  return Fail(ErrorCode::kCorrupt,
              fmt::format("the logits after position {} are not finite: the weights hold NaN "
                          "or infinity, or what is computed from them overflows",
                          position));
}

void AddLogprobs(std::span<const float> logits, uint32_t likeliest, NewToken& event) {
  const double most = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - most);
  const double log_sum = most + std::log(sum);
  const auto logprob = [&](TokenId token) {
    return static_cast<float>(logits[static_cast<size_t>(token)] - log_sum);
  };
  event.logprob = logprob(event.token);
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const size_t count = std::min<size_t>(likeliest, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<int64_t>(count), ids.end(),
                    [&](TokenId a, TokenId b) {
                      const float one = logits[static_cast<size_t>(a)];
                      const float other = logits[static_cast<size_t>(b)];
                      return one != other ? one > other : a < b;
                    });
  for (size_t i = 0; i < count; ++i) event.likeliest.push_back({ids[i], logprob(ids[i])});
}

}  // namespace

void Answer::Choose(std::span<const float> logits, std::span<const TokenId> text) noexcept {
  try {
    chosen_ = Compute(logits, text);
  } catch (const std::bad_alloc&) {
    has_no_memory_ = true;
  }
}

Result<NewToken> Answer::Compute(std::span<const float> logits, std::span<const TokenId> text) {
  QUIRE_TRY(CheckFinite(logits, text.size() - 1));
  if (request_.digests_logits) digest_.Update(std::as_bytes(logits));
  const size_t prompt_tokens = text.size() - tokens_.size();
  const model::LogitContext context{.prompt = text.first(prompt_tokens),
                                    .answer = text.subspan(prompt_tokens),
                                    .stop_tokens = request_.stop_tokens};
  NewToken event{.token = sampler_.Next(processor_.Apply(request_.rules, logits, context))};
  if (request_.logprobs) AddLogprobs(logits, *request_.logprobs, event);
  return event;
}

Result<Answer::Drawn> Answer::Draw(std::span<const float> logits, std::span<const TokenId> text) {
  if (!chosen_ && !has_no_memory_) Choose(logits, text);
  if (has_no_memory_) return Fail(ErrorCode::kNoSpace, "a token: the system has no memory left");
  QUIRE_ASSIGN(NewToken event, *std::exchange(chosen_, std::nullopt));
  Drawn drawn{.token = event.token};
  tokens_.push_back(drawn.token);
  last_us_ = clock_.NowMicros();
  if (tokens_.size() == 1) first_us_ = last_us_;
  mailbox_.Post(id_, std::move(event));
  if (std::ranges::find(request_.stop_tokens, drawn.token) != request_.stop_tokens.end()) {
    drawn.ends = Finish::kStop;
  } else if (tokens_.size() == request_.max_tokens) {
    drawn.ends = Finish::kLength;
  }
  return drawn;
}

Result<void> Answer::SayPrompt(std::span<const TokenId> tokens, uint64_t position,
                               std::span<const float> logits) {
  PromptTokens said;
  const size_t vocab = logits.size() / tokens.size();
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::span<const float> row = logits.subspan(i * vocab, vocab);
    QUIRE_TRY(CheckFinite(row, position + i - 1));
    NewToken& event = said.tokens.emplace_back(NewToken{.token = tokens[i]});
    AddLogprobs(row, request_.logprobs.value_or(0), event);
  }
  mailbox_.Post(id_, std::move(said));
  return {};
}

Response Answer::Take(Finish finish) {
  Response response{.finish = finish};
  if (request_.digests_logits) response.logits_digest = digest_.Finish();
  const size_t count = tokens_.size();
  if (count > 0) response.ttft_ms = static_cast<double>(first_us_ - submitted_us_) / 1e3;
  if (count > 1) {
    response.ms_per_token =
        static_cast<double>(last_us_ - first_us_) / 1e3 / static_cast<double>(count - 1);
  }
  response.tokens = std::move(tokens_);
  return response;
}

}  // namespace quire::serve
