// The verbs of one long path: 12,500 blocks, 200,000 tokens.
#ifndef QUIRE_BENCH_CACHE_LONG_H_
#define QUIRE_BENCH_CACHE_LONG_H_

#include <vector>

#include "bench/bench.h"

namespace quire::bench {

/// Acquire, Open and the end of a sequence, of a path of 12,500 blocks; with the policy `quire`
/// also Commit, Pin and View.
void AddLongCases(std::vector<Case>& cases);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_CACHE_LONG_H_
