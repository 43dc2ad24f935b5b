// Loads under way: what is read for each, what has come, and what was attached so far.
#ifndef QUIRE_CACHE_LOADS_H_
#define QUIRE_CACHE_LOADS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "quire/env.h"
#include "quire/stats.h"
#include "tier/store.h"

namespace quire::cache {

struct LoadJob;

/// The loads of a mover. Records go into slots of the job, which are published in the order of the
/// path when the store has verified them: as they come, or, of a load from the end, when they meet
/// what its caller has computed and published from the front.
///
/// Threads: one at a time
class Loads {
 public:
  struct ActiveLoad;
  struct Counters {
    std::atomic<uint64_t> loaded = 0;  // records
    std::atomic<uint64_t> failures = 0;
    std::atomic<uint64_t> landing = 0;  // records that have come, on their way into their slots
  };

  /// Tags of reads are taken from `next_tag`, which others count on, too.
  Loads(tier::Store& store, const Clock& clock, uint64_t& next_tag, Counters& counters)
      : store_(store), clock_(clock), next_tag_(next_tag), counters_(counters) {}

  /// Any thread.
  static std::shared_ptr<ActiveLoad> Make(std::shared_ptr<LoadJob> job);
  /// Takes new ones over; if memory runs out, none.
  void Start(std::vector<std::shared_ptr<ActiveLoad>>& loads);
  /// Moves everything on. True: something was done.
  bool Advance();
  /// Whether a read has that tag; EndGet is for such.
  bool Has(uint64_t tag) const { return gets_.contains(tag); }
  void EndGet(const tier::StoreCompletion& ended);
  /// Waits until one that has come is in its slots; false: there is none.
  bool AwaitLanding();
  /// Those that have ended since the last call.
  std::vector<std::shared_ptr<LoadJob>> TakeEnded() { return std::exchange(ended_, {}); }

 private:
  struct Get;

  static std::optional<size_t> NextToStart(ActiveLoad& load);
  void StartGets(ActiveLoad& load);
  bool StartGet(ActiveLoad& load, size_t entry, bool twins);
  void AskFor(ActiveLoad& load, size_t entry, bool twins, uint64_t tag);
  void NotComing(ActiveLoad& load, size_t entry, bool twins, MissReason reason);
  std::unique_ptr<Fence> TakeIn(Get& get);
  bool Land();
  void EndLanding(Get& get);
  static bool IsReady(const ActiveLoad& load, size_t entry);
  void TakeComputed(ActiveLoad& load);
  static void GiveBack(ActiveLoad& load, size_t entry);
  void MeetComputed(ActiveLoad& load);
  bool AttachReady(ActiveLoad& load);
  void CancelGets(ActiveLoad& load);
  void End(ActiveLoad& load);

  tier::Store& store_;
  const Clock& clock_;
  uint64_t& next_tag_;
  Counters& counters_;
  std::map<uint64_t, std::shared_ptr<Get>> gets_;  // by tag
  std::vector<std::shared_ptr<Get>> landing_;      // there is room for all of gets_
  std::vector<std::shared_ptr<ActiveLoad>> loads_;
  std::vector<std::shared_ptr<LoadJob>> ended_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_LOADS_H_
