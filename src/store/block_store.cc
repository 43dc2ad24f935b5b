// The batches that callers hand to a BlockStore.
#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "base/mutex.h"
#include "env/clock.h"
#include "env/event.h"
#include "quire/store.h"
#include "store/engine.h"

namespace quire {
namespace {

using store::BlockEngine;
using store::Request;
using store::RequestKind;

struct Batch {
  std::vector<Request> requests;
  BlockBatch end;
  size_t left = 0;
  bool ended = false;
  uint32_t waiters = 0;
};

}  // namespace

std::string_view BlockOutcomeName(BlockOutcome outcome) {
  switch (outcome) {
    case BlockOutcome::kOk: return "ok";
    case BlockOutcome::kPresent: return "present";
    case BlockOutcome::kAbsent: return "absent";
    case BlockOutcome::kDamaged: return "damaged";
    case BlockOutcome::kTooSmall: return "too_small";
    case BlockOutcome::kTooLarge: return "too_large";
    case BlockOutcome::kNoSpace: return "no_space";
    case BlockOutcome::kIo: return "io";
    case BlockOutcome::kClosed: return "closed";
  }
  return "unknown";
}

class BlockStore::Impl final : private transfer::Worker {
 public:
  Impl(std::unique_ptr<Files> files, std::unique_ptr<BlockEngine> engine,
       std::unique_ptr<Event> event)
      : event_(std::move(event)), files_(std::move(files)), engine_(std::move(engine)) {}

  Result<void> Start() {
    try {
      transfer::Transfers& transfers = Engine().transfers();
      transfers.Attach(*this);
      transfers.Start();
    } catch (const std::exception& error) {
      return Fail(ErrorCode::kIo, error.what());
    }
    return {};
  }

  /// Hands in a batch of `count` requests that `fill` completes, given their identity.
  uint64_t Submit(RequestKind kind, std::string_view name_space, size_t count,
                  const std::function<std::string_view(Request&, size_t)>& fill) {
    auto batch = std::make_unique<Batch>();
    batch->requests.resize(kind == RequestKind::kFlush ? 1 : count);
    batch->end.results.resize(count);
    batch->left = batch->requests.size();
    const uint64_t epoch = EpochOf(name_space);
    for (size_t i = 0; i < batch->requests.size(); ++i) {
      Request& request = batch->requests[i];
      request.kind = kind;
      request.owner = batch.get();
      request.index = static_cast<uint32_t>(i);
      if (count > 0) request.identity = store::IdentityOf(name_space, epoch, fill(request, i));
    }
    MutexLock lock(mutex_);
    submitted_.reserve(submitted_.size() + 1);
    Batch& entered = Enter(std::move(batch));
    if (closing_) {
      for (BlockResult& result : entered.end.results) result.outcome = BlockOutcome::kClosed;
      entered.left = 0;
    }
    if (entered.left == 0) {
      EndBatch(entered);
    } else {
      HandIn(entered);
    }
    return entered.end.id;
  }

  uint64_t Exists(std::string_view name_space, std::span<const std::string_view> keys) {
    auto batch = std::make_unique<Batch>();
    batch->end.results.resize(keys.size(), {.outcome = BlockOutcome::kAbsent});
    const uint64_t epoch = EpochOf(name_space);
    std::vector<Digest> digests;
    for (const std::string_view key : keys) {
      digests.push_back(store::IdentityOf(name_space, epoch, key).key);
    }
    MutexLock lock(mutex_);
    for (size_t i = 0; i < keys.size(); ++i) {
      BlockResult& result = batch->end.results[i];
      if (engine_ == nullptr) {
        result.outcome = BlockOutcome::kClosed;
      } else if (const auto bytes = engine_->Find(digests[i])) {
        result = {.outcome = BlockOutcome::kOk, .bytes = *bytes};
      }
    }
    Batch& entered = Enter(std::move(batch));
    EndBatch(entered);
    return entered.end.id;
  }

  Result<BlockBatch> Wait(uint64_t id, uint64_t timeout_us) {
    const Clock& clock = SystemClock();
    const uint64_t begin_us = clock.NowMicros();
    MutexLock lock(mutex_);
    while (true) {
      const auto found = batches_.find(id);
      if (found == batches_.end()) {
        return Fail(ErrorCode::kNotFound, "store: no batch " + std::to_string(id) + ", or taken");
      }
      if (found->second->ended) {
        std::erase(ended_, id);
        return Take(found);
      }
      const uint64_t waited_us = clock.NowMicros() - begin_us;
      if (waited_us >= timeout_us) {
        return Fail(ErrorCode::kDeadline,
                    "store: batch " + std::to_string(id) + " did not end in time");
      }
      ++found->second->waiters;
      some_ended_.WaitFor(mutex_, timeout_us - waited_us);
      const auto still = batches_.find(id);
      if (still != batches_.end()) --still->second->waiters;
    }
  }

  std::vector<BlockBatch> Drain() {
    std::vector<BlockBatch> drained;
    MutexLock lock(mutex_);
    event_->Clear();
    std::erase_if(ended_, [&](uint64_t id) QUIRE_REQUIRES(mutex_) {
      const auto found = batches_.find(id);
      if (found->second->waiters > 0) return false;
      drained.push_back(Take(found));
      return true;
    });
    return drained;
  }

  int event_fd() const { return event_->descriptor(); }

  void Close() {
    BlockEngine* engine = nullptr;
    {
      MutexLock lock(mutex_);
      if (closing_) {
        while (engine_ != nullptr) some_ended_.Wait(mutex_);
        return;
      }
      closing_ = true;
      engine = engine_.get();
      last_.requests.resize(1);  // a Flush
      last_.requests[0].owner = &last_;
      last_.left = 1;
      HandIn(last_);
      while (in_hand_ > 0) some_ended_.Wait(mutex_);
    }
    engine->transfers().Stop();
    MutexLock lock(mutex_);
    last_stats_ = StatsLocked();
    engine_.reset();
    files_.reset();
    some_ended_.NotifyAll();
  }

  BlockStoreStats stats() const {
    MutexLock lock(mutex_);
    return engine_ == nullptr ? last_stats_ : StatsLocked();
  }

 private:
  using Batches = std::map<uint64_t, std::unique_ptr<Batch>>;

  uint64_t EpochOf(std::string_view name_space) const {
    const tier::PublisherId publisher = store::PublisherOf(name_space);
    MutexLock lock(mutex_);
    return engine_ == nullptr ? 0 : engine_->EpochOf(publisher);
  }

  Batch& Enter(std::unique_ptr<Batch> batch) QUIRE_REQUIRES(mutex_) {
    batch->end.id = ++batches_made_;
    return *batches_.emplace(batch->end.id, std::move(batch)).first->second;
  }
  BlockBatch Take(Batches::iterator batch) QUIRE_REQUIRES(mutex_) {
    BlockBatch end = std::move(batch->second->end);
    batches_.erase(batch);
    return end;
  }

  void EndBatch(Batch& batch) QUIRE_REQUIRES(mutex_) {
    batch.ended = true;
    ended_.push_back(batch.end.id);
    if (batch.waiters > 0) {
      some_ended_.NotifyAll();
    } else {
      event_->Set();
    }
  }

  void Count(RequestKind kind, BlockOutcome outcome) QUIRE_REQUIRES(mutex_) {
    const bool ok = outcome == BlockOutcome::kOk;
    const bool missing = outcome == BlockOutcome::kAbsent || outcome == BlockOutcome::kDamaged;
    switch (kind) {
      case RequestKind::kPut:
        ++(ok                                  ? counts_.puts
           : outcome == BlockOutcome::kPresent ? counts_.puts_present
                                               : counts_.puts_failed);
        break;
      case RequestKind::kGet:
        ++(ok ? counts_.hits : missing ? counts_.misses : counts_.gets_failed);
        break;
      case RequestKind::kRemove: counts_.removed += ok ? 1 : 0; break;
      case RequestKind::kFlush: break;
    }
  }

  BlockStoreStats StatsLocked() const QUIRE_REQUIRES(mutex_) {
    const tier::StoreStats cold = engine_->stats();
    BlockStoreStats stats = counts_;
    stats.blocks = cold.records;
    stats.bytes = cold.bytes;
    stats.bytes_cap = cold.bytes_cap;
    stats.bytes_live = cold.bytes_live;
    stats.block_bytes_max = engine_->block_bytes_max();
    stats.memory_bytes = cold.memory_bytes;
    stats.bytes_written = cold.bytes_written;
    stats.bytes_read = cold.bytes_read;
    stats.evicted = cold.evicted;
    stats.damaged = cold.damaged;
    stats.disk_full = cold.disk_full;
    stats.puts_lost = engine_->puts_lost();
    stats.memory_hits = engine_->memory_hits();
    return stats;
  }

  /// There is room for it in `submitted_`.
  void HandIn(Batch& batch) QUIRE_REQUIRES(mutex_) {
    submitted_.push_back(&batch);
    ++in_hand_;
    engine_->transfers().Wake();
  }

  // The thread's. The engine is its own until that stops, but for what any thread may ask.

  Turned Turn() noexcept override {  // what was taken must not be lost
    BlockEngine& engine = Engine();
    taken_.clear();
    {
      MutexLock lock(mutex_);
      taken_.swap(submitted_);
    }
    bool changes_more = false;
    for (Batch* batch : taken_) {
      for (Request& request : batch->requests) {
        changes_more = changes_more || request.kind == RequestKind::kPut ||
                       request.kind == RequestKind::kRemove;
        engine.Begin(request);
      }
    }
    // Nothing follows what was put or removed, so nothing is gained by waiting for the commit
    // interval. What comes while this commit is written is part of the next one.
    if (has_changes_ && !changes_more) engine.transfers().Hurry();
    has_changes_ = changes_more;
    ended_now_.clear();
    Turned turned = engine.Turn(ended_now_);
    if (!ended_now_.empty()) EndRequests(ended_now_);
    turned.worked = turned.worked || !taken_.empty();
    return turned;
  }
  bool HasWaiting() override { return Engine().has_waiting(); }

  BlockEngine& Engine() {
    MutexLock lock(mutex_);
    return *engine_;
  }

  void EndRequests(std::span<Request* const> ended) {
    MutexLock lock(mutex_);
    for (const Request* request : ended) {
      Batch& batch = *static_cast<Batch*>(request->owner);
      Count(request->kind, request->result.outcome);
      if (request->kind != RequestKind::kFlush) {
        batch.end.results[request->index] = request->result;
      }
      if (--batch.left > 0) continue;
      if (&batch != &last_) EndBatch(batch);
      if (--in_hand_ == 0 && closing_) some_ended_.NotifyAll();
    }
  }

  const std::unique_ptr<Event> event_;
  mutable Mutex mutex_{LockRank::kBlockStore};
  CondVar some_ended_;
  std::unique_ptr<Files> files_;
  std::unique_ptr<BlockEngine> engine_ QUIRE_GUARDED_BY(mutex_);  // null: closed
  Batches batches_ QUIRE_GUARDED_BY(mutex_);
  std::vector<Batch*> submitted_ QUIRE_GUARDED_BY(mutex_);
  std::deque<uint64_t> ended_ QUIRE_GUARDED_BY(mutex_);  // and not taken
  uint64_t batches_made_ QUIRE_GUARDED_BY(mutex_) = 0;
  uint64_t in_hand_ QUIRE_GUARDED_BY(mutex_) = 0;  // batches that were submitted, and did not end
  bool closing_ QUIRE_GUARDED_BY(mutex_) = false;
  Batch last_ QUIRE_GUARDED_BY(mutex_);  // of Close
  BlockStoreStats counts_ QUIRE_GUARDED_BY(mutex_);
  BlockStoreStats last_stats_ QUIRE_GUARDED_BY(mutex_);

  std::vector<Batch*> taken_;  // the thread's
  bool has_changes_ = false;   // that the store was not told to commit
  std::vector<Request*> ended_now_;
};

Result<std::unique_ptr<BlockStore>> BlockStore::Open(const BlockStoreOptions& options) {
  QUIRE_TRY(store::ToColdOptions(options));
  QUIRE_ASSIGN(auto event, Event::Create());
  QUIRE_ASSIGN(auto files, MakeFiles({.depth = options.disk_requests_max}));
  QUIRE_ASSIGN(auto engine, BlockEngine::Open(options, *files, SystemClock()));
  auto impl = std::make_unique<Impl>(std::move(files), std::move(engine), std::move(event));
  QUIRE_TRY(impl->Start());
  return std::unique_ptr<BlockStore>(new BlockStore(std::move(impl)));
}

BlockStore::BlockStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BlockStore::~BlockStore() { Close(); }

uint64_t BlockStore::Put(std::string_view name_space, std::span<const BlockPut> blocks) {
  return impl_->Submit(RequestKind::kPut, name_space, blocks.size(),
                       [&](Request& request, size_t i) {
                         request.data = blocks[i].data;
                         return blocks[i].key;
                       });
}

uint64_t BlockStore::Get(std::string_view name_space, std::span<const BlockGet> blocks) {
  return impl_->Submit(RequestKind::kGet, name_space, blocks.size(),
                       [&](Request& request, size_t i) {
                         request.out = blocks[i].out;
                         request.last_page = std::make_unique<store::LastPage>();
                         return blocks[i].key;
                       });
}

uint64_t BlockStore::Exists(std::string_view name_space, std::span<const std::string_view> keys) {
  return impl_->Exists(name_space, keys);
}

uint64_t BlockStore::Remove(std::string_view name_space, std::span<const std::string_view> keys) {
  return impl_->Submit(RequestKind::kRemove, name_space, keys.size(),
                       [&](Request&, size_t i) { return keys[i]; });
}

uint64_t BlockStore::Flush() {
  return impl_->Submit(RequestKind::kFlush, "", 0, [](Request&, size_t) { return ""; });
}

Result<BlockBatch> BlockStore::Wait(uint64_t batch, uint64_t timeout_us) {
  return impl_->Wait(batch, timeout_us);
}

std::vector<BlockBatch> BlockStore::Drain() { return impl_->Drain(); }
int BlockStore::event_fd() const { return impl_->event_fd(); }
void BlockStore::Close() { impl_->Close(); }
BlockStoreStats BlockStore::stats() const { return impl_->stats(); }

}  // namespace quire
