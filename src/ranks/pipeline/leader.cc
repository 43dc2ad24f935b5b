#include "ranks/pipeline/leader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ranks/pipeline/pipeline_cache.h"

namespace quire::ranks::pipeline {

Leader::~Leader() { static_cast<void>(Stop()); }

Result<void> Leader::Join(Identity& identity) {
  Message hello = {.command = Command::kJoin, .text = setup_.settings};
  hello.digests.push_back(components_.model.fingerprint());
  QUIRE_ASSIGN(Message all, Call(std::move(hello)));
  if (all.digests.size() != ring_.ranks()) {
    return Break(ErrorCode::kCorrupt, fmt::format("{} fingerprints came back from {} ranks",
                                                  all.digests.size(), ring_.ranks()));
  }
  NameValues(all.digests, components_.model, identity);
  Message known = {.command = Command::kJoin, .text = setup_.settings};
  known.digests = std::move(all.digests);
  QUIRE_TRY(Call(std::move(known)));
  return {};
}

Result<void> Leader::Stop() {
  if (stopped_) return {};
  const auto stopped = Call({.command = Command::kStop});
  stopped_ = true;
  QUIRE_TRY(stopped);
  return {};
}

Result<void> Leader::Begin(std::span<const model::StepItem> items) {
  Message message = {.command = Command::kStep};
  std::vector<model::StepItem> own(items.begin(), items.end());
  std::vector<Output> outputs;
  for (model::StepItem& item : own) {
    auto* const sequence = dynamic_cast<PipelineSequence*>(item.sequence);
    if (sequence == nullptr) {
      return Fail(ErrorCode::kInvalidArgument,
                  "step: a sequence of another cache; open it in the pipeline's");
    }
    const Wanted wanted = item.logits == nullptr ? Wanted::kNone
                          : item.all_logits      ? Wanted::kAll
                                                 : Wanted::kLast;
    message.items.push_back({.sequence = sequence->number(),
                             .tokens = static_cast<uint32_t>(item.tokens.size()),
                             .wanted = wanted});
    message.tokens.insert(message.tokens.end(), item.tokens.begin(), item.tokens.end());
    if (wanted != Wanted::kNone) {
      outputs.push_back(
          {.logits = item.logits, .rows = wanted == Wanted::kAll ? item.tokens.size() : 1});
    }
    item.sequence = &sequence->own();
    if (ring_.ranks() > 1) item.logits = nullptr;
  }
  if (ring_.ranks() > 1) {
    message.rows.resize(message.tokens.size() * components_.model.config().hidden);
  } else {
    outputs.clear();
  }
  QUIRE_TRY(components_.model.StepStage(
      own, {.in = nullptr, .out = ring_.ranks() > 1 ? message.rows.data() : nullptr},
      components_.attention, components_.executor));
  std::vector<uint64_t> lengths;
  for (const model::StepItem& item : own) lengths.push_back(item.sequence->length());
  QUIRE_TRY(Send(message, lengths));
  outputs_.push_back(std::move(outputs));
  return {};
}

Result<void> Leader::Finish() {
  while (ended_.empty()) {
    QUIRE_ASSIGN(Message message, AwaitNext());
    Keep(std::move(message));
  }
  const Message step = std::move(ended_.front());
  ended_.pop_front();
  const std::vector<Output> outputs = std::move(outputs_.front());
  outputs_.pop_front();
  const uint64_t vocab = components_.model.config().vocab;
  uint64_t rows = 0;
  for (const Output& output : outputs) rows += output.rows;
  if (step.rows.size() != rows * vocab) {
    return Break(ErrorCode::kCorrupt, fmt::format("{} values came back for {} rows of logits of {}",
                                                  step.rows.size(), rows, vocab));
  }
  const float* from = step.rows.data();
  for (const Output& output : outputs) {
    std::copy_n(from, output.rows * vocab, output.logits);
    from += output.rows * vocab;
  }
  return {};
}

Result<Message> Leader::Call(Message message) {
  QUIRE_TRY(Send(message, {}));
  const uint64_t number = message.number;
  while (true) {
    QUIRE_ASSIGN(Message back, AwaitNext());
    if (back.number == number) return back;
    Keep(std::move(back));
  }
}

Result<void> Leader::Tell(Message message) { return Send(message, {}); }

Result<uint64_t> Leader::Ask(Message message, std::function<void(const Message&)> answered) {
  QUIRE_TRY(Send(message, {}));
  asked_.emplace(message.number, std::move(answered));
  return message.number;
}

Result<void> Leader::Await(uint64_t number) {
  while (asked_.contains(number)) {
    QUIRE_ASSIGN(Message back, AwaitNext());
    Keep(std::move(back));
  }
  return {};
}

// What came back and is not waited for.
void Leader::Keep(Message back) {
  if (back.command == Command::kStep) {
    ended_.push_back(std::move(back));
    return;
  }
  const auto asked = asked_.extract(back.number);
  if (!asked.empty()) asked.mapped()(back);
}

// What it says of itself comes first: the state before it, and its number.
Result<void> Leader::Send(Message& message, std::span<const uint64_t> lengths) {
  if (stopped_) return Fail(ErrorCode::kCancelled, "ranks: they were stopped");
  message.number = ++number_;
  message.state = state_;
  state_ = StateAfter(state_, message, lengths);
  QUIRE_TRY(ring_.Send(Encode(message)));
  sent_.push_back({.command = message.command, .number = message.number});
  return {};
}

// The next message that comes back.
Result<Message> Leader::AwaitNext() {
  QUIRE_ASSIGN(const auto bytes, ring_.Receive());
  auto message = Decode(bytes);
  if (!message) return Break(message.error().code, message.error().message);
  if (sent_.empty() || sent_.front().number != message->number ||
      sent_.front().command != message->command) {
    return Break(ErrorCode::kCorrupt,
                 fmt::format("message {} comes back out of turn", message->number));
  }
  sent_.pop_front();
  return message;
}

std::unexpected<Error> Leader::Break(ErrorCode code, std::string_view why) {
  return std::unexpected(ring_.Break({code, fmt::format("rank 0: {}", why)}));
}

}  // namespace quire::ranks::pipeline
