// The remote tier: a service that many machines share, behind what this machine has itself.
#ifndef QUIRE_REMOTE_REMOTE_STORE_H_
#define QUIRE_REMOTE_REMOTE_STORE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "quire/disk_store.h"
#include "quire/env.h"
#include "remote/remote_records.h"
#include "tier/store.h"

namespace quire::remote {

/// A store that stands in front of a remote (it may be null), and the remote, as one store.
///
/// What a completion of Put says is what the store in front says; where there is none, what the
/// remote says. What the remote gives is put into the store in front. An epoch that either has
/// holds for both.
///
/// Threads: as Store
class RemoteStore final : public tier::Store {
 public:
  RemoteStore(std::unique_ptr<RemoteRecords> remote, std::unique_ptr<tier::Store> local,
              RemoteWrites writes);

  void Put(std::span<const tier::PutRequest> requests) override;
  void Find(std::span<const Digest> keys, std::span<tier::Presence> out) const override;
  std::vector<tier::RecordRoot> RootsOf(const tier::PublisherId& publisher) const override;
  void SetLimits(const tier::PublisherLimits& limits) override;
  uint64_t FitRecords(uint64_t record_bytes) override;
  void Touch(std::span<const tier::RecordUse> uses, std::span<tier::Presence> out) override;
  void Get(std::span<const tier::LoadRequest> loads, uint64_t deadline_us) override;
  void Cancel(uint64_t tag) override;
  void Erase(const tier::PublisherId& publisher, uint64_t epoch, uint64_t tag) override;
  void Remove(const Digest& key, uint64_t tag) override;
  std::optional<uint64_t> RecordBytesOf(const Digest& key) const override;
  uint64_t EpochOf(const tier::PublisherId& publisher) const override;
  void Flush(uint64_t tag) override;
  void Tick(std::vector<tier::StoreCompletion>& done, uint64_t wait_us) override;
  /// Of the store in front, with what is under way at the remote.
  tier::StoreStats Stats() const override;
  tier::PublisherUsage UsageOf(const tier::PublisherId& publisher) const override;

  RemoteStats remote_stats() const { return remote_->stats(); }

 private:
  struct Load {
    tier::LoadRequest request{};
    uint64_t deadline_us = 0;
  };
  /// What two stores are asked, and the worse end of both.
  struct Both {
    uint32_t left = 2;
    tier::StoreOutcome outcome = tier::StoreOutcome::kOk;
    bool any_ok = false;
    bool removes = false;
  };

  void PutInRemote(const tier::PutRequest& request);
  void PutInLocal(const tier::LoadRequest& load);
  bool WantsWritten(const Digest& key);
  void EndBoth(tier::StoreCompletion end, std::vector<tier::StoreCompletion>& done);
  void OnLocal(const tier::StoreCompletion& end, std::vector<tier::StoreCompletion>& done);
  void OnRemote(const tier::StoreCompletion& end, std::vector<tier::StoreCompletion>& done);
  void Learn();

  const std::unique_ptr<RemoteRecords> remote_;
  const std::unique_ptr<tier::Store> local_;  // null: none
  const RemoteWrites writes_;

  std::map<uint64_t, Load> local_loads_;   // by tag: what the remote is asked next
  std::map<uint64_t, Load> remote_loads_;  // by tag: what the local store is given
  std::map<uint64_t, Both> both_;          // by tag
  // By tag, in order: each waits for the remote's writes before its mark.
  std::deque<std::pair<uint64_t, uint64_t>> flushes_;
  // Used again, and not in the remote: written when they are offered, the oldest forgotten first.
  std::unordered_set<uint64_t> reused_;
  std::deque<uint64_t> reused_order_;
};

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_REMOTE_STORE_H_
