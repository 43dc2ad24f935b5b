// Keeps one machine's view of the fleet's erase epochs, and raises them.
#ifndef QUIRE_REMOTE_FLEET_EPOCHS_H_
#define QUIRE_REMOTE_FLEET_EPOCHS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "remote/epochs.h"
#include "remote/objects.h"
#include "tier/store.h"

namespace quire::remote {

struct FleetEpochTimes {
  uint64_t poll_us = 500'000;
  // What was read is believed for so long, counted from the moment it was asked for. An erasure
  // ends so long after it was written: then no machine believes an older table.
  uint64_t lease_us = 2'000'000;
  uint64_t erase_us = 15'000'000;  // an erasure that is not through by then ends kIo, and goes on
};

/// The table of the fleet as far as this machine knows it. It asks for nothing itself: its owner
/// sends what Next says and hands over the reply.
///
/// An epoch that was known once never falls, whatever is read: a machine that finds a table
/// without it writes it again.
///
/// Threads: EpochOf any; the rest one at a time
class FleetEpochs {
 public:
  FleetEpochs(const FleetKeys& keys, const FleetEpochTimes& times) : keys_(keys), times_(times) {}

  uint64_t EpochOf(const tier::PublisherId& publisher) const;
  /// The table was read or made once. What it says may be old: IsFresh.
  bool is_known() const { return table_.has_value(); }
  const Incarnation& incarnation() const { return table_->incarnation; }
  bool IsFresh(uint64_t now_us) const { return is_known() && now_us < lease_end_us_; }

  /// From now on everything of before is erased, here at once. With a `tag` the end comes out of
  /// TakeEnded: kOk, kIo.
  void Erase(const tier::PublisherId& publisher, uint64_t epoch, uint64_t tag, uint64_t now_us);
  /// This epoch was made durable elsewhere; the fleet is to know.
  void Tell(const tier::PublisherId& publisher, uint64_t epoch);

  /// What to ask now, if anything. `may_ask` false: nothing but a probe, where `may_probe`.
  std::optional<ObjectRequest> Next(uint64_t now_us, bool may_ask, bool may_probe);
  /// How it went: kOk; kUnavailable; kRefused, also of a table that this fleet did not write.
  ObjectOutcome OnReply(const ObjectReply& reply, uint64_t now_us);

  void TakeEnded(std::vector<tier::StoreCompletion>& ended, uint64_t now_us);
  /// Epochs that were raised by others since the last call.
  std::vector<std::pair<tier::PublisherId, uint64_t>> TakeLearned() {
    return std::exchange(learned_, {});
  }

 private:
  struct Raise {
    tier::PublisherId publisher{};
    uint64_t epoch = 0;
    uint64_t tag = 0;           // 0: no caller waits
    uint64_t begun_us = 0;      //
    uint64_t written_us = 0;    // 0: not yet
    uint64_t confirmed_us = 0;  // a read that began later has it
  };
  enum class Asking : uint8_t { kNothing, kRead, kSwap };

  ObjectOutcome OnRead(const ObjectReply& reply, uint64_t now_us);
  ObjectOutcome OnSwap(const ObjectReply& reply, uint64_t now_us);
  bool Adopt(const EpochTable& table);
  void Know(const tier::PublisherId& publisher, uint64_t epoch, bool is_news);
  bool NeedsWriting() const;
  EpochTable Changed();

  const FleetKeys keys_;
  const FleetEpochTimes times_;

  mutable Mutex mutex_{LockRank::kLeaf};
  std::map<tier::PublisherId, uint64_t> ever_ QUIRE_GUARDED_BY(mutex_);  // highest that was known

  std::optional<EpochTable> table_{};      // as it was read or written last, and believed
  std::optional<EpochTable> in_remote_{};  // as it was read last; nothing: there is none
  bool was_read_ = false;                  // in_remote_ and version_ say what is there
  std::string version_{};
  Asking asking_ = Asking::kNothing;
  uint64_t asked_us_ = 0;
  uint64_t next_read_us_ = 0;
  uint64_t lease_end_us_ = 0;
  EpochTable swapping_{};
  std::vector<Raise> raises_{};
  std::vector<std::pair<tier::PublisherId, uint64_t>> learned_{};
};

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_FLEET_EPOCHS_H_
