#include "serve/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <optional>
#include <utility>

#include "base/hash.h"
#include "model/mass_observer.h"

namespace quire::serve {

std::string_view FinishName(Finish finish) {
  switch (finish) {
    case Finish::kLength: return "length";
    case Finish::kStop: return "stop";
    case Finish::kNoSpace: return "no_space";
    case Finish::kCancelled: return "cancelled";
    case Finish::kFailed: return "failed";
  }
  return "unknown";
}

/// One request on its way: waiting, then prefilling, then decoding, then finished.
class Engine::Task {
 public:
  Task(const Request& request, const Clock& clock, uint64_t handed_us)
      : request_(request), clock_(clock), sampler_(request.sampling), handed_us_(handed_us) {
    response_.prompt_tokens = request.prompt.size();
    if (!request.keep.keeps_all() && request.keep.by != KeepBy::kRecent) {
      observer_.emplace(ObservedFrom(request.keep, request.prompt.size()));
    }
  }

  const Request& request() const { return request_; }
  Sequence& sequence() { return *sequence_; }
  bool finished() const { return finished_; }
  /// Tokens behind it, those dropped too.
  uint64_t position() const { return sequence_->length() + sequence_->dropped_tokens(); }
  bool prefilling() const { return position() < request_.prompt.size(); }
  /// Who looks at the attention of the next step.
  model::MassObserver* observer() { return observer_ && prefilling() ? &*observer_ : nullptr; }
  /// A copy of it, to go back to when the step has to be taken again.
  std::optional<model::MassObserver> ObservedSoFar() const { return observer_; }
  void ForgetObservedSince(std::optional<model::MassObserver> before) {
    observer_.reset();
    if (before) observer_.emplace(*std::move(before));
  }
  /// What it holds from now on, until GaveBack.
  void NoteHeld() { held_bytes_ = sequence_->stats().bytes; }
  /// Whether it holds less than it did at the last call of the two.
  bool GaveBack() {
    if (finished_) return true;
    const uint64_t before = held_bytes_;
    NoteHeld();
    return held_bytes_ < before;
  }
  Response TakeResponse() { return std::move(response_); }

  void Start(std::unique_ptr<Sequence> sequence, MissReason reason) {
    sequence_ = std::move(sequence);
    response_.reused_tokens = sequence_->length();
    response_.miss_reason = reason;
  }

  /// The tokens of the next step: a chunk of the prompt or the last generated token.
  std::span<const TokenId> NextTokens(uint32_t chunk_tokens) const {
    if (!prefilling()) return {&response_.tokens.back(), 1};
    const std::span<const TokenId> rest = std::span(request_.prompt).subspan(position());
    return rest.first(std::min<size_t>(rest.size(), chunk_tokens));
  }

  /// At the end of the prompt: goes on with what is to be kept of it, and gives the rest back.
  Result<void> Keep(const NumericProfile& profile) {
    if (request_.keep.keeps_all() || position() != request_.prompt.size()) return {};
    const uint64_t whole = sequence_->length() / profile.block_tokens;
    const std::vector<uint64_t> kept = BlocksToKeep(
        request_.keep, whole, profile, observer_ ? observer_->mass() : std::span<const double>{});
    QUIRE_ASSIGN(auto selected, sequence_->Select(kept));
    sequence_ = std::move(selected);
    response_.dropped_tokens = sequence_->dropped_tokens();
    return sequence_->Reserve(sequence_->length() + std::max<uint64_t>(request_.max_tokens, 1) - 1);
  }

  /// Takes in a step that ended with `logits` for its last token (empty while prefilling goes on).
  void Advance(std::span<const float> logits) {
    if (response_.tokens.empty()) {
      const uint64_t done = position();
      response_.computed_tokens = done - response_.reused_tokens;
      if (request_.on_progress && !request_.on_progress(done, request_.prompt.size())) {
        return Finish(Finish::kCancelled);
      }
    }
    if (prefilling()) return;
    if (response_.tokens.size() == request_.max_tokens) return Finish(Finish::kLength);
    if (!std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); })) {
      // No token is the most likely one, nor are there probabilities to draw by.
      return Fail({ErrorCode::kCorrupt,
                   fmt::format("the logits after position {} are not finite: the weights hold NaN "
                               "or infinity, or what is computed from them overflows",
                               position() - 1)});
    }
    digest_.Update(std::as_bytes(logits));
    const TokenId token = sampler_.Next(logits);
    response_.tokens.push_back(token);
    last_us_ = clock_.NowMicros();
    if (response_.tokens.size() == 1) first_us_ = last_us_;
    if (request_.on_token && !request_.on_token(token)) return Finish(Finish::kCancelled);
    if (std::ranges::find(request_.stop_tokens, token) != request_.stop_tokens.end()) {
      return Finish(Finish::kStop);
    }
    if (response_.tokens.size() == request_.max_tokens) Finish(Finish::kLength);
  }

  void Finish(serve::Finish finish) {
    finished_ = true;
    response_.finish = finish;
    response_.logits_digest = digest_.Finish();
    const size_t generated = response_.tokens.size();
    if (generated > 0) response_.ttft_ms = static_cast<double>(first_us_ - handed_us_) / 1e3;
    if (generated > 1) {
      response_.ms_per_token =
          static_cast<double>(last_us_ - first_us_) / 1e3 / static_cast<double>(generated - 1);
    }
    if (sequence_ != nullptr) response_.sequence = sequence_->stats();
    sequence_.reset();
  }

  void Fail(Error error) {
    response_.error = std::move(error);
    Finish(Finish::kFailed);
  }

 private:
  const Request& request_;
  const Clock& clock_;
  model::Sampler sampler_;
  std::unique_ptr<Sequence> sequence_;
  std::optional<model::MassObserver> observer_;
  Response response_;
  Blake2b<16> digest_;
  bool finished_ = false;
  uint64_t held_bytes_ = 0;
  const uint64_t handed_us_;
  uint64_t first_us_ = 0;  // of the first generated token
  uint64_t last_us_ = 0;
};

Result<std::unique_ptr<Engine>> Engine::Create(const Parts& parts, const Identity& identity,
                                               const EngineOptions& options) {
  if (options.chunk_tokens == 0) {
    return Fail(ErrorCode::kInvalidArgument, "engine options: chunk_tokens is 0");
  }
  return std::unique_ptr<Engine>(new Engine(parts, identity, options));
}

Engine::Engine(const Parts& parts, const Identity& identity, const EngineOptions& options)
    : parts_(parts), identity_(identity), options_(options) {}

std::vector<Response> Engine::Run(std::span<const Request> requests) {
  const uint64_t handed_us = parts_.clock.NowMicros();
  std::vector<std::unique_ptr<Task>> tasks;
  for (const Request& request : requests) {
    tasks.push_back(std::make_unique<Task>(request, parts_.clock, handed_us));
    if (auto checked = Check(request); !checked) tasks.back()->Fail(std::move(checked).error());
  }
  std::vector<Task*> running;
  size_t next = 0;     // first task that has not been admitted
  bool waits = false;  // it found no room, and nobody has given any back since
  while (next < tasks.size() || !running.empty()) {
    const bool prefilling = std::ranges::any_of(running, [](Task* t) { return t->prefilling(); });
    if (!prefilling && !waits && next < tasks.size()) {
      waits = !Admit(*tasks[next], !running.empty());
      if (waits) {
        for (Task* task : running) task->NoteHeld();
      } else {
        if (!tasks[next]->finished()) running.push_back(tasks[next].get());
        ++next;
      }
    }
    Step(running);
    if (waits) waits = std::ranges::none_of(running, [](Task* t) { return t->GaveBack(); });
    std::erase_if(running, [](Task* task) { return task->finished(); });
  }
  std::vector<Response> responses;
  for (auto& task : tasks) {
    responses.push_back(task->TakeResponse());
    responses.back().kv_bytes = responses.back().sequence.bytes;
  }
  return responses;
}

Result<void> Engine::Check(const Request& request) const {
  const auto vocab = static_cast<TokenId>(parts_.model.config().vocab);
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] < 0 || request.prompt[i] >= vocab) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("prompt: token {} at position {} is not in the vocabulary of "
                              "{}",
                              request.prompt[i], i, vocab));
    }
  }
  if (request.keep.share > 0.0 && request.keep.share <= 1.0) return {};
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("keep.share is {}, must be above 0 and at most 1", request.keep.share));
}

bool Engine::Admit(Task& task, bool others_running) {
  if (task.finished()) return true;
  const Request& request = task.request();
  const bool keeps_all = request.keep.keeps_all();
  // The last generated token is never fed back, so its K and V need no room.
  const uint64_t tokens = request.prompt.size() + std::max<uint64_t>(request.max_tokens, 1) - 1;
  const SequenceOptions options{.reserve_tokens = tokens,
                                .step_tokens = options_.chunk_tokens,
                                .on_full = request.on_full,
                                .publish = keeps_all};
  // What others hold may be free later; what nobody holds is refused for good, and counted.
  const auto waits = [others_running](const Error& error) {
    return error.code == ErrorCode::kNoSpace && others_running;
  };
  auto plan = parts_.cache.Acquire({.identity = &identity_,
                                    .tokens = request.prompt,
                                    .reuse = request.reuse && keeps_all,
                                    .open_as = others_running ? &options : nullptr});
  if (!plan) {
    if (waits(plan.error())) return false;
    task.Fail(std::move(plan).error());
    return true;
  }
  const MissReason reason = plan->reason();
  auto sequence = parts_.cache.Open(*std::move(plan), options);
  if (!sequence) {
    if (waits(sequence.error())) return false;
    task.Fail(std::move(sequence).error());
    return true;
  }
  task.Start(*std::move(sequence), reason);
  return true;
}

void Engine::Step(std::span<Task* const> tasks) {
  std::vector<Task*> ready;
  for (Task* task : tasks) {
    const uint64_t tokens =
        task->sequence().length() + task->NextTokens(options_.chunk_tokens).size();
    if (auto room = task->sequence().Reserve(tokens); room) {
      ready.push_back(task);
    } else if (room.error().code == ErrorCode::kNoSpace) {
      task->Finish(Finish::kNoSpace);
    } else {
      task->Fail(std::move(room).error());
    }
  }
  Compute(ready);
}

// All together or, where that fails, fewer and fewer: the fault is of those whom it meets alone.
// The bits of a request do not depend on who is computed beside it.
void Engine::Compute(std::span<Task* const> tasks) {
  if (tasks.empty()) return;
  std::vector<Task*> left;
  auto done = Forward(tasks, left);
  if (left.empty()) return;
  if (tasks.size() == 1) return left.front()->Fail(std::move(done).error());
  const std::span<Task* const> again = left;
  Compute(again.first(again.size() / 2));
  Compute(again.subspan(again.size() / 2));
}

// Takes one step. On error `left` are those that were not computed, as they were before.
Result<void> Engine::Forward(std::span<Task* const> tasks, std::vector<Task*>& left) {
  struct Before {
    uint64_t position;
    uint64_t tokens;        // of the step
    uint64_t logits;        // rows asked for: all, the last, or none
    size_t offset;          // of these in logits_
    uint64_t length_after;  // of the sequence, once it is computed
    std::optional<model::MassObserver> observed;
  };
  const size_t vocab = parts_.model.config().vocab;
  std::vector<Before> before;
  size_t logits_size = 0;
  for (Task* task : tasks) {
    const uint64_t tokens = task->NextTokens(options_.chunk_tokens).size();
    const bool ends_prompt = task->position() + tokens >= task->request().prompt.size();
    const uint64_t wanted = task->request().on_logits ? tokens : ends_prompt ? 1 : 0;
    before.push_back({task->position(), tokens, wanted, logits_size,
                      task->sequence().length() + tokens, task->ObservedSoFar()});
    logits_size += wanted * vocab;
  }
  logits_.resize(std::max(logits_.size(), logits_size));

  std::vector<model::StepItem> items;
  items.reserve(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    items.push_back({.sequence = &tasks[i]->sequence(),
                     .tokens = tasks[i]->NextTokens(options_.chunk_tokens),
                     .logits = before[i].logits > 0 ? logits_.data() + before[i].offset : nullptr,
                     .all_logits = tasks[i]->request().on_logits != nullptr,
                     .observer = tasks[i]->observer()});
  }
  auto done = StepModel(items);

  for (size_t i = 0; i < tasks.size(); ++i) {
    // A step that fails while it commits has computed everything, and some are through.
    if (!done && tasks[i]->sequence().length() != before[i].length_after) {
      tasks[i]->ForgetObservedSince(std::move(before[i].observed));
      Sequence& sequence = tasks[i]->sequence();
      if (auto rolled_back = sequence.Rollback(sequence.length()); rolled_back) {
        left.push_back(tasks[i]);
      } else {
        tasks[i]->Fail(std::move(rolled_back).error());
      }
      continue;
    }
    const std::span<const float> logits(logits_.data() + before[i].offset,
                                        before[i].logits * vocab);
    if (const auto& on_logits = tasks[i]->request().on_logits) {
      for (uint64_t row = 0; row < before[i].tokens; ++row) {
        on_logits(before[i].position + row, logits.subspan(row * vocab, vocab));
      }
    }
    if (auto kept = tasks[i]->Keep(parts_.cache.options().profile); !kept) {
      tasks[i]->Fail(std::move(kept).error());
      continue;
    }
    tasks[i]->Advance(logits.empty() ? logits : logits.last(vocab));
  }
  return done;
}

// The model's step. Where memory runs out on the way, sequences may hold uncommitted rows.
Result<void> Engine::StepModel(std::span<const model::StepItem> items) {
  try {
    return parts_.model.Step(items, parts_.attention, parts_.executor);
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kNoSpace, "step: the system has no memory left");
  }
}

}  // namespace quire::serve
