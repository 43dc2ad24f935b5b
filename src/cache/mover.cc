#include "cache/mover.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/canary.h"
#include "base/log.h"
#include "base/sync_point.h"
#include "cache/below.h"
#include "cache/load_job.h"
#include "cache/records.h"
#include "env/machine.h"

namespace quire::cache {
namespace {

using tier::StoreCompletion;
using tier::StoreOutcome;

constexpr uint32_t kWritesPerTick = 16;
constexpr uint32_t kWritesPerCall = 64;     // of a device, so that its link is not kept waiting
constexpr uint64_t kBusyPauseUs = 500;      // the store can take no more just now
constexpr uint64_t kFullPauseUs = 100'000;  // nor will it soon
constexpr uint64_t kDiskWaitUs = 1000;
constexpr uint64_t kPaceWaitUs = 2000;      // while blocks wait for their turn to be written
constexpr uint64_t kCommitWaitUs = 10'000;  // while records wait for their commit
constexpr uint64_t kIdleWaitUs = 100'000;

/// The record that a block becomes. What it points to is the block's.
tier::RecordIdentity IdentityOf(const RecordShapes& shapes, const BlockToWrite& block) {
  const StoredForm& form = block.form;
  return {.key = form.twins ? TwinKey(form.key) : form.key,
          .parent = form.twins ? form.key : block.parent_key,
          .profile = shapes.profile(),
          .geometry = shapes.geometry(),
          .publisher = tier::PublisherOf(block.account),
          .erase_epoch = block.erase_epoch,
          .block_index = form.block_index,
          .tokens = block.tokens};
}

}  // namespace

Mover::Mover(std::unique_ptr<tier::Store> store, const Clock& clock, uint64_t spread_us)
    : store_(std::move(store)),
      clock_(clock),
      spread_us_(spread_us),
      loads_(*store_, clock, next_tag_, load_counters_),
      records_(*store_, clock, next_tag_) {}

Mover::~Mover() {
  {
    MutexLock lock(mutex_);
    stops_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Mover::Start() {
  thread_ = std::thread([this] {
    StepBackBehindComputation();
    Run();
  });
}

void Mover::Run() {
  while (true) {
    {
      MutexLock lock(mutex_);
      if (stops_) return;
      woken_ = false;
    }
    try {
      if (Tick(0)) continue;
    } catch (const std::bad_alloc&) {
      // What was not begun is begun later.
    }
    Wait();
  }
}

// On the disk, where something is being read or written; else for callers.
void Mover::Wait() {
  const tier::StoreStats stats = store_->Stats();
  if (stats.in_flight > 0 || stats.loads_pending > 0 || load_counters_.landing > 0) {
    Tick(kDiskWaitUs);
    return;
  }
  MutexLock lock(mutex_);
  if (woken_ || stops_) return;
  const uint64_t idle_us = stats.writes_pending > 0 ? kCommitWaitUs : kIdleWaitUs;
  changed_.WaitFor(mutex_, holds_back_ ? kPaceWaitUs : idle_us);
}

void Mover::Wake() {
  MutexLock lock(mutex_);
  if (std::exchange(woken_, true)) return;
  changed_.NotifyAll();
}

void Mover::Attach(Storing& cache) {
  MutexLock lock(tick_mutex_);
  sources_.push_back({.cache = &cache, .pace = transfer::WritePace(spread_us_)});
}

void Mover::SetLimits(const tier::PublisherLimits& limits) {
  MutexLock lock(tick_mutex_);
  store_->SetLimits(limits);
}

void Mover::Detach(Storing& cache) {
  MutexLock lock(tick_mutex_);
  std::erase_if(sources_, [&](const Source& source) { return source.cache == &cache; });
  for (auto& [tag, write] : writes_) {
    if (write.cache == &cache) write.cache = nullptr;
  }
}

template <typename IsDone>
bool Mover::AwaitUntil(uint64_t end_us, const IsDone& is_done) {
  Wake();
  while (true) {
    {
      MutexLock lock(mutex_);
      if (is_done()) return true;
      const uint64_t now_us = clock_.NowMicros();
      if (now_us >= end_us) return false;
      if (thread_.joinable()) {
        ended_.WaitFor(mutex_, end_us - now_us);
        continue;
      }
    }
    Tick(kDiskWaitUs);
  }
}

StoreOutcome Mover::Ask(Wish wish) {
  {
    MutexLock lock(mutex_);
    wishes_.push_back(&wish);
  }
  AwaitUntil(UINT64_MAX, [&] { return wish.outcome.has_value(); });
  return *wish.outcome;
}

Result<void> Mover::Erase(const tier::PublisherId& publisher) {
  const StoreOutcome outcome = Ask({.kind = Wish::Kind::kErase, .publisher = publisher});
  if (outcome == StoreOutcome::kOk) return {};
  return Fail(ErrorCode::kIo,
              fmt::format("store: the erasure is not durable ({}); nothing of it is found before a "
                          "restart; erase again",
                          StoreOutcomeName(outcome)));
}

Result<void> Mover::Flush() {
  const uint64_t dropped_before = dropped_;
  const StoreOutcome outcome = Ask({.kind = Wish::Kind::kFlush});
  const uint64_t dropped = dropped_ - dropped_before;
  if (dropped == 0) {
    if (outcome == StoreOutcome::kOk) return {};
    return Fail(ErrorCode::kIo, fmt::format("store: flush: {}", StoreOutcomeName(outcome)));
  }
  {
    MutexLock lock(mutex_);
    if (!device_error_.empty()) {
      return Fail(ErrorCode::kIo,
                  fmt::format("store: {} blocks could not be read to be written: {}", dropped,
                              device_error_));
    }
  }
  return Fail(
      outcome == StoreOutcome::kOk ? ErrorCode::kNoSpace : ErrorCode::kIo,
      fmt::format("store: {} blocks could not be written ({}); a later process will compute them",
                  dropped, StoreOutcomeName(last_drop_)));
}

void Mover::Load(std::shared_ptr<LoadJob> job) {
  auto load = Loads::Make(std::move(job));
  {
    MutexLock lock(mutex_);
    new_loads_.push_back(std::move(load));
  }
  Wake();
}

bool Mover::Await(const LoadJob& job, uint64_t timeout_us) {
  const uint64_t now_us = clock_.NowMicros();
  return AwaitUntil(now_us + std::min(timeout_us, UINT64_MAX - now_us),
                    [&] { return job.left.load(); });
}

void Mover::Begin(ReadBatch& batch) {
  batch.left = batch.reads.size();
  {
    MutexLock lock(mutex_);
    new_reads_.push_back(&batch);
  }
  Wake();
}

void Mover::Cancel(ReadBatch& batch) {
  MutexLock tick(tick_mutex_);
  bool is_new = false;
  {
    MutexLock lock(mutex_);
    is_new = std::erase(new_reads_, &batch) > 0;
  }
  if (!is_new) records_.Cancel(batch);
  batch.left = 0;
}

void Mover::Write(std::shared_ptr<RecordWrite> write) {
  {
    MutexLock lock(mutex_);
    new_writes_.push_back(std::move(write));
  }
  Wake();
}

void Mover::Forget(const RecordWrite& write) {
  MutexLock tick(tick_mutex_);
  {
    MutexLock lock(mutex_);
    std::erase_if(new_writes_, [&](const auto& other) { return other.get() == &write; });
  }
  records_.Forget(write);
}

bool Mover::Await(const std::function<bool()>& is_so, uint64_t timeout_us, bool hurries) {
  if (is_so()) return true;
  const auto hurry = [&](int32_t by) {
    if (!hurries) return;
    MutexLock lock(mutex_);
    hurries_ += static_cast<uint32_t>(by);
  };
  hurry(+1);
  const uint64_t now_us = clock_.NowMicros();
  const uint64_t end_us = now_us + std::min(timeout_us, UINT64_MAX - now_us);
  bool done = false;
  if (thread_.joinable()) {
    while (!(done = is_so()) && clock_.NowMicros() < end_us) TurnRecords();
  } else {
    done = AwaitUntil(end_us, is_so);
  }
  hurry(-1);
  return done;
}

// Whoever waits for records turns the store itself: its thread stands behind those that compute,
// so it would be late just when nobody else can go on.
void Mover::TurnRecords() {
  bool is_others = false;
  bool waited = false;
  try {
    MutexLock lock(tick_mutex_);
    const bool worked = TakeRecords();
    waited = !worked && store_->Stats().in_flight > 0;
    store_->Tick(done_, waited ? kDiskWaitUs : 0);
    waited = waited || worked || !done_.empty();
    is_others = std::ranges::any_of(done_, [&](const StoreCompletion& ended) QUIRE_REQUIRES(
                                               tick_mutex_) { return !records_.Has(ended.tag); });
    HandleDone();
  } catch (const std::bad_alloc&) {
    // What was not handled is handled later.
  }
  if (is_others) Wake();
  MutexLock lock(mutex_);
  if (records_ended_.exchange(false)) {
    ended_.NotifyAll();
  } else if (!waited) {
    ended_.WaitFor(mutex_, kBusyPauseUs);  // the store can take no more just now
  }
}

bool Mover::Tick(uint64_t wait_us) {
  std::vector<std::shared_ptr<LoadJob>> ended;
  const bool worked = TickLocked(wait_us, ended);
  for (const auto& job : ended) {
    if (job->options.on_done) job->options.on_done();
    MutexLock lock(mutex_);
    job->left = true;  // the ticket may end now, and the cache after it
    ended_.NotifyAll();
  }
  if (records_ended_.exchange(false)) {
    MutexLock lock(mutex_);
    ended_.NotifyAll();
  }
  return worked;
}

bool Mover::TickLocked(uint64_t wait_us, std::vector<std::shared_ptr<LoadJob>>& ended) {
  MutexLock lock(tick_mutex_);
  bool worked = TakeWishes();
  worked = TakeLoads() || worked;
  worked = TakeRecords() || worked;
  worked = loads_.Advance() || worked;
  TouchUsed();
  worked = WriteSome() || worked;
  worked = StartFlushes() || worked;
  store_->Tick(done_, worked || load_counters_.landing > 0 ? 0 : wait_us);
  worked = worked || !done_.empty();
  HandleDone();
  worked = loads_.Advance() || worked;
  if (!worked && wait_us > 0) worked = loads_.AwaitLanding();
  ended = loads_.TakeEnded();
  return worked;
}

// Where memory runs out on the way, the rest is handled by the next Tick.
void Mover::HandleDone() {
  size_t handled = 0;
  struct Forget {
    ~Forget() { done.erase(done.begin(), done.begin() + static_cast<ptrdiff_t>(handled)); }
    std::vector<StoreCompletion>& done;
    const size_t& handled;
  } forget{.done = done_, .handled = handled};
  for (; handled < done_.size(); ++handled) Handle(done_[handled]);
}

void Mover::Handle(const StoreCompletion& ended) {
  if (writes_.contains(ended.tag)) return EndWrite(ended);
  if (loads_.Has(ended.tag)) return loads_.EndGet(ended);
  if (records_.Has(ended.tag)) {
    records_ended_ = true;
    return records_.End(ended);
  }
  const auto asked = asked_.find(ended.tag);
  if (asked == asked_.end()) return;
  Wish* const wish = asked->second;
  const bool again = wish->kind == Wish::Kind::kFlush && wish->put_back != put_back_;
  if (again) flushes_.push_back(wish);  // some of what it waits for is in the queues again
  asked_.erase(asked);
  if (again) return;
  MutexLock lock(mutex_);
  wish->outcome = ended.outcome;  // its caller may be gone after this
  ended_.NotifyAll();
}

// A wish stays where it is until it was begun.
bool Mover::TakeWishes() {
  for (bool worked = false;; worked = true) {
    Wish* wish = nullptr;
    {
      MutexLock lock(mutex_);
      if (wishes_.empty()) return worked;
      wish = wishes_.front();
    }
    if (wish->kind == Wish::Kind::kFlush) {
      flushes_.push_back(wish);
    } else {
      const uint64_t tag = next_tag_++;
      asked_[tag] = wish;
      try {
        store_->Erase(wish->publisher, store_->EpochOf(wish->publisher) + 1, tag);
      } catch (const std::bad_alloc&) {
        asked_.erase(tag);  // it is asked for once more
        throw;
      }
    }
    MutexLock lock(mutex_);
    wishes_.erase(wishes_.begin());
  }
}

// What was published before the flush has left the queues when they are empty.
bool Mover::StartFlushes() {
  if (flushes_.empty()) return false;
  write_after_us_ = std::min(write_after_us_, clock_.NowMicros() + kBusyPauseUs);
  const auto has_writes = [](const Source& source) { return source.cache->backlog().queued > 0; };
  if (records_.has_waiting()) return false;
  if (std::ranges::any_of(sources_, has_writes) && !Planted(Canary::kFlushEarly)) return false;
  const uint64_t tag = next_tag_++;
  flushes_.back()->put_back = put_back_;
  asked_[tag] = flushes_.back();
  flushes_.pop_back();
  store_->Flush(tag);
  return true;
}

// What memory hands out is in use below too, or a store that is full would recycle first what is
// wanted most. What it lost all the same is written again: not where memory holds about as much as
// the store, or the two would push each other's blocks out for ever.
void Mover::TouchUsed() {
  std::vector<tier::RecordUse> uses;
  std::vector<tier::Presence> presence;
  for (const Source& source : sources_) {
    Storing& cache = *source.cache;
    // Others go on using blocks meanwhile: no more than could wait before.
    for (size_t begin = 0; begin < kUsedBelowMax; begin += kBlocksPerHold) {
      std::vector<StoredForm> used = cache.TakeUsed();
      if (used.empty()) break;
      uses.clear();
      for (const StoredForm& form : used) {
        uses.push_back(
            {.key = form.twins ? TwinKey(form.key) : form.key, .block_index = form.block_index});
      }
      presence.assign(uses.size(), tier::Presence::kAbsent);
      store_->Touch(uses, presence);
      if (cache.cache().options().hot_bytes > store_->Stats().bytes_cap / 2) continue;
      size_t lost = 0;
      for (size_t i = 0; i < used.size(); ++i) {
        if (presence[i] == tier::Presence::kAbsent) used[lost++] = used[i];
      }
      if (lost > 0) cache.OfferAgain(std::span(used).first(lost));
    }
  }
}

// Who waits for a flush waits for all of it.
bool Mover::FindDue() {
  const uint64_t now_us = clock_.NowMicros();
  bool any = false;
  holds_back_ = false;
  for (Source& source : sources_) {
    const Storing::Backlog backlog = source.cache->backlog();
    source.due = source.pace.Due(now_us, backlog.queued, backlog.lost_total);
    if (!flushes_.empty()) source.due = backlog.queued;
    any = any || source.due > 0;
    if (source.due < backlog.queued) holds_back_ = true;
  }
  return any;
}

bool Mover::WriteSome() {
  if (!FindDue()) return false;
  bool worked = false;
  size_t idle = 0;
  uint32_t turns = 1;
  for (uint32_t left = kWritesPerTick; left > 0 && idle < sources_.size();
       left -= std::min(left, turns)) {
    turns = 1;
    if (clock_.NowMicros() < write_after_us_) break;
    Source& source = sources_[next_source_++ % sources_.size()];
    if (source.due == 0) {
      ++idle;
      continue;
    }
    uint64_t failed = 0;
    uint32_t put = 0;
    const auto wrote = source.cache->WriteNext(std::min<uint64_t>(kWritesPerCall, source.due),
                                               SinkOf(source, put), failed);
    if (!wrote) {
      EndUnread(failed, wrote.error());
      break;
    }
    if (!*wrote) source.due = 0;
    idle = *wrote ? 0 : idle + 1;
    worked = worked || *wrote;
    turns = std::max(put, 1u);
  }
  return worked;
}

RecordSink Mover::SinkOf(Source& source, uint32_t& put) {
  return {.place =
              [&](const BlockToWrite& block) QUIRE_REQUIRES(tick_mutex_) {
                const RecordShapes& shapes = source.cache->cache().shapes();
                return store_->Place(IdentityOf(shapes, block), shapes.record(block.form.twins));
              },
          .withdraw =
              [&](const BlockToWrite& block) QUIRE_REQUIRES(tick_mutex_) {
                store_->Withdraw(IdentityOf(source.cache->cache().shapes(), block).key);
              },
          .write =
              [&](const BlockToWrite& block, const RecordSections& sections)
                  QUIRE_REQUIRES(tick_mutex_) {
                    ++put;
                    if (block.is_last && source.due > 0) --source.due;
                    Put(*source.cache, block, sections);
                  }};
}

void Mover::Put(Storing& cache, const BlockToWrite& block, const RecordSections& sections) {
  const StoredForm& form = block.form;
  const RecordShapes& shapes = cache.cache().shapes();
  const uint64_t tag = next_tag_++;
  writes_[tag] = {.cache = &cache, .form = form};  // once the store has it nothing may fail
  const tier::PutRequest request = {.identity = IdentityOf(shapes, block),
                                    .layout = &shapes.record(form.twins),
                                    .sections = sections.bytes,
                                    .crcs = sections.crcs,
                                    .tag = tag};
  try {
    store_->Put({&request, 1});
  } catch (const std::bad_alloc&) {
    writes_.erase(tag);
    throw;
  }
}

// A device failed before the bytes of so many forms were here.
void Mover::EndUnread(uint64_t count, const Error& error) {
  dropped_ += count;
  last_drop_ = StoreOutcome::kIo;
  write_after_us_ = clock_.NowMicros() + kFullPauseUs;
  if (!std::exchange(warned_, true)) {
    LogWarn("store: blocks are not written ({}); what was written goes on serving", error.message);
  }
  MutexLock lock(mutex_);
  device_error_ = error.message;
}

void Mover::EndWrite(const StoreCompletion& ended) {
  const auto found = writes_.find(ended.tag);
  const BlockWrite write = found->second;
  writes_.erase(found);
  Below below = Below::kNothing;
  bool again = false;
  switch (ended.outcome) {
    case StoreOutcome::kOk:
      ++written_;
      warned_ = false;
      below = Below::kDurable;
      break;
    case StoreOutcome::kPresent: below = Below::kDurable; break;
    case StoreOutcome::kBusy:
      again = true;
      ++put_back_;
      write_after_us_ = std::max(write_after_us_, clock_.NowMicros() + kBusyPauseUs);
      break;
    case StoreOutcome::kErased: break;
    default:
      ++dropped_;
      last_drop_ = ended.outcome;
      // What is wrong with one record is no reason not to write others.
      if (ended.outcome == StoreOutcome::kNoSpace || ended.outcome == StoreOutcome::kIo) {
        write_after_us_ = clock_.NowMicros() + kFullPauseUs;
      }
      if (!std::exchange(warned_, true)) {
        LogWarn("store: blocks are not written ({}); what is in memory goes on serving",
                StoreOutcomeName(ended.outcome));
      }
  }
  if (write.cache != nullptr) write.cache->EndWrite(write.form, below, again);
}

bool Mover::TakeLoads() {
  MutexLock lock(mutex_);
  if (new_loads_.empty()) return false;
  loads_.Start(new_loads_);
  return true;
}

// What is begun first is what somebody waits for: reads.
bool Mover::TakeRecords() {
  std::vector<ReadBatch*> reads;
  std::vector<std::shared_ptr<RecordWrite>> writes;
  bool hurries = false;
  {
    MutexLock lock(mutex_);
    reads.swap(new_reads_);
    writes.swap(new_writes_);
    hurries = hurries_ > 0;
  }
  for (ReadBatch* const batch : reads) records_.Begin(*batch);
  for (auto& write : writes) records_.Write(std::move(write));
  const bool advanced = records_.Advance(hurries);
  return advanced || !reads.empty();
}

DiskStoreStats Mover::stats() const {
  const tier::StoreStats store = store_->Stats();
  return {.records = store.records,
          .bytes = store.bytes,
          .bytes_cap = store.bytes_cap,
          .memory_bytes = store.memory_bytes,
          .records_written = written_,
          .bytes_put = store.bytes_put,
          .bytes_written = store.bytes_written,
          .bytes_read = store.bytes_read,
          .records_loaded = load_counters_.loaded,
          .loads_failed = load_counters_.failures,
          .records_dropped = dropped_,
          .records_recycled = store.evicted,
          .records_damaged = store.damaged,
          .in_flight = store.in_flight,
          .writes_pending = store.writes_pending,
          .disk_full = store.disk_full,
          .load_us_log2 = store.load_us_log2};
}

}  // namespace quire::cache
