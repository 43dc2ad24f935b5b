// Records as sealed objects of a service: reads, writes, what is known of keys, and when the
// service is left alone.
#ifndef QUIRE_REMOTE_REMOTE_RECORDS_H_
#define QUIRE_REMOTE_REMOTE_RECORDS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/prng.h"
#include "quire/disk_store.h"
#include "quire/env.h"
#include "remote/breaker.h"
#include "remote/fleet_epochs.h"
#include "remote/objects.h"
#include "remote/presence.h"
#include "remote/seal.h"
#include "tier/store.h"

namespace quire::remote {

struct RemoteOptions {
  uint64_t request_us = 2'000'000;   // a read or write with its retries ends within this
  uint64_t absent_us = 2'000'000;    // that a key is absent is remembered so long
  uint64_t present_us = 60'000'000;  // and that it is there
  uint64_t writing_bytes_max = uint64_t{64} << 20;  // sealed, and on their way
  uint32_t tries = 3;                               // of one request
  size_t keys_max = 128 << 10;                      // that something is remembered of
  uint64_t seed = 1;                                // of what is drawn for pauses
  FleetEpochTimes epochs{};
};

/// What is under way, for those that look often.
struct RemoteUse {
  bool may_ask = false;
  uint64_t reading = 0;  // records
  uint64_t writing = 0;  //
};

/// Threads:  Find, EpochOf, use, stats any; the rest one at a time
/// Lifetime: the clock must outlive it; what requests point to, as tier::Store says
class RemoteRecords {
 public:
  RemoteRecords(std::unique_ptr<Objects> objects, const FleetKey& fleet,
                const RemoteOptions& options, const Clock& clock);
  ~RemoteRecords();
  RemoteRecords(const RemoteRecords&) = delete;
  RemoteRecords& operator=(const RemoteRecords&) = delete;

  /// Asks until the service has answered, at most so long: whether it has.
  bool Await(uint64_t timeout_us);

  /// What is known without asking: kAbsent, where nothing could be asked just now.
  tier::Presence Find(const Digest& key) const;
  uint64_t EpochOf(const tier::PublisherId& publisher) const { return epochs_.EpochOf(publisher); }
  RemoteUse use() const;
  RemoteStats stats() const;
  std::string where() const { return objects_->where(); }

  /// As tier::Store::Get, of one. What is unknown is asked for by its first block alone: what
  /// continues it waits for that answer.
  void Get(const tier::LoadRequest& load, uint64_t deadline_us);
  void Cancel(uint64_t tag);
  /// Seals and sends. kBusy: too much is on its way.
  /// Ends: as tier::Store::Put; kIo also where nothing is asked just now
  void Put(const tier::PutRequest& request);
  /// A record that is not put again: it was busy.
  void CountSkipped();
  void Erase(const tier::PublisherId& publisher, uint64_t epoch, uint64_t tag);
  void Tell(const tier::PublisherId& publisher, uint64_t epoch) { epochs_.Tell(publisher, epoch); }
  void Remove(const Digest& key, uint64_t tag);
  std::vector<std::pair<tier::PublisherId, uint64_t>> TakeLearned() {
    return epochs_.TakeLearned();
  }
  /// For a flush, which waits for the writes of before it alone.
  uint64_t write_mark() const { return next_id_; }
  bool HasWritesBefore(uint64_t mark) const;

  void Tick(std::vector<tier::StoreCompletion>& done, uint64_t wait_us);

 private:
  /// One record that is read, written or removed, until it has ended.
  struct Job {
    ObjectVerb verb = ObjectVerb::kGet;
    uint64_t caller_tag = 0;
    tier::LoadRequest load{};
    Digest key{};
    tier::PublisherId publisher{};
    uint64_t begin_us = 0;
    uint64_t deadline_us = 0;
    uint64_t caller_deadline_us = ~uint64_t{0};
    uint64_t retry_us = 0;                   // 0: it is on its way
    uint32_t tries = 0;                      //
    uint32_t pieces = 0;                     // replies that are to come
    uint64_t bytes = 0;                      // of a write
    std::vector<std::byte> object{};         // of a write that is not on its way
    std::shared_ptr<SealedReader> reader{};  // of a read that is on its way
    bool came = false;                       // all of it: it waits for fresh epochs
    std::optional<Digest> waits_for{};  // the key whose answer tells whether this is worth asking
  };
  using Jobs = std::map<uint64_t, Job>;

  void Send(uint64_t id, Job& job);
  void SendRead(uint64_t id, Job& job);
  void OnReply(ObjectReply& reply, std::vector<tier::StoreCompletion>& done);
  void OnRead(Jobs::iterator at, ObjectReply& reply);
  void OnWritten(Jobs::iterator at, ObjectReply& reply);
  void OnUnavailable(Jobs::iterator at, ObjectReply& reply);
  void EndRead(Jobs::iterator at, tier::StoreOutcome outcome,
               tier::RecordMiss miss = tier::RecordMiss::kNone);
  void End(Jobs::iterator at, tier::StoreOutcome outcome,
           tier::RecordMiss miss = tier::RecordMiss::kNone);
  void OpenRead(Jobs::iterator at);
  tier::RecordMiss WhyNot(const Job& job) const;
  void EndWaiting(const Digest& key, tier::StoreOutcome outcome);
  void Note(const Digest& key, tier::Presence presence);
  void Succeeded();
  void Failed(ObjectOutcome outcome, const std::string& detail);
  void AskEpochs();
  void UseIncarnation();
  void PassTime();
  bool MayAsk() const { return breaker_.MayAsk() && seal_.has_value(); }

  const std::unique_ptr<Objects> objects_;
  const FleetKeys keys_;
  const RemoteOptions options_;
  const Clock& clock_;
  FleetEpochs epochs_;
  std::optional<Seal> seal_;  // once the incarnation is known
  Incarnation incarnation_{};
  Breaker breaker_;
  Prng prng_;
  Jobs jobs_;                            // by id
  std::map<uint64_t, uint64_t> pieces_;  // of requests on their way: the id of their job
  // Keys that are being read, and the one whose answer they wait for: itself, or none.
  std::map<Digest, std::optional<Digest>> asked_;
  uint64_t next_id_ = 1;
  uint64_t writing_bytes_ = 0;
  std::vector<tier::StoreCompletion> ended_;

  mutable Mutex mutex_{LockRank::kLeaf};
  PresenceMemory presence_ QUIRE_GUARDED_BY(mutex_);
  RemoteStats stats_ QUIRE_GUARDED_BY(mutex_);
  bool may_ask_ QUIRE_GUARDED_BY(mutex_) = false;
};

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_REMOTE_RECORDS_H_
