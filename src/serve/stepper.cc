#include "serve/stepper.h"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

namespace quire::serve {

namespace {

uint64_t LogitsOf(const BatchEntry& entry) {
  return entry.task->text().LogitsOf(entry.task->position(), entry.tokens);
}

}  // namespace

bool IsLost(Task& task, const Error& error) {
  if (task.sequence().streamed() == nullptr) return false;
  const bool may_come = error.code == ErrorCode::kCorrupt || error.code == ErrorCode::kIo;
  return may_come && task.MayBeginAgain();
}

std::vector<model::StepItem> ItemsOf(std::span<const BatchEntry> entries, uint64_t vocab,
                                     std::vector<float>& logits) {
  uint64_t rows = 0;
  for (const BatchEntry& entry : entries) rows += LogitsOf(entry);
  logits.resize(std::max<size_t>(logits.size(), rows * vocab));
  std::vector<model::StepItem> items;
  float* at = logits.data();
  for (const BatchEntry& entry : entries) {
    const uint64_t wanted = LogitsOf(entry);
    items.push_back({.sequence = &entry.task->sequence(),
                     .tokens = entry.task->NextTokens(entry.tokens),
                     .logits = wanted > 0 ? at : nullptr,
                     .all_logits = entry.task->text().AllLogitsAt(entry.task->position()),
                     .observer = entry.task->kept().observer(),
                     .adapter = entry.task->weights_adapter()});
    at += wanted * vocab;
  }
  return items;
}

void Stepper::Step(std::span<BatchEntry> entries) {
  if (entries.empty()) return;
  std::vector<BatchEntry*> left;
  auto done = Forward(entries, left);
  if (left.empty()) return;
  if (entries.size() == 1) {
    BatchEntry& only = entries.front();
    if (IsLost(*only.task, done.error())) {
      only.lost = true;
      return;
    }
    const bool has_no_room = done.error().code == ErrorCode::kNoSpace;
    if (!has_no_room || only.tokens == 1) return only.task->Fail(std::move(done).error());
    only.tokens /= 2;
    return Step(entries);
  }
  // `left` keeps the order of `parts`, whose front is not needed any more.
  for (size_t i = 0; i < left.size(); ++i) std::swap(entries[i], *left[i]);
  Step(entries.first(left.size() / 2));
  Step(entries.subspan(left.size() / 2, left.size() - left.size() / 2));
}

// Takes one step. On error `left` are those that were not computed, as they were before.
Result<void> Stepper::Forward(std::span<BatchEntry> entries, std::vector<BatchEntry*>& left) {
  struct Share {
    uint64_t length_after;  // of the sequence, once it is computed
    std::optional<model::ImportanceObserver> observed;
    uint64_t logits;  // values asked for
    bool computed = false;
    TokenRange range{};
    std::span<const float> rows{};
  };
  const uint64_t vocab = model_.config().vocab;
  std::vector<Share> shares;
  for (const BatchEntry& entry : entries) {
    shares.push_back({.length_after = entry.task->sequence().length() + entry.tokens,
                      .observed = entry.task->kept().ObservedSoFar(),
                      .logits = LogitsOf(entry) * vocab});
  }
  auto done = StepModel(entries);

  const float* logits = logits_.data();
  for (size_t i = 0; i < entries.size(); ++i) {
    Share& share = shares[i];
    Task& task = *entries[i].task;
    // A step that fails while it commits has computed everything, and some are through.
    share.computed = done || task.sequence().length() == share.length_after;
    share.range = {.begin = task.position() - entries[i].tokens, .end = task.position()};
    share.rows = {logits, share.logits};
    logits += share.logits;
  }
  // A token of a large vocabulary takes up to a millisecond.
  executor_.ParallelFor(static_cast<uint32_t>(entries.size()), [&](uint32_t i, uint32_t) {
    if (shares[i].computed) entries[i].task->Choose(shares[i].range, shares[i].rows, vocab);
  });
  for (size_t i = 0; i < entries.size(); ++i) {
    if (shares[i].computed) {
      entries[i].fresh_tokens = entries[i].task->Advance(shares[i].range, shares[i].rows, vocab);
    } else if (GoBack(entries[i], std::move(shares[i].observed))) {
      left.push_back(&entries[i]);
    }
  }
  return done;
}

// After a step that failed. False: it cannot, and failed.
bool Stepper::GoBack(BatchEntry& entry, std::optional<model::ImportanceObserver> observed) {
  entry.task->kept().ForgetObservedSince(std::move(observed));
  Sequence& sequence = entry.task->sequence();
  if (auto rolled_back = sequence.Rollback(sequence.length()); !rolled_back) {
    entry.task->Fail(std::move(rolled_back).error());
    return false;
  }
  return true;
}

// The model's step. Where memory runs out on the way, sequences may hold uncommitted rows.
Result<void> Stepper::StepModel(std::span<const BatchEntry> entries) {
  try {
    const auto items = ItemsOf(entries, model_.config().vocab, logits_);
    if (steps_ != nullptr) return steps_->Step(items, attention_, executor_);
    return model_.Step(items, attention_, executor_);
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kNoSpace, "step: the system has no memory left");
  }
}

}  // namespace quire::serve
