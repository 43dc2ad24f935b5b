// A load: what of a prompt the store has and memory lacks, what has come of it so far, and the
// verbs that attach it block by block, in the order of the prompt.
#ifndef QUIRE_CACHE_LOAD_JOB_H_
#define QUIRE_CACHE_LOAD_JOB_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/admit.h"
#include "cache/holds.h"
#include "cache/lookup.h"
#include "cache/publish.h"
#include "quire/cache.h"
#include "quire/disk_store.h"
#include "tier/record.h"

namespace quire::cache {

class Loading;

/// Which block a record has to be.
struct RecordWanted {
  Digest key{};
  Digest parent_key{};
  uint64_t block_index = 0;
  std::span<const TokenId> tokens{};
};

/// A load between the ticket, which waits for it, and the mover, which does it. Entries are the
/// blocks of the prompt from the plan's end to where a hit could be.
///
/// Threads: the atomics any; the rest is the mover's until `left`, then the ticket's
struct LoadJob {
  LoadJob(Loading& of, Plan from, const LoadOptions& with)
      : loading(of), plan(std::move(from)), options(with) {}
  LoadJob(const LoadJob&) = delete;
  LoadJob& operator=(const LoadJob&) = delete;

  /// The block that entry `i` of `slots` is.
  RecordWanted WantedAt(size_t i) const;
  /// Tokens of the prompt before that block, and how many entries end within so many tokens.
  uint64_t TokensBefore(size_t i) const;
  size_t EntriesIn(uint64_t tokens) const;
  Mover& mover() const;

  Loading& loading;
  std::optional<Plan> plan;  // until the ticket ends
  const LoadOptions options;
  uint64_t begin_us = 0;     // by the store's clock
  uint64_t deadline_us = 0;  // 0: none
  tier::PublisherId publisher{};

  std::vector<PerClass<SlotId>> slots{};   // where each block is loaded; none: that one is not
  std::vector<PerClass<uint32_t>> crcs{};  // of what was loaded there
  struct Durable {
    bool sealed = true;
    bool twins = true;
  };
  std::vector<Durable> durable{};  // what came of each is durable below
  std::vector<SlotId> held{};      // of blocks that were published
  std::vector<BlockId> path{};     // these
  BlockId leased{};  // the last of them, with all before it: of some blocks no slot is held
  // Why the block after `path` did not come; kNeverSeen: it did, or it may not be published.
  MissReason failure = MissReason::kNeverSeen;

  std::atomic<uint64_t> blocks_ready = 0;
  std::atomic<uint64_t> unread = 0;    // entries before those that came, from the end
  std::atomic<uint64_t> computed = 0;  // entries that the ticket's holder has published itself
  std::atomic<uint64_t> end_us = 0;    // 0: it has not ended
  std::atomic<bool> cancelled = false;
  std::atomic<bool> done = false;  // what came stands
  std::atomic<bool> left = false;  // and the mover looks at nothing of this any more
};

/// What tickets and the mover call; of one job one of them at a time.
///
/// Threads: any
class Loading {
 public:
  Loading(Search& search, Admission& admission, const SequenceVerbs& verbs)
      : cache_(verbs.cache), search_(search), admission_(admission), verbs_(verbs) {}

  LockedState& cache() { return cache_; }
  /// As Cache::Load.
  Result<Ticket> Load(Plan plan, const LoadOptions& options);
  /// Holds the first `count` entries of a job, which its ticket's holder has published, so that
  /// those after them can be attached. False: they are not all there.
  bool AdoptComputed(LoadJob& job, size_t count);
  /// Publishes entries [first, first + count) of a job, which have been loaded, and holds them for
  /// it. Returns how many; those that follow may not be published.
  size_t AttachLoaded(LoadJob& job, size_t first, size_t count);
  /// The same with the open forms, when all blocks are attached.
  void AttachTwins(LoadJob& job);
  /// As Ticket::Front.
  Plan FrontOf(const LoadJob& job, uint64_t tokens);
  /// The plan of a job that is done, with what came.
  Plan Take(LoadJob& job);
  /// Lets go of all that a job that is done has.
  void Drop(LoadJob& job);

 private:
  bool loads_from_end() const;
  size_t AttachRun(LoadJob& job, size_t first, size_t count);

  LockedState& cache_;
  Search& search_;
  Admission& admission_;
  const SequenceVerbs& verbs_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_LOAD_JOB_H_
