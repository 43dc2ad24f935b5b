// A cold store whose directory says nothing about what is in it: records go down sealed and under
// other names, and their keys go first when their tenant is erased (docs/encryption.md).
#ifndef QUIRE_TIER_SEALED_STORE_H_
#define QUIRE_TIER_SEALED_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "quire/store.h"
#include "tier/cold.h"
#include "tier/record_seal.h"
#include "tier/store.h"

namespace quire::tier {

class SealedStore final : public Store {
 public:
  /// Opens the cold store in a directory with the keys of its caller, or makes one.
  ///
  /// Errors: as ColdStore::Open, with keys
  static Result<std::unique_ptr<SealedStore>> Open(const ColdOptions& options, Files& files,
                                                   const Clock& clock, const StoreKeys& keys);

  void Put(std::span<const PutRequest> requests) override;
  void Find(std::span<const Digest> keys, std::span<Presence> out) const override;
  void Touch(std::span<const RecordUse> uses, std::span<Presence> out) override;
  std::vector<RecordRoot> RootsOf(const PublisherId& publisher) const override;
  void SetLimits(const PublisherLimits& limits) override;
  uint64_t FitRecords(uint64_t record_bytes) override;
  void Get(std::span<const LoadRequest> loads, uint64_t deadline_us) override;
  void Cancel(uint64_t tag) override { cold_->Cancel(tag); }
  void Erase(const PublisherId& publisher, uint64_t epoch, uint64_t tag) override;
  uint64_t EpochOf(const PublisherId& publisher) const override;
  void Remove(const Digest& key, uint64_t tag) override;
  /// Of a record of at most 63 sections whose payload fills its pages: less a page than it takes.
  std::optional<uint64_t> RecordBytesOf(const Digest& key) const override;
  void Flush(uint64_t tag) override;
  void Tick(std::vector<StoreCompletion>& done, uint64_t wait_us) override;
  StoreStats Stats() const override { return cold_->Stats(); }
  PublisherUsage UsageOf(const PublisherId& publisher) const override;

  ColdStore& cold() { return *cold_; }
  keys::KeyRing& keys() { return keys_; }

  /// A new data key for each owner. What was written before is sealed anew in the background, or
  /// goes with its segment: then its key goes.
  ///
  /// Errors: kNoSpace, kIo
  Result<void> RenewKeys();
  /// Returns when all old keys have gone. `progress`: told the records done, of how many.
  ///
  /// Errors: kIo it does not go on
  Result<void> FinishRenewal(const std::function<void(uint64_t, uint64_t)>& progress);

 private:
  explicit SealedStore(std::unique_ptr<ColdStore> cold, const Clock& clock);
  void FinishErasures();
  void RetireKeys();
  bool HasOldKeys() const;
  Result<void> Destroy(const PublisherId& name);

  const std::unique_ptr<ColdStore> cold_;
  keys::KeyRing& keys_;  // of the cold store
  const Clock& clock_;
  // By tag: what loads point to until they end.
  std::map<uint64_t, std::unique_ptr<SealedRecord>> loads_;
  std::set<uint64_t> flushes_;  // tags
  std::set<uint64_t> failed_;   // tags of erasures whose keys are not gone for good yet
  std::vector<StoreCompletion> refused_;
  uint64_t save_us_ = 0;    // keys that could not be written are tried again then
  uint64_t retire_us_ = 0;  // old keys are looked at then
  bool warned_ = false;
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_SEALED_STORE_H_
