#include "cache/below/stream_rewrites.h"

#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "cache/below/run_entries.h"

namespace quire::cache {
namespace {

using tier::StoreOutcome;

constexpr uint64_t kRetryUs = 500;  // the store can take no more just now

}  // namespace

bool StreamRewrites::IsNeeded(const RecordChain& chain, uint64_t blocks) {
  const uint64_t run_blocks = chain.cache().shapes().run_blocks();
  for (uint64_t first = 0; run_blocks > 1 && first + run_blocks <= blocks; first += run_blocks) {
    if (!chain.HasRun(first)) return true;
  }
  return false;
}

uint64_t StreamRewrites::Bytes(const LockedState& cache, uint64_t blocks) {
  return sizeof(StreamRewrites) + cache.shapes().run_blocks() * cache.shapes().block_bytes() +
         blocks * RecordChain::BlockBytes(cache.block_tokens());
}

StreamRewrites::StreamRewrites(RecordChain chain)
    : chain_(std::move(chain)),
      transfers_(*chain_.cache().transfers()),
      reads_(chain_.cache(), /*wakes=*/true),
      ends_(transfers_, /*wakes=*/true) {
  transfers_.Attach(*this);
  transfers_.Wake();
}

StreamRewrites::~StreamRewrites() {
  transfers_.Detach(*this);
  MutexLock turn(turn_mutex_);
  reads_.Cancel();
}

transfer::Worker::Turned StreamRewrites::Turn() {
  MutexLock turn(turn_mutex_);
  Turned turned = {.worked = ends_.Run()};
  try {
    if (doing_ == Doing::kNothing) ReadNext();
    if (doing_ != Doing::kReading || !reads_.IsDone()) return turned;
    if (reads_.failed()) {
      next_ = chain_.blocks();
      doing_ = Doing::kNothing;
    } else if (transfers_.MayWrite()) {
      turned.worked = GiveRun();
    } else {
      turned.wait_us = kRetryUs;
    }
  } catch (const std::bad_alloc&) {
    turned.wait_us = kRetryUs;
  }
  return turned;
}

// The blocks of the next run that the store does not have as one.
void StreamRewrites::ReadNext() {
  const RecordShapes& shapes = chain_.cache().shapes();
  const uint64_t count = shapes.run_blocks();
  while (next_ + count <= chain_.blocks() && chain_.HasRun(next_)) next_ += count;
  if (next_ + count > chain_.blocks()) return;
  const RecordReads::To to{.slot = SlotId::None(),
                           .bytes = shapes.block_bytes(),
                           .sections = static_cast<uint32_t>(shapes.sealed().sections().size())};
  reads_.Clear();
  for (uint64_t block = next_; block < next_ + count; ++block) {
    reads_.AddBlock(chain_, block, 0, {&to, 1});
  }
  reads_.Begin();
  doing_ = Doing::kReading;
}

bool StreamRewrites::GiveRun() {
  const RecordShapes& shapes = chain_.cache().shapes();
  const auto blocks = shapes.BlocksIn(reads_.beside());
  std::vector<std::span<const std::byte>> sections;
  shapes.CutRun(blocks, sections);
  transfers_.Write(
      {.identity = chain_.IdentityOfRun(next_, chain_.TokensOf(next_, shapes.run_blocks())),
       .layout = &shapes.run(),
       .sections = sections},
      ends_, [this](const tier::StoreCompletion& end) QUIRE_REQUIRES(turn_mutex_) {
        OnWritten(end.outcome);
      });
  doing_ = Doing::kWriting;
  return true;
}

// Without memory for it the run has none.
void StreamRewrites::WriteEntry(StoreOutcome end_of_run) {
  try {
    RunEntry::WriteAfter(end_of_run, std::make_shared<RunEntry>(chain_, next_), ends_);
  } catch (const std::bad_alloc&) {
    return;
  }
}

void StreamRewrites::OnWritten(StoreOutcome outcome) {
  const bool is_there = outcome == StoreOutcome::kOk || outcome == StoreOutcome::kPresent;
  if (outcome == StoreOutcome::kBusy) {
    doing_ = Doing::kReading;  // its bytes are there still
    return;
  }
  WriteEntry(outcome);
  next_ = is_there ? next_ + chain_.cache().shapes().run_blocks() : chain_.blocks();
  doing_ = Doing::kNothing;
}

}  // namespace quire::cache
