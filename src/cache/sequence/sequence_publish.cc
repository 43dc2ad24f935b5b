// What a commit publishes, and the priority that callers give to blocks.
#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/bits.h"
#include "cache/sequence/sequence_impl.h"
#include "cache/state/forms.h"

namespace quire::cache {
namespace {

constexpr uint32_t kPriorityMax = 100;
constexpr size_t kPublishBlocksMax = 32;  // at once: other calls wait for the cache's lock
                                          // meanwhile

// A commit itself needs no memory; its optional work may wait for the next commit.
template <typename Call>
void IfThereIsMemory(const Call& call) {
  try {
    call();
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace

Result<void> SequenceImpl::Commit(std::span<const TokenId> tokens) {
  {
    MutexLock lock(mutex_);
    QUIRE_TRY(CheckArrived("commit"));
  }
  const uint64_t length = this->length() + tokens.size();
  for (uint32_t layer = 0; layer < cursors_.size(); ++layer) {
    if (cursor(layer) < length) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("commit: sequence {} up to {} tokens, but layer {} has only {}",
                              id_.number(), length, layer, cursor(layer)));
    }
  }
  Result<void> published;
  if (publish_ && !gave_up_) {
    {
      MutexLock lock(mutex_);
      slots_.list().AddTokens(tokens);
    }
    IfThereIsMemory([&] {
      published = PublishWholeBlocks(length);
      if (!published) return;
      // A sequence that must not evict cannot allocate replacements, so it does not donate its open
      // slots as twins.
      if (location_.may_evict && this->length() < prompt_tokens_ && length >= prompt_tokens_) {
        // The same prompt leaves one token to compute, a longer one does not.
        KeepTwins((prompt_tokens_ - 1) / verbs_.cache.block_tokens());
        KeepTwins(prompt_tokens_ / verbs_.cache.block_tokens());
      }
    });
  }
  if (stream_ != nullptr) {
    stream_->CountRead();
    IfThereIsMemory([&] {
      stream_->Add(tokens);
      WriteWholeBlocks(length, verbs_.cache.shapes().run_blocks());
    });
  }
  length_.store(length, std::memory_order_release);
  IfThereIsMemory([&] { PassWindows(length); });
  return published;
}

Result<void> SequenceImpl::PublishWholeBlocks(uint64_t length) {
  // Every layer has reached `length`, so a block below it is whole in all of them.
  const uint64_t end = std::min(length / verbs_.cache.block_tokens(), damaged_block_);
  std::vector<NewBlock> blocks;
  std::vector<Published> answers;
  std::vector<SlotId> own;
  // A fork may share entries of blocks that are not published yet. Without room for copies of them
  // the next commit tries again.
  if (slots_.list().published() < end && !Own(slots_.list().published())) return {};
  Result<void> published;
  while (published && slots_.list().published() < end) {
    const uint64_t first = slots_.list().published();
    blocks.clear();
    while (first + blocks.size() < end && blocks.size() < kPublishBlocksMax) {
      const auto block = WholeBlock(first + blocks.size());
      if (!block) break;
      blocks.push_back(*block);
    }
    if (blocks.empty()) {  // a window has passed the block before
      answers.assign(1, {.final = true});
    } else {
      if (first > 0) blocks[0].parent = slots_.list().last_published();
      // Once the blocks are published nothing may fail.
      own.clear();
      own.reserve(blocks.size() * verbs_.cache.layout().group_count());
      published = verbs_.publishing.Publish(location_, blocks, answers);
      TakeOver(blocks, answers, own);
    }
    if (answers.back().block.is_none()) {
      gave_up_ = answers.back().final;  // else the next commit tries again
      break;
    }
  }
  if (!published) {
    return Fail(published.error().code, fmt::format("commit: sequence {}: nothing is published: {}",
                                                    id_.number(), published.error().message));
  }
  return {};
}

// `at_once`: so many blocks are a record; what is left waits for more.
void SequenceImpl::WriteWholeBlocks(uint64_t length, uint64_t at_once) {
  const uint64_t end = length / verbs_.cache.block_tokens();
  for (uint64_t begin = stream_->begun(); begin + at_once <= end; begin += at_once) {
    std::vector<PerClass<SlotId>> slots(at_once);
    for (uint64_t i = 0; i < at_once; ++i) {
      for (uint32_t group = 0; group < slots_.classes().group_count(); ++group) {
        slots[i][group] = slots_.at(group, begin + i);
      }
    }
    stream_->Write(std::move(slots));
  }
}

bool SequenceImpl::MayEnd(uint64_t wait_us) {
  if (stream_ == nullptr) return true;
  WriteRest();
  return stream_->MayEnd(wait_us);
}

// Whole blocks that became no run are records by themselves.
void SequenceImpl::WriteRest() {
  IfThereIsMemory([&] { WriteWholeBlocks(std::min(length(), stream_->whole_tokens()), 1); });
}

// Block `i` as it is to be published, without its parent. Nothing: a window has passed some of it,
// or all of the block before.
std::optional<NewBlock> SequenceImpl::WholeBlock(size_t i) const {
  NewBlock block{.tokens = slots_.list().BlockTokens(i)};
  bool parent_held = i == 0;
  for (uint32_t c = 0; c < verbs_.cache.layout().group_count(); ++c) {
    block.slots[c] = slots_.at(c, i);
    if (block.slots[c].is_none()) return std::nullopt;
    parent_held = parent_held || !slots_.at(c, i - 1).is_none();
  }
  if (!parent_held) return std::nullopt;
  const SlotClasses& classes = verbs_.cache.classes();
  if (classes.has_ladder()) {
    const Slots& slots = verbs_.cache.slots();
    const SlotId written = slots_.at(classes.OpenClassOf(0), i);
    const FormError own = MeasureError(slots.ops(), {classes.open_layout(), slots.data(written)},
                                       {classes.layout(), slots.data(block.slots[0])});
    // What it was computed from has an error, too.
    block.error = {.key = std::max(own.key, approximate_error_),
                   .value = std::max(own.value, approximate_error_)};
  }
  return block;
}

// Replaces the sequence's slots by those of the published blocks, which differ where another
// sequence published first. `own` has capacity for the slots that it releases.
void SequenceImpl::TakeOver(std::span<const NewBlock> blocks, std::span<const Published> answers,
                            std::vector<SlotId>& own) {
  const uint64_t first = slots_.list().published();
  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < answers.size() && !answers[i].block.is_none(); ++i) {
      slots_.list().AddPublished(answers[i].block);
      for (uint32_t c = 0; c < verbs_.cache.layout().group_count(); ++c) {
        if (answers[i].slots[c] == blocks[i].slots[c]) continue;
        own.push_back(blocks[i].slots[c]);
        slots_.list().SetSlot(c, first + i, answers[i].slots[c]);
      }
    }
  }
  // Only now, when no view can be taken of these slots any more.
  verbs_.cache.ReleaseSlots(own);
  for (const Retained& retained : retained_) Apply(retained, first);
}

void SequenceImpl::KeepTwins(uint64_t blocks) {
  const uint64_t count = std::min<uint64_t>(blocks, verbs_.cache.classes().residual_blocks());
  if (count == 0 || !publish_ || blocks > slots_.list().published()) return;
  if (!is_exact_) return;
  PerGroup<std::vector<SlotId>> slots;
  for (uint32_t group = 0; group < verbs_.cache.layout().group_count(); ++group) {
    for (uint64_t block = blocks - count; block < blocks; ++block) {
      slots[group].push_back(slots_.at(verbs_.cache.classes().OpenClassOf(group), block));
    }
    QUIRE_CHECK(std::ranges::none_of(slots[group], &SlotId::is_none));
  }
  verbs_.publishing.KeepTwins(location_, slots_.list().PublishedBlocks(blocks - count, blocks),
                              slots);
}

Result<void> SequenceImpl::Retain(const Retention& retention) {
  if (!verbs_.cache.heeds_priorities()) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("retain: sequence {}: policy \"{}\" does not go by priorities",
                            id_.number(), verbs_.cache.options().policy));
  }
  if (retention.begin_token >= retention.end_token || retention.priority > kPriorityMax) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("retain: sequence {}: tokens {} to {} with priority {} (0 to {})", id_.number(),
                    retention.begin_token, retention.end_token, retention.priority, kPriorityMax));
  }
  if (!publish_) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("retain: sequence {} publishes nothing", id_.number()));
  }
  const uint64_t now_us = verbs_.cache.NowMicros();
  const uint64_t ttl_us = retention.ttl_us == 0 ? UINT64_MAX : retention.ttl_us;
  std::erase_if(retained_, [&](const Retained& other) { return other.until_us <= now_us; });
  retained_.push_back({.begin = retention.begin_token / verbs_.cache.block_tokens(),
                       .end = DivUp(retention.end_token, uint64_t{verbs_.cache.block_tokens()}),
                       .priority = retention.priority,
                       .until_us = now_us + std::min(ttl_us, UINT64_MAX - now_us)});
  Apply(retained_.back(), 0);
  return {};
}

// Applies a priority to the published blocks from the given one on.
void SequenceImpl::Apply(const Retained& retained, uint64_t first_block) const {
  const uint64_t begin = std::max(retained.begin, first_block);
  const uint64_t end = std::min(retained.end, slots_.list().published());
  if (begin >= end) return;
  verbs_.holds.Retain(slots_.list().PublishedBlocks(begin, end), retained.priority,
                      retained.until_us);
}

}  // namespace quire::cache
