#include "serve/http/call.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace quire::serve::http {

ApiError ShuttingDown() {
  return FromError({ErrorCode::kCancelled, "the server is shutting down"});
}

std::string ServerSentEvent(const OrderedJson& json) {
  return fmt::format("data: {}\n\n", Dump(json));
}

Call::Call(const Context& context, ApiCall call, Head head, std::shared_ptr<CallProgress> progress)
    : context_(context),
      call_(std::move(call)),
      head_(std::move(head)),
      progress_(std::move(progress)) {}

Call::~Call() {
  Unlisten();
  for (Asked& asked : asked_) {
    if (asked.answer.ended()) continue;
    CancelOne(asked);
    while (context_.engine.Await(asked.id)) {
    }
  }
  context_.live.Leave(progress_);
}

ApiResult<void> Call::Submit(Request request, bool counts_prompt) {
  const std::vector<TokenId> prompt = request.prompt;
  const auto id = context_.engine.Submit(std::move(request));
  if (!id) return std::unexpected(FromError(id.error()));
  Asked& asked = asked_.emplace_back(Asked{
      .id = *id, .answer = Answer(call_, context_.tokenizer), .counts_prompt = counts_prompt});
  if (call_.echo) asked.answer.Echo(prompt);
  role_said_.push_back(false);
  progress_->prompt_tokens += prompt.size();
  return {};
}

void Call::Listen(const std::function<void()>& wake) {
  for (const Asked& asked : asked_) context_.hub.Listen(asked.id, wake);
}

void Call::Unlisten() {
  for (const Asked& asked : asked_) context_.hub.Unlisten(asked.id);
}

void Call::Pump() {
  for (Asked& asked : asked_) {
    while (!asked.answer.ended()) {
      auto event = context_.engine.Next(asked.id);
      if (!event) break;
      Take(asked, *std::move(event));
    }
  }
}

void Call::Take(Asked& asked, Event event) {
  if (const auto* const progress = std::get_if<Progress>(&event)) {
    progress_->prompt_done += progress->done - std::min(progress->done, asked.prompt_done);
    asked.prompt_done = std::max(asked.prompt_done, progress->done);
  } else if (const auto* const token = std::get_if<NewToken>(&event)) {
    ++progress_->generated;
    asked.answer.Take(*token);
    if (asked.answer.stopped()) CancelOne(asked);
  } else if (const auto* const prompt = std::get_if<PromptTokens>(&event)) {
    asked.answer.Take(*prompt);
  } else if (auto* const response = std::get_if<Response>(&event)) {
    asked.answer.Take(std::move(*response));
    const Response& end = asked.answer.response();
    if (asked.answer.stopped() || error_) return;
    if (end.finish == Finish::kFailed) {
      // Of what it needs only files can be missing.
      const bool is_file = end.error.code == ErrorCode::kNotFound;
      error_ = is_file ? FromFileError(end.error) : FromError(end.error);
      if (!call_.session.empty()) {
        error_->message = fmt::format("session '{}': {}", Echo(call_.session, 64), error_->message);
      }
    } else if (end.finish == Finish::kCancelled) {
      error_ = cancelled_.value_or(ShuttingDown());
    }
    if (error_) {
      LogDetail(*error_, request_name_);
      for (Asked& each : asked_) CancelOne(each);
    }
  }
}

void Call::CancelOne(Asked& asked) {
  if (asked.cancelled || asked.answer.ended()) return;
  asked.cancelled = true;
  // An answer that has met its stop stands. What ends with an error may be sent again.
  context_.engine.Cancel(asked.id,
                         asked.answer.stopped() ? CancelledTurn::kStands : CancelledTurn::kUndone);
}

void Call::Cancel(ApiError why) {
  if (!cancelled_) cancelled_ = std::move(why);
  for (Asked& asked : asked_) CancelOne(asked);
}

bool Call::ended() const {
  return std::ranges::all_of(asked_, [](const Asked& asked) { return asked.answer.ended(); });
}

OrderedJson Call::HeadJson(bool is_piece) const {
  const bool chat = call_.endpoint == Endpoint::kChat;
  const char* const kind = !chat      ? "text_completion"
                           : is_piece ? "chat.completion.chunk"
                                      : "chat.completion";
  return {{"id", head_.id},
          {"object", kind},
          {"created", head_.created_s},
          {"model", head_.model},
          {"system_fingerprint", head_.version}};
}

// Null: nothing that is cached goes on from where the hit ends.
OrderedJson Call::FirstDifference() const {
  const auto token = asked_.front().answer.response().differs_at;
  if (!token) return nullptr;
  OrderedJson json = {{"token", *token}};
  const auto end = std::ranges::upper_bound(call_.message_ends, *token);
  if (end != call_.message_ends.end()) json["message"] = end - call_.message_ends.begin();
  return json;
}

OrderedJson Call::UsageJson() const {
  uint64_t prompt = 0;
  uint64_t cached = 0;
  uint64_t dropped = 0;
  uint64_t approximate = 0;
  float error = 0;
  uint64_t generated = 0;
  for (const Asked& asked : asked_) {
    const Response& response = asked.answer.response();
    generated += asked.answer.tokens();
    error = std::max(error, response.sequence.approximate_error);
    if (!asked.counts_prompt) continue;
    prompt += response.prompt_tokens;
    cached += response.reused_tokens;
    dropped += response.dropped_tokens;
    approximate += response.sequence.tokens_approximate;
  }
  OrderedJson details = {{"cached_tokens", cached}};
  if (dropped > 0) details["dropped_tokens"] = dropped;  // the answer is an approximation
  if (approximate > 0) {                                 // so it is here
    details["approximate_tokens"] = approximate;
    details["approximate_error"] = error;
  }
  if (call_.explain_misses) details["first_difference"] = FirstDifference();
  OrderedJson usage = {{"prompt_tokens", prompt},
                       {"completion_tokens", generated},
                       {"total_tokens", prompt + generated},
                       {"prompt_tokens_details", std::move(details)}};
  if (!call_.hints.empty()) {
    usage["kv_hints"] = HintsJson(call_.hints, asked_.front().answer.response().retained);
  }
  return usage;
}

// In the words of vLLM's connectors, so that their proxies hand it to the server that decodes.
OrderedJson Call::TransferJson() const {
  OrderedJson json = {{"do_remote_prefill", why_not_published_->empty()},
                      {"do_remote_decode", false},
                      {"remote_engine_id", "quire"},
                      {"published", why_not_published_->empty()}};
  if (!why_not_published_->empty()) json["reason"] = *why_not_published_;
  return json;
}

OrderedJson Call::PieceJson(size_t index, Asked& asked, const Answer::Piece& piece) {
  OrderedJson choice = {{"index", index}};
  if (call_.endpoint == Endpoint::kChat) {
    OrderedJson delta = OrderedJson::object();
    if (!role_said_[index]) delta["role"] = "assistant";
    role_said_[index] = true;
    delta["content"] = piece.text;
    choice["delta"] = std::move(delta);
  } else {
    choice["text"] = piece.text;
  }
  choice["logprobs"] = piece.logprobs;
  const bool last = asked.answer.ended();
  choice["finish_reason"] = last ? asked.answer.FinishReason() : OrderedJson(nullptr);
  OrderedJson json = HeadJson(/*is_piece=*/true);
  json["choices"] = OrderedJson::array({std::move(choice)});
  if (call_.include_usage) json["usage"] = nullptr;
  return json;
}

std::string Call::TakeStream() {
  std::string text;
  if (streamed_end_) return text;
  if (error_) {
    streamed_end_ = true;
    return ServerSentEvent(ErrorJson(*error_));
  }
  for (size_t i = 0; i < asked_.size(); ++i) {
    const auto piece = asked_[i].answer.TakePiece();
    // What is held back, or no whole character yet, makes no event of its own.
    const bool silent = piece && piece->text.empty() && piece->logprobs.is_null();
    if (!piece || (silent && !asked_[i].answer.ended())) continue;
    text += ServerSentEvent(PieceJson(i, asked_[i], *piece));
  }
  if (!ended()) return text;
  streamed_end_ = true;
  if (why_not_published_) {
    OrderedJson json = HeadJson(/*is_piece=*/true);
    json["choices"] = OrderedJson::array();
    json["kv_transfer_params"] = TransferJson();
    text += ServerSentEvent(json);
  }
  if (call_.include_usage) {
    OrderedJson json = HeadJson(/*is_piece=*/true);
    json["choices"] = OrderedJson::array();
    json["usage"] = UsageJson();
    text += ServerSentEvent(json);
  }
  return text + "data: [DONE]\n\n";
}

std::string Call::Body() {
  OrderedJson choices = OrderedJson::array();
  for (size_t i = 0; i < asked_.size(); ++i) {
    const Answer::Piece piece = asked_[i].answer.TakePiece().value_or(Answer::Piece{});
    OrderedJson choice = {{"index", i}};
    if (call_.endpoint == Endpoint::kChat) {
      choice["message"] = {{"role", "assistant"}, {"content", piece.text}, {"refusal", nullptr}};
    } else {
      choice["text"] = piece.text;
    }
    choice["logprobs"] = piece.logprobs;
    choice["finish_reason"] = asked_[i].answer.FinishReason();
    choices.push_back(std::move(choice));
  }
  OrderedJson json = HeadJson(/*is_piece=*/false);
  json["choices"] = std::move(choices);
  json["usage"] = UsageJson();
  if (why_not_published_) json["kv_transfer_params"] = TransferJson();
  return Dump(json);
}

CallReport Call::Report() const {
  CallReport report;
  for (const Asked& asked : asked_) {
    const Response& response = asked.answer.response();
    report.prompt_tokens += response.prompt_tokens;
    report.reused_tokens += response.reused_tokens;
    report.loaded_tokens += response.loaded_tokens;
    report.computed_tokens += response.computed_tokens;
    report.recomputed_tokens += response.recomputed_tokens;
    report.generated_tokens += response.tokens.size();
    report.preemptions += response.preemptions;
    for (const MissRun& run : response.missing) report.missed_tokens[run.reason] += run.tokens;
    report.ttft_ms = std::max(report.ttft_ms, response.ttft_ms);
    report.ms_per_token = std::max(report.ms_per_token, response.ms_per_token);
  }
  if (error_) {
    report.finish = error_->code.empty() ? error_->type : error_->code;
  } else if (!asked_.empty()) {
    report.finish = asked_.front().answer.FinishReason().get<std::string>();
  }
  return report;
}

}  // namespace quire::serve::http
