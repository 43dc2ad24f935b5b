#include "cache/below/stream_writes.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cache/below/outgoing_record.h"

namespace quire::cache {
namespace {

using tier::StoreOutcome;

constexpr uint32_t kWritesAtOnce = 16;
constexpr uint64_t kBusyWaitUs = 500;  // the store can take no more just now
// To be durable, for a caller that lets go of the bytes that are being written.
constexpr uint64_t kLastWaitUs = 5'000'000;

bool StoreHasIt(StoreOutcome outcome) {
  return outcome == StoreOutcome::kOk || outcome == StoreOutcome::kPresent;
}

// Another try may have another end.
bool MayPass(StoreOutcome outcome) {
  return outcome != StoreOutcome::kErased && outcome != StoreOutcome::kUnknownEpoch;
}

}  // namespace

StreamWrites::StreamWrites(const RecordChain& chain, uint64_t durable)
    : chain_(chain),
      transfers_(*chain.cache().transfers()),
      ends_(transfers_, /*wakes=*/true),
      durable_(durable) {
  transfers_.Attach(*this);
}

StreamWrites::~StreamWrites() {
  Cut(0);
  transfers_.Detach(*this);
}

uint64_t StreamWrites::begun() const {
  MutexLock lock(mutex_);
  return durable_ + blocks_.size();
}

uint64_t StreamWrites::durable() const {
  MutexLock lock(mutex_);
  return durable_;
}

void StreamWrites::Write(const PerClass<SlotId>& slots) {
  auto block = std::make_shared<Block>(chain_, begun(), slots);
  {
    MutexLock lock(mutex_);
    blocks_.push_back(std::move(block));
  }
  transfers_.Wake();
}

std::shared_ptr<StreamWrites::Block> StreamWrites::FirstWaiting() const {
  MutexLock lock(mutex_);
  const auto found = std::ranges::find_if(blocks_, [](const auto& block) { return block->waits; });
  return found == blocks_.end() ? nullptr : *found;
}

transfer::Worker::Turned StreamWrites::Turn() {
  MutexLock turn(turn_mutex_);
  Turned turned = {.worked = ends_.Run()};
  std::shared_ptr<Block> next = FirstWaiting();
  for (uint32_t i = 0; i < kWritesAtOnce && next != nullptr && transfers_.MayWrite(); ++i) {
    Give(next);
    ends_.Run();  // one that was refused is the next one again
    turned.worked = true;
    next = FirstWaiting();
  }
  if (next != nullptr) turned.wait_us = kBusyWaitUs;
  if (next == nullptr && hurries_) transfers_.Hurry();
  return turned;
}

void StreamWrites::Give(const std::shared_ptr<Block>& block) {
  LockedState& cache = chain_.cache();
  std::optional<MutexLock<Mutex>> reading;
  if (!cache.slots().on_host()) reading.emplace(cache.reading_mutex());
  OutgoingRecord record(cache, block->identity, /*twins=*/false);
  record.Begin(block->slots);
  const bool is_there = record.Await().has_value();
  if (is_there) {
    record.Write(
        ends_, [this, block](const tier::StoreCompletion& end) { EndBlock(*block, end.outcome); });
  }
  MutexLock lock(mutex_);
  block->waits = false;
  if (!is_there) block->outcome = StoreOutcome::kIo;
}

void StreamWrites::EndBlock(Block& block, StoreOutcome outcome) {
  MutexLock lock(mutex_);
  if (outcome == StoreOutcome::kBusy) {
    block.waits = true;
  } else {
    block.outcome = outcome;
  }
}

// What failed is tried again when it is asked for the next time.
void StreamWrites::TakeEnded() {
  while (!blocks_.empty()) {
    const auto outcome = blocks_.front()->outcome;
    if (!outcome) return;
    if (!StoreHasIt(*outcome)) {
      failure_ = outcome;
      return;
    }
    failure_.reset();
    blocks_.pop_front();
    ++durable_;
  }
}

// Those under way, from `first` on, and waits so long for it.
void StreamWrites::AwaitEnds(uint64_t first, uint64_t count, uint64_t timeout_us) {
  const auto have_ended = [&] {
    MutexLock lock(mutex_);
    const auto begin = blocks_.begin() + static_cast<ptrdiff_t>(first);
    return std::all_of(begin, begin + static_cast<ptrdiff_t>(count),
                       [](const auto& block) { return block->outcome.has_value(); });
  };
  const transfer::Transfers::Turning here{.worker = this};
  hurries_ = true;
  if (!have_ended()) transfers_.Await(have_ended, timeout_us, &here);
  hurries_ = false;
}

bool StreamWrites::Await(uint64_t blocks, uint64_t timeout_us) {
  uint64_t count = 0;
  {
    MutexLock lock(mutex_);
    TakeEnded();
    if (durable_ >= blocks) return true;
    count = blocks - durable_;
    if (count > blocks_.size()) return false;
    for (uint64_t i = 0; i < count; ++i) {
      Block& block = *blocks_[i];
      if (!block.outcome || StoreHasIt(*block.outcome)) continue;
      if (!MayPass(*block.outcome)) break;
      block.outcome.reset();
      block.waits = true;
    }
  }
  AwaitEnds(0, count, timeout_us);
  MutexLock lock(mutex_);
  TakeEnded();
  return durable_ >= blocks;
}

bool StreamWrites::MoveOn(uint64_t blocks, uint64_t wait_us) {
  const transfer::Transfers::Turning here{.worker = this};
  const auto has_ended = [&] { return IsDurable(blocks) || !failure().empty(); };
  hurries_ = true;
  transfers_.MoveOn(this);
  if (wait_us > 0) transfers_.Await(has_ended, wait_us, &here);
  hurries_ = false;
  return IsDurable(blocks);
}

bool StreamWrites::IsDurable(uint64_t blocks) {
  MutexLock lock(mutex_);
  TakeEnded();
  return durable_ >= blocks;
}

void StreamWrites::Cut(uint64_t blocks) {
  uint64_t kept = 0;
  uint64_t cut = 0;
  {
    MutexLock lock(mutex_);
    TakeEnded();
    durable_ = std::min(durable_, blocks);
    kept = std::min<uint64_t>(blocks - durable_, blocks_.size());
    cut = blocks_.size() - kept;
  }
  AwaitEnds(kept, cut, kLastWaitUs);
  MutexLock turn(turn_mutex_);  // nothing reads their slots any more
  MutexLock lock(mutex_);
  blocks_.resize(kept);
  if (blocks_.empty()) failure_.reset();
}

std::string StreamWrites::failure() const {
  MutexLock lock(mutex_);
  if (!failure_) return {};
  return fmt::format("the store does not take block {} ({})", durable_,
                     StoreOutcomeName(*failure_));
}

}  // namespace quire::cache
