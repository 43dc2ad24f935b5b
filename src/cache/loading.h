// What comes back from the store: attached block by block, in the order of the prompt.
#ifndef QUIRE_CACHE_LOADING_H_
#define QUIRE_CACHE_LOADING_H_

#include <cstddef>
#include <cstdint>

#include "cache/admit.h"
#include "cache/holds.h"
#include "cache/publishing.h"
#include "cache/search.h"
#include "quire/disk_store.h"

namespace quire::cache {

struct LoadJob;

/// What tickets and the mover call; of one job one of them at a time.
///
/// Threads: any
class Loading {
 public:
  Loading(LockedState& cache, Holds& holds, Search& search, Admission& admission,
          Publishing& publishing)
      : cache_(cache),
        holds_(holds),
        search_(search),
        admission_(admission),
        publishing_(publishing) {}

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
  Holds& holds_;
  Search& search_;
  Admission& admission_;
  Publishing& publishing_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_LOADING_H_
