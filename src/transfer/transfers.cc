#include "transfer/transfers.h"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "base/canary.h"
#include "base/check.h"
#include "base/sync_point.h"
#include "base/thread.h"
#include "env/machine.h"

namespace quire::transfer {
namespace {

using tier::StoreCompletion;
using tier::StoreOutcome;

constexpr uint64_t kBusyPauseUs = 500;      // the store can take no more just now
constexpr uint64_t kFullPauseUs = 100'000;  // nor will it soon
constexpr uint64_t kCommitWaitUs = 10'000;  // while records wait for their commit
constexpr uint64_t kIdleWaitUs = 100'000;

void FlushStore(tier::Store& store, uint64_t tag) { store.Flush(tag); }

}  // namespace

Ends::~Ends() { transfers_.Forget(*this); }

bool Ends::Run() {
  for (bool any = false;; any = true) {
    Requests::node_type next;
    {
      MutexLock lock(transfers_.mutex_);
      if (ended_.empty()) return any;
      next = ended_.extract(ended_.begin());
    }
    try {
      next.mapped().at_end(next.mapped().end);
    } catch (const std::bad_alloc&) {
      MutexLock lock(transfers_.mutex_);
      ended_.insert(std::move(next));  // it ends the next time
      throw;
    }
  }
}

/// Goes over the workers, one call at a time. One that is being called does not leave.
class Transfers::Walk {
 public:
  explicit Walk(Transfers& of) : of_(of) {}
  ~Walk() {
    MutexLock lock(of_.mutex_);
    EndCall();
  }
  Walk(const Walk&) = delete;
  Walk& operator=(const Walk&) = delete;

  /// Null: that was the last one.
  Worker* Next() {
    MutexLock lock(of_.mutex_);
    auto next = at_ == nullptr ? of_.workers_.begin() : std::next(place_);
    while (next != of_.workers_.end() && next->leaves) ++next;
    EndCall();
    if (next == of_.workers_.end()) return nullptr;
    place_ = next;
    at_ = &*next;
    ++at_->calls;
    return at_->worker;
  }

 private:
  void EndCall() QUIRE_REQUIRES(of_.mutex_) {
    if (at_ == nullptr) return;
    --at_->calls;
    if (at_->leaves) of_.ended_.NotifyAll();
    at_ = nullptr;
  }

  Transfers& of_;
  std::list<Attached>::iterator place_{};
  Attached* at_ = nullptr;
};

Transfers::Transfers(std::unique_ptr<tier::Store> store, const Clock& clock,
                     const TransferOptions& options)
    : store_(std::move(store)), clock_(clock), options_(options) {}

Transfers::~Transfers() { Stop(); }

// The thread.

void Transfers::Start() {
  thread_ = StartThread([this] {
    if (options_.steps_back) StepBackBehindComputation();
    Run();
  });
}

void Transfers::Stop() {
  {
    MutexLock lock(mutex_);
    stops_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Transfers::Run() {
  while (true) {
    {
      MutexLock lock(mutex_);
      if (stops_) return;
      woken_ = false;
    }
    try {
      if (Tick(0)) continue;
      Wait();
    } catch (const std::bad_alloc&) {
      // What was not begun is begun later.
      MutexLock lock(mutex_);
      if (!stops_) changed_.WaitFor(mutex_, kBusyPauseUs);
    }
  }
}

// On the disk, where something is being read or written; else for callers.
void Transfers::Wait() {
  const tier::StoreStats stats = store_->Stats();
  if (stats.in_flight > 0 || stats.loads_pending > 0 || copies_) {
    Tick(options_.disk_wait_us);
    return;
  }
  MutexLock lock(mutex_);
  if (woken_ || stops_) return;
  const uint64_t idle_us = stats.writes_pending > 0 ? kCommitWaitUs : kIdleWaitUs;
  changed_.WaitFor(mutex_, std::min<uint64_t>(idle_us, turn_wait_us_));
}

void Transfers::Wake() {
  MutexLock lock(mutex_);
  if (std::exchange(woken_, true)) return;
  changed_.NotifyAll();
}

// Turns.

void Transfers::Attach(Worker& worker) {
  MutexLock lock(mutex_);
  workers_.insert(worker.reads() ? workers_.begin() : workers_.end(), {.worker = &worker});
}

void Transfers::Detach(Worker& worker) {
  MutexLock lock(mutex_);
  const auto found = std::ranges::find(workers_, &worker, &Attached::worker);
  if (found == workers_.end()) return;
  found->leaves = true;
  while (found->calls > 0) ended_.Wait(mutex_);
  workers_.erase(found);
}

Worker::Turned Transfers::TurnWorkers() {
  Worker::Turned all;
  Walk walk(*this);
  while (Worker* const worker = walk.Next()) {
    const Worker::Turned turned = worker->Turn();
    all.worked = all.worked || turned.worked;
    all.copies = all.copies || turned.copies;
    all.wait_us = std::min(all.wait_us, turned.wait_us);
  }
  copies_ = all.copies;
  turn_wait_us_ = all.wait_us;
  return all;
}

bool Transfers::Tick(uint64_t wait_us) {
  Worker::Turned turned = TurnWorkers();
  bool worked = StartFlushes() || turned.worked;
  const bool ended = TickStore(worked || turned.copies ? 0 : wait_us);
  if (ended) {
    AtSyncPoint("transfers: something has ended");
    turned = TurnWorkers();
  }
  worked = worked || ended || turned.worked;
  if (worked || wait_us == 0 || !turned.copies) return worked;
  Walk walk(*this);
  while (Worker* const worker = walk.Next()) {
    if (worker->AwaitCopies()) return true;
  }
  return false;
}

bool Transfers::TickStore(uint64_t wait_us) {
  struct Ticking {
    explicit Ticking(std::atomic<uint32_t>& of) : count(of) { ++count; }
    ~Ticking() { --count; }
    std::atomic<uint32_t>& count;
  } const ticking(ticking_);
  MutexLock lock(store_mutex_);
  bool worked = BeginNew();
  if (hurry_tag_ == 0 && hurries_.exchange(false)) {
    const uint64_t tag = next_tag_++;
    store_->Flush(tag);
    hurry_tag_ = tag;
  }
  store_->Tick(done_, worked ? 0 : wait_us);
  if (write_after_us_ > 0) {
    const bool under_way = store_->Stats().in_flight > 0;
    if (awaits_arrival_ && !under_way) write_after_us_ = 0;
    awaits_arrival_ = under_way;
  }
  return TakeDone() || worked;
}

bool Transfers::BeginNew() {
  for (bool any = false;; any = true) {
    Ends::Requests::node_type next;
    {
      MutexLock lock(mutex_);
      if (new_.empty()) return any;
      next = new_.extract(new_.begin());
    }
    const uint64_t tag = next.key();
    const auto at = under_way_.insert(std::move(next)).position;
    try {
      at->second.begin(*store_, tag);
      at->second.begin = nullptr;
    } catch (const std::bad_alloc&) {
      const bool reads = at->second.reads;
      if (reads) store_->Cancel(tag);  // however much of it the store knows
      MutexLock lock(mutex_);
      auto request = under_way_.extract(at);
      if (!reads) {
        new_.insert(std::move(request));  // it is begun once more
        throw;
      }
      End(std::move(request), {.tag = tag, .outcome = StoreOutcome::kCancelled});
    }
  }
}

// What is on its way to the disk makes room when it arrives; what waits for a commit does not.
void Transfers::OnBusy() {
  write_after_us_ = clock_.NowMicros() + kBusyPauseUs;
  awaits_arrival_ = store_->Stats().in_flight > 0;
  if (!awaits_arrival_) Hurry();
}

// Nothing here takes memory. False: nothing ended that was asked for.
bool Transfers::TakeDone() {
  if (done_.empty()) return false;
  bool any = false;
  const auto is_busy = [](const StoreCompletion& end) {
    return end.outcome == StoreOutcome::kBusy;
  };
  if (std::ranges::any_of(done_, is_busy)) OnBusy();
  MutexLock lock(mutex_);
  for (const StoreCompletion& end : done_) {
    if (end.tag == hurry_tag_) {
      hurry_tag_ = 0;
      any = any || hurries_;  // what was written meanwhile
      continue;
    }
    any = true;
    if (auto request = under_way_.extract(end.tag)) End(std::move(request), end);
  }
  done_.clear();
  return any;
}

void Transfers::End(Ends::Requests::node_type request, const StoreCompletion& end) {
  Ends& ends = *request.mapped().ends;
  request.mapped().end = end;
  request.key() = ++ends_count_;
  ends.ended_.insert(std::move(request));
  ++events_;
  ended_.NotifyAll();
  if (!ends.wakes_ || std::exchange(woken_, true)) return;
  changed_.NotifyAll();
}

// Requests.

void Transfers::Write(tier::PutRequest record, Ends& ends, AtEnd at_end) {
  MutexLock lock(store_mutex_);
  BeginNew();  // what was asked for before comes before
  record.tag = next_tag_++;
  const auto at =
      under_way_.emplace(record.tag, Request{.ends = &ends, .at_end = std::move(at_end)}).first;
  try {
    store_->Put({&record, 1});
  } catch (const std::bad_alloc&) {
    under_way_.erase(at);
    throw;
  }
  try {
    store_->Tick(done_, 0);  // only that says whether it was taken
    TakeDone();
  } catch (const std::bad_alloc&) {
    // What was not handled is handled later.
  }
}

uint64_t Transfers::Due(WritePace& pace, uint64_t queued, uint64_t lost_total) const {
  const uint64_t now_us = clock_.NowMicros();
  const uint64_t due = pace.Due(now_us, queued, lost_total);
  if (now_us < background_after_us_) return 0;
  return flushes_waiting_ > 0 ? queued : due;
}

void Transfers::HoldBack() { background_after_us_ = clock_.NowMicros() + kFullPauseUs; }

uint64_t Transfers::BeginAs(Request request) {
  MutexLock lock(mutex_);
  const uint64_t tag = next_tag_++;
  new_.emplace(tag, std::move(request));
  if (!std::exchange(woken_, true)) changed_.NotifyAll();
  return tag;
}

uint64_t Transfers::Begin(std::move_only_function<void(tier::Store&, uint64_t tag)> begin,
                          Ends& ends, AtEnd at_end) {
  return BeginAs({.ends = &ends, .begin = std::move(begin), .at_end = std::move(at_end)});
}

uint64_t Transfers::Read(const tier::LoadRequest& load, uint64_t deadline_us, Ends& ends,
                         AtEnd at_end) {
  return BeginAs({.ends = &ends,
                  .begin =
                      [load, deadline_us](tier::Store& store, uint64_t tag) {
                        tier::LoadRequest tagged = load;
                        tagged.tag = tag;
                        store.Get({&tagged, 1}, deadline_us);
                      },
                  .at_end = std::move(at_end),
                  .reads = true});
}

void Transfers::Flush(Ends& ends, AtEnd at_end) { Begin(FlushStore, ends, std::move(at_end)); }

void Transfers::Cancel(uint64_t read) {
  MutexLock store(store_mutex_);
  if (under_way_.contains(read)) store_->Cancel(read);
  MutexLock lock(mutex_);
  auto request = new_.extract(read);
  if (request) End(std::move(request), {.tag = read, .outcome = StoreOutcome::kCancelled});
}

// What requests carry goes when the locks are released: it may call back.
void Transfers::Forget(Ends& ends) {
  Ends::Requests gone;
  Ends::Requests ended;
  MutexLock store(store_mutex_);
  const auto take = [&](Ends::Requests& from) {
    for (auto at = from.begin(); at != from.end();) {
      const auto next = std::next(at);
      if (at->second.ends == &ends) gone.insert(from.extract(at));
      at = next;
    }
  };
  take(under_way_);
  for (const auto& [tag, request] : gone) {
    if (request.reads) store_->Cancel(tag);
  }
  MutexLock lock(mutex_);
  take(new_);
  const size_t flushes = flushes_.size();
  take(flushes_);
  flushes_waiting_ -= static_cast<uint32_t>(flushes - flushes_.size());
  ended.swap(ends.ended_);
}

// What callers wait for.

uint64_t Transfers::events() const {
  MutexLock lock(mutex_);
  return events_;
}

void Transfers::Notify(const std::function<void()>& make_so) {
  MutexLock lock(mutex_);
  make_so();
  ++events_;
  ended_.NotifyAll();
}

bool Transfers::Await(const std::function<bool()>& is_so, uint64_t timeout_us,
                      const Turning* turning) {
  const uint64_t begin_us = clock_.NowMicros();
  const uint64_t end_us = begin_us + std::min(timeout_us, UINT64_MAX - begin_us);
  if (turning == nullptr) Wake();
  while (true) {
    const uint64_t seen = events();
    if (is_so()) return true;
    const uint64_t now_us = clock_.NowMicros();
    if (now_us >= end_us) return false;
    const bool by_hand = !thread_.joinable();
    if (by_hand) Tick(options_.disk_wait_us);
    if (by_hand || (turning != nullptr && TurnHere(*turning))) continue;
    MutexLock lock(mutex_);
    if (events_ == seen) {
      ended_.WaitFor(mutex_, turning != nullptr ? kBusyPauseUs : end_us - now_us);
    }
  }
}

// Another thread that moves it on may be waiting for the disk.
void Transfers::MoveOn(Worker* worker) {
  if (ticking_ > 0) return;
  try {
    if (worker != nullptr) worker->Turn();
    TickStore(0);
  } catch (const std::bad_alloc&) {  // what was not handled is handled later
  }
}

// False: there is nothing to be done until the store can take more.
bool Transfers::TurnHere(const Turning& turning) {
  try {
    const bool worked = turning.worker != nullptr && turning.worker->Turn().worked;
    const bool waits = !worked && store_->Stats().in_flight > 0;
    return TickStore(waits ? options_.disk_wait_us : 0) || worked || waits;
  } catch (const std::bad_alloc&) {
    return false;  // what was not handled is handled later
  }
}

StoreOutcome Transfers::Ask(const std::function<void(Ends&, AtEnd)>& begin, uint64_t timeout_us) {
  Ends ends(*this);
  std::optional<StoreOutcome> outcome;
  begin(ends, [&](const StoreCompletion& end) { outcome = end.outcome; });
  Await(
      [&] {
        ends.Run();
        return outcome.has_value();
      },
      timeout_us);
  return outcome.value_or(StoreOutcome::kDeadline);
}

StoreOutcome Transfers::Erase(const tier::PublisherId& publisher) {
  return Ask([&](Ends& ends, AtEnd at_end) {
    const auto erase = [&](tier::Store& store, uint64_t tag) {
      store.Erase(publisher, store.EpochOf(publisher) + 1, tag);
    };
    Begin(erase, ends, std::move(at_end));
  });
}

void Transfers::FlushAll(Ends& ends, AtEnd at_end) {
  {
    MutexLock lock(mutex_);
    flushes_.emplace(next_tag_++,
                     Request{.ends = &ends, .begin = FlushStore, .at_end = std::move(at_end)});
    ++flushes_waiting_;
  }
  Wake();
}

StoreOutcome Transfers::FlushAll(uint64_t timeout_us) {
  const auto flush = [&](Ends& ends, AtEnd at_end) { FlushAll(ends, std::move(at_end)); };
  const StoreOutcome outcome = Ask(flush, timeout_us);
  // The thread may not have come to them yet.
  Walk walk(*this);
  while (Worker* const worker = walk.Next()) worker->TakeEnds();
  return outcome;
}

// What was to be written before the flush has been given to the store when nothing waits any more.
bool Transfers::StartFlushes() {
  if (flushes_waiting_ == 0) return false;
  uint64_t last = 0;
  {
    MutexLock lock(mutex_);
    if (flushes_.empty()) return false;
    last = flushes_.rbegin()->first;
  }
  background_after_us_ =
      std::min<uint64_t>(background_after_us_, clock_.NowMicros() + kBusyPauseUs);
  {
    Walk walk(*this);
    while (Worker* const worker = walk.Next()) {
      if (!worker->HasWaiting() || Planted(Canary::kFlushEarly)) continue;
      if (!MayWrite()) Hurry();
      return false;
    }
  }
  MutexLock lock(mutex_);
  while (!flushes_.empty() && flushes_.begin()->first <= last) {
    new_.insert(flushes_.extract(flushes_.begin()));
    --flushes_waiting_;
  }
  return true;
}

}  // namespace quire::transfer
