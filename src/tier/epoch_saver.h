// Making the erase epochs of a cold store durable, in two copies, one after the other.
#ifndef QUIRE_TIER_EPOCH_SAVER_H_
#define QUIRE_TIER_EPOCH_SAVER_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "tier/cold_state.h"
#include "tier/epochs.h"

namespace quire::tier {

/// A copy of the epochs that may be gone on with.
struct EpochFile {
  FileId file{};
  uint64_t version = 0;   // that it holds
  uint64_t bytes = 0;     // where the next change goes
  uint64_t changes = 0;   // behind its table
  uint32_t checksum = 0;  // that the next change goes on from
};

class EpochSaver {
 public:
  /// Of its requests, among those of the eraser.
  static constexpr uint32_t kIoNumber = 0;

  /// `copies`: nothing for one that is to be replaced.
  EpochSaver(ColdState& state, const std::array<std::optional<EpochFile>, 2>& copies)
      : state_(state), copies_(copies) {}

  /// Ends the tag when all epochs that are served now, as far as they are kept, are durable.
  void Add(uint64_t tag) { waiting_.push_back(tag); }
  void Tick(uint64_t now_us);
  void OnIo(const IoCompletion& completion);
  /// Closes the copies; nothing may be in flight.
  void CloseFiles();

  /// True when both copies have everything, or are damaged: then `quire store repair` writes them.
  bool idle() const;
  /// Saves that failed so far; each is tried again.
  uint64_t failures() const { return failures_; }

 private:
  void Start();
  void Go();
  bool Replace(size_t copy);
  void Append(size_t copy);
  void End(StoreOutcome outcome);

  ColdState& state_;
  std::array<std::optional<EpochFile>, 2> copies_;
  std::vector<uint64_t> waiting_;  // tags that the save under way does not hold
  std::vector<uint64_t> saving_;   // tags of those that it does
  bool is_saving_ = false;
  uint64_t target_ = 0;                 // the version that is being saved
  size_t appending_ = 0;                // the copy that is written to
  bool syncing_ = false;                // it was written, and is being synced
  std::vector<std::byte> image_;        // what is written
  EpochFile after_{};                   // the copy when that is durable
  std::array<bool, 2> was_replaced_{};  // by this save
  uint64_t failures_ = 0;
  uint64_t retry_us_ = 0;    // a save that failed is tried again then
  uint64_t replace_us_ = 0;  // and a missing copy, when there is nothing to save
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_EPOCH_SAVER_H_
