// What the parts of `quire bench index` share.
#ifndef QUIRE_BENCH_INDEX_H_
#define QUIRE_BENCH_INDEX_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "bench/bench.h"

namespace quire::bench {

/// Repeats `pass`, which returns the blocks it handled, for long enough to be measured. `prepare`
/// runs before each, outside the time.
double MegablocksPerSecond(const std::function<uint64_t()>& pass,
                           const std::function<void()>& prepare = {});

/// The row about the index's memory: its promise beside what it takes.
Row MetadataRow(const std::string& name, uint64_t bytes, uint64_t blocks);

/// Replays options.trace on one thread: lookups alone, lookups with insertion of what is missing,
/// and the same with a policy and a limit.
void MeasureTrace(const Options& options, std::vector<Row>& rows);

/// The same under locks of both kinds, with a policy: on one thread, on two that share a lock, and
/// on two with a root, a policy and a lock for each half of the conversations. Ratios are to one
/// thread under a Mutex.
void MeasureThreads(const Options& options, std::vector<Row>& rows);

/// The same on whole caches: on one thread, on two with one root and with a root each, and on two
/// with a cache each. Ratios are to one thread.
void MeasureCache(const Options& options, std::vector<Row>& rows);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_INDEX_H_
