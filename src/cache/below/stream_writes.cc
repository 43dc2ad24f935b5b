#include "cache/below/stream_writes.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bits.h"
#include "cache/below/outgoing_record.h"

namespace quire::cache {
namespace {

using tier::StoreOutcome;

constexpr uint32_t kWritesAtOnce = 16;
constexpr uint64_t kBusyWaitUs = 500;  // the store can take no more just now

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
      durable_(RoundDown(durable, uint64_t{chain.cache().shapes().run_blocks()})) {
  transfers_.Attach(*this);
}

StreamWrites::~StreamWrites() {
  Cut(0, 0);
  transfers_.Detach(*this);
}

uint64_t StreamWrites::begun() const {
  MutexLock lock(mutex_);
  return records_.empty() ? durable_ : records_.back()->end();
}

uint64_t StreamWrites::durable() const {
  MutexLock lock(mutex_);
  return durable_;
}

void StreamWrites::Write(std::vector<PerClass<SlotId>> slots) {
  auto record = std::make_shared<Record>(chain_, begun(), std::move(slots));
  {
    MutexLock lock(mutex_);
    records_.push_back(std::move(record));
  }
  transfers_.Wake();
}

std::shared_ptr<StreamWrites::Record> StreamWrites::FirstWaiting() const {
  MutexLock lock(mutex_);
  const auto found =
      std::ranges::find_if(records_, [](const auto& record) { return record->waits; });
  return found == records_.end() ? nullptr : *found;
}

transfer::Worker::Turned StreamWrites::Turn() {
  MutexLock turn(turn_mutex_);
  Turned turned = {.worked = ends_.Run()};
  std::shared_ptr<Record> next = FirstWaiting();
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

void StreamWrites::Give(const std::shared_ptr<Record>& record) {
  std::optional<MutexLock<Mutex>> reading;
  if (!chain_.cache().slots().on_host()) reading.emplace(chain_.cache().reading_mutex());
  const bool is_there = record->is_run() ? GiveRun(record) : GiveBlock(record);
  MutexLock lock(mutex_);
  record->waits = false;
  if (!is_there) record->outcome = StoreOutcome::kIo;
}

bool StreamWrites::GiveBlock(const std::shared_ptr<Record>& record) {
  OutgoingRecord outgoing(chain_.cache(), record->identity, /*twins=*/false);
  outgoing.Begin(record->slots.front(), {});  // streams have no ladder
  if (!outgoing.Await()) return false;
  outgoing.Write(ends_, AtEndOf(record));
  return true;
}

bool StreamWrites::GiveRun(const std::shared_ptr<Record>& record) {
  const Slots& slots = chain_.cache().slots();
  const RecordShapes& shapes = chain_.cache().shapes();
  WipedVector<std::byte> copied;
  std::vector<BlockSlots<const std::byte>> blocks;
  if (slots.on_host()) {
    for (const PerClass<SlotId>& of : record->slots) {
      BlockSlots<const std::byte>& block = blocks.emplace_back();
      for (uint32_t group = 0; group < chain_.cache().classes().group_count(); ++group) {
        block[group] = slots.HostBytes(of[group]);
      }
    }
    static_cast<void>(slots.ops().Synchronize());
  } else {
    if (!CopyOut(*record, copied)) return false;
    blocks = shapes.BlocksIn(std::span<const std::byte>(copied));
  }
  std::vector<std::span<const std::byte>> sections;
  shapes.CutRun(blocks, sections);
  transfers_.Write({.identity = record->identity, .layout = &shapes.run(), .sections = sections},
                   ends_, AtEndOf(record));
  return true;
}

// A device's slots go one after the other through memory that is pinned.
bool StreamWrites::CopyOut(const Record& record, WipedVector<std::byte>& to) const {
  const Slots& slots = chain_.cache().slots();
  tier::Staging& staging = *chain_.cache().write_staging();
  const RecordShapes& shapes = chain_.cache().shapes();
  to.resize(record.slots.size() * shapes.block_bytes());
  const uint32_t chunk = staging.Take();
  bool came = true;
  const auto blocks = shapes.BlocksIn(std::span<std::byte>(to));
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (uint32_t group = 0; group < chain_.cache().classes().group_count() && came; ++group) {
      std::byte* const pinned = staging[chunk].data();
      slots.CopyOut(record.slots[i][group], pinned);
      came = slots.ops().SynchronizeCopies(CopyWay::kOut).has_value();
      std::copy_n(pinned, blocks[i][group].size(), blocks[i][group].data());
    }
  }
  staging.Give(chunk);
  return came;
}

transfer::AtEnd StreamWrites::AtEndOf(const std::shared_ptr<Record>& record) {
  return [this, record](const tier::StoreCompletion& end) QUIRE_REQUIRES(turn_mutex_) {
    {
      MutexLock lock(mutex_);
      if (end.outcome == StoreOutcome::kBusy) {
        record->waits = true;
      } else {
        record->outcome = end.outcome;
      }
    }
    if (record->is_run()) RunEntry::WriteAfter(end.outcome, record->entry, ends_);
  };
}

// What failed is tried again when it is asked for the next time.
void StreamWrites::TakeEnded() {
  while (!records_.empty()) {
    const auto outcome = records_.front()->outcome;
    if (!outcome) return;
    if (!StoreHasIt(*outcome)) {
      failure_ = outcome;
      return;
    }
    failure_.reset();
    durable_ = records_.front()->end();
    records_.pop_front();
  }
}

// Those under way, from `first` on, and waits so long for it.
void StreamWrites::AwaitEnds(uint64_t first, uint64_t count, uint64_t timeout_us) {
  const auto have_ended = [&] {
    MutexLock lock(mutex_);
    const auto begin = records_.begin() + static_cast<ptrdiff_t>(first);
    return std::all_of(begin, begin + static_cast<ptrdiff_t>(count),
                       [](const auto& record) { return record->outcome.has_value(); });
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
    while (count < records_.size() && records_[count]->first < blocks) ++count;
    if (count == 0 || records_[count - 1]->end() < blocks) return false;
    for (uint64_t i = 0; i < count; ++i) {
      Record& record = *records_[i];
      if (!record.outcome || StoreHasIt(*record.outcome)) continue;
      if (!MayPass(*record.outcome)) break;
      record.outcome.reset();
      record.waits = true;
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

void StreamWrites::Cut(uint64_t blocks, uint64_t timeout_us) {
  uint64_t kept = 0;
  uint64_t cut = 0;
  {
    MutexLock lock(mutex_);
    TakeEnded();
    durable_ =
        std::min(durable_, RoundDown(blocks, uint64_t{chain_.cache().shapes().run_blocks()}));
    while (kept < records_.size() && records_[kept]->end() <= blocks) ++kept;
    cut = records_.size() - kept;
  }
  AwaitEnds(kept, cut, timeout_us);
  MutexLock turn(turn_mutex_);  // nothing reads their slots any more
  MutexLock lock(mutex_);
  records_.resize(kept);
  if (records_.empty()) failure_.reset();
}

std::string StreamWrites::failure() const {
  MutexLock lock(mutex_);
  if (!failure_) return {};
  return fmt::format("the store does not take block {} ({})", durable_,
                     StoreOutcomeName(*failure_));
}

}  // namespace quire::cache
