// One answer of a call: what its request said so far, as text up to a stop string and as JSON.
#ifndef QUIRE_SERVE_HTTP_ANSWER_H_
#define QUIRE_SERVE_HTTP_ANSWER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/api_request.h"
#include "serve/request.h"
#include "text/tokenizer.h"

namespace quire::serve::http {

/// Threads: one object on one thread at a time
/// Cost:    each Add looks at the new text and at most the longest stop string before it
class StopMatcher {
 public:
  /// None of `stops` is empty.
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Text that is surely no part of a stop string, of what was added so far and not given yet. A
  /// stop string and what follows it never come out; of several the one that begins first counts.
  std::string Add(std::string_view text);
  /// What was held back: the text ends here.
  std::string Finish();
  /// A stop string was found.
  bool stopped() const { return stopped_; }

 private:
  const std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

/// Threads:  one
/// Lifetime: the tokenizer must outlive it
class Answer {
 public:
  Answer(const ApiCall& call, const model::Tokenizer& tokenizer);

  /// Begins with the prompt: its text, and as its tokens' logprobs what PromptTokens will say.
  void Echo(std::span<const TokenId> prompt);

  /// Takes in a token, or the end. What comes after a stop string is passed over, but for the end.
  void Take(const NewToken& token);
  void Take(const PromptTokens& prompt);
  void Take(Response response);

  /// A stop string was found: nothing more is wanted.
  bool stopped() const { return stop_.stopped(); }
  bool ended() const { return response_.has_value(); }
  /// Once it has ended.
  const Response& response() const { return *response_; }
  /// Generated tokens that are part of the answer, the one that completed a stop string included.
  uint64_t tokens() const { return tokens_; }
  /// "stop" or "length"; null while there is more to come.
  OrderedJson FinishReason() const;

  /// Text and logprobs since the last call; nothing new: none. The end makes one more, even when
  /// it brings no text.
  struct Piece {
    std::string text{};
    OrderedJson logprobs = nullptr;
  };
  std::optional<Piece> TakePiece();

 private:
  void AddLogprobs(const NewToken& token, bool has_logprob);
  void AddChatLogprobs(const NewToken& token);
  void AddCompletionLogprobs(const NewToken& token, bool has_logprob);

  const Endpoint endpoint_;
  const model::Tokenizer& tokenizer_;
  const std::optional<uint32_t> logprobs_wanted_;
  const std::vector<TokenId> stop_tokens_;  // their text is no part of the answer
  const uint64_t tokens_min_;               // until then no stop string counts
  model::TextStream text_stream_;
  model::TextStream offset_stream_;  // of the tokens whose logprobs were added
  StopMatcher stop_;
  uint64_t tokens_ = 0;
  uint64_t text_offset_ = 0;  // in characters
  Piece piece_{};
  bool news_ = false;
  std::optional<Response> response_;
};

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_ANSWER_H_
