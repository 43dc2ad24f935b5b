// Removing single records from a cold store: at once for whoever looks, and for good when a void
// (docs/format/record.md) lies where the record's header was.
#ifndef QUIRE_TIER_COLD_REMOVER_H_
#define QUIRE_TIER_COLD_REMOVER_H_

#include <cstdint>
#include <vector>

#include "tier/cold_state.h"
#include "tier/cold_writer.h"

namespace quire::tier {

class ColdRemover {
 public:
  /// `writer` says which records are not durable yet: their removal waits until they are.
  ColdRemover(ColdState& state, const ColdWriter& writer);

  void Remove(const Digest& key, uint64_t tag);
  void Tick();
  void OnIo(uint32_t number, const IoCompletion& completion);

  /// True when every removal ended.
  bool idle() const { return waiting_.empty() && batch_.empty(); }

 private:
  static constexpr uint32_t kBatchMax = 64;  // headers that are overwritten at the same time

  struct Waiting {
    KeyPrefix key{};
    uint64_t tag = 0;
  };
  struct Removal {
    uint64_t tag = 0;
    uint32_t segment = 0;
    bool failed = false;
  };

  void StartBatch();
  void Overwrite(const ColdEntry& entry, uint64_t tag);
  void SyncSegments();
  void EndBatch();

  ColdState& state_;
  const ColdWriter& writer_;
  Staging pages_;  // [kBatchMax]
  std::vector<Waiting> waiting_;
  std::vector<Removal> batch_;  // being made durable
  uint32_t requests_ = 0;       // of the batch, in flight
  bool syncing_ = false;
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_COLD_REMOVER_H_
