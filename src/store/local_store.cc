// A BlockStore on a directory that this process owns.
#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "base/mutex.h"
#include "store/engine.h"
#include "store/impl.h"

namespace quire::store {
namespace {

struct Work {  // a batch that is under way
  std::vector<Request> requests;
  std::vector<BlockResult> results;
  uint64_t id = 0;
  size_t left = 0;
};

class LocalStore final : public BlockStore::Impl, private transfer::Worker {
 public:
  LocalStore(std::unique_ptr<Files> files, std::unique_ptr<BlockEngine> engine,
             std::unique_ptr<Event> event)
      : Impl(std::move(event)), files_(std::move(files)), engine_(std::move(engine)) {}

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

  uint64_t Put(std::string_view name_space, std::span<const BlockPut> blocks) override {
    return Submit(RequestKind::kPut, name_space, blocks.size(), [&](Request& request, size_t i) {
      request.data = blocks[i].data;
      return blocks[i].key;
    });
  }

  uint64_t Get(std::string_view name_space, std::span<const BlockGet> blocks) override {
    return Submit(RequestKind::kGet, name_space, blocks.size(), [&](Request& request, size_t i) {
      request.out = blocks[i].out;
      request.last_page = std::make_unique<LastPage>();
      return blocks[i].key;
    });
  }

  uint64_t Exists(std::string_view name_space, std::span<const std::string_view> keys) override {
    std::vector<BlockResult> results(keys.size(), {.outcome = BlockOutcome::kAbsent});
    const uint64_t epoch = EpochOf(name_space);
    std::vector<Digest> digests;
    for (const std::string_view key : keys) {
      digests.push_back(IdentityOf(name_space, epoch, key).key);
    }
    const uint64_t id = batches_.Enter();
    MutexLock lock(mutex_);
    for (size_t i = 0; i < keys.size(); ++i) {
      if (engine_ == nullptr) {
        results[i].outcome = BlockOutcome::kClosed;
      } else if (const auto bytes = engine_->Find(digests[i])) {
        results[i] = {.outcome = BlockOutcome::kOk, .bytes = *bytes};
      }
    }
    batches_.End(id, std::move(results));
    return id;
  }

  uint64_t Remove(std::string_view name_space, std::span<const std::string_view> keys) override {
    return Submit(RequestKind::kRemove, name_space, keys.size(),
                  [&](Request&, size_t i) { return keys[i]; });
  }

  uint64_t Erase(std::string_view name_space) override {
    return Submit(RequestKind::kErase, name_space, 1, [](Request&, size_t) { return ""; });
  }

  uint64_t Flush() override {
    return Submit(RequestKind::kFlush, "", 0, [](Request&, size_t) { return ""; });
  }

  Result<void> SetLimits(std::string_view name_space, const NamespaceLimits& limits) override {
    const tier::PublisherLimits own = {.publisher = PublisherOf(name_space),
                                       .bytes_quota = limits.bytes_quota,
                                       .bytes_floor = limits.bytes_floor};
    MutexLock lock(mutex_);
    if (engine_ == nullptr) return Fail(ErrorCode::kInvalidArgument, "store: it is closed");
    engine_->transfers().SetLimits(own);
    return {};
  }

  Result<NamespaceUsage> Usage(std::string_view name_space) override {
    const tier::PublisherId publisher = PublisherOf(name_space);
    MutexLock lock(mutex_);
    if (engine_ == nullptr) return Fail(ErrorCode::kInvalidArgument, "store: it is closed");
    const tier::PublisherUsage usage = engine_->transfers().UsageOf(publisher);
    return NamespaceUsage{
        .blocks = usage.records, .bytes_live = usage.bytes_live, .bytes = usage.bytes};
  }

  void Close() override {
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

  BlockStoreStats stats() override {
    MutexLock lock(mutex_);
    return engine_ == nullptr ? last_stats_ : StatsLocked();
  }

 private:
  /// Hands in a batch of `count` requests that `fill` completes, given their identity.
  uint64_t Submit(RequestKind kind, std::string_view name_space, size_t count,
                  const std::function<std::string_view(Request&, size_t)>& fill) {
    auto work = std::make_unique<Work>();
    work->requests.resize(kind == RequestKind::kFlush ? 1 : count);
    work->results.resize(count);
    work->left = work->requests.size();
    const uint64_t epoch = EpochOf(name_space);
    for (size_t i = 0; i < work->requests.size(); ++i) {
      Request& request = work->requests[i];
      request.kind = kind;
      request.owner = work.get();
      request.index = static_cast<uint32_t>(i);
      if (count > 0) request.identity = IdentityOf(name_space, epoch, fill(request, i));
    }
    const uint64_t id = batches_.Enter();
    work->id = id;
    MutexLock lock(mutex_);
    if (closing_ || work->left == 0) {
      std::ranges::fill(work->results, BlockResult{.outcome = BlockOutcome::kClosed});
      batches_.End(id, std::move(work->results));
      return id;
    }
    HandIn(*work);
    under_way_.emplace(id, std::move(work));
    return id;
  }

  uint64_t EpochOf(std::string_view name_space) {
    const tier::PublisherId publisher = PublisherOf(name_space);
    MutexLock lock(mutex_);
    return engine_ == nullptr ? 0 : engine_->EpochOf(publisher);
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
      case RequestKind::kErase:
      case RequestKind::kFlush: break;
    }
  }

  BlockStoreStats StatsLocked() QUIRE_REQUIRES(mutex_) {
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

  void HandIn(Work& work) QUIRE_REQUIRES(mutex_) {
    submitted_.push_back(&work);
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
    for (Work* work : taken_) {
      for (Request& request : work->requests) {
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
      Work& work = *static_cast<Work*>(request->owner);
      Count(request->kind, request->result.outcome);
      if (request->kind != RequestKind::kFlush) work.results[request->index] = request->result;
      if (--work.left > 0) continue;
      if (&work != &last_) {
        batches_.End(work.id, std::move(work.results));
        under_way_.erase(work.id);
      }
      if (--in_hand_ == 0 && closing_) some_ended_.NotifyAll();
    }
  }

  Mutex mutex_{LockRank::kBlockStore};
  CondVar some_ended_;
  std::unique_ptr<Files> files_;
  std::unique_ptr<BlockEngine> engine_ QUIRE_GUARDED_BY(mutex_);  // null: closed
  std::map<uint64_t, std::unique_ptr<Work>> under_way_ QUIRE_GUARDED_BY(mutex_);
  std::vector<Work*> submitted_ QUIRE_GUARDED_BY(mutex_);
  uint64_t in_hand_ QUIRE_GUARDED_BY(mutex_) = 0;  // batches that were submitted, and did not end
  bool closing_ QUIRE_GUARDED_BY(mutex_) = false;
  Work last_ QUIRE_GUARDED_BY(mutex_);  // of Close
  BlockStoreStats counts_ QUIRE_GUARDED_BY(mutex_);
  BlockStoreStats last_stats_ QUIRE_GUARDED_BY(mutex_);

  std::vector<Work*> taken_;  // the thread's
  bool has_changes_ = false;  // that the store was not told to commit
  std::vector<Request*> ended_now_;
};

}  // namespace

Result<std::unique_ptr<BlockStore::Impl>> OpenDirectory(const BlockStoreOptions& options) {
  QUIRE_TRY(ToColdOptions(options));
  QUIRE_ASSIGN(auto event, Event::Create());
  QUIRE_ASSIGN(auto files, MakeFiles({.depth = options.disk_requests_max}));
  QUIRE_ASSIGN(auto engine, BlockEngine::Open(options, *files, SystemClock()));
  auto opened = std::make_unique<LocalStore>(std::move(files), std::move(engine), std::move(event));
  QUIRE_TRY(opened->Start());
  return opened;
}

}  // namespace quire::store
