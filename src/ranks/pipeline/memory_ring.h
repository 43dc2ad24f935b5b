// A ring of ranks that are threads of one process.
#ifndef QUIRE_RANKS_PIPELINE_MEMORY_RING_H_
#define QUIRE_RANKS_PIPELINE_MEMORY_RING_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "quire/error.h"
#include "ranks/pipeline/ring.h"

namespace quire::ranks {

/// The places of so many ranks, each for one thread. A rank is lost when its place is destroyed:
/// what it sent before still arrives.
std::vector<std::unique_ptr<Ring>> MakeMemoryRing(uint32_t ranks);

}  // namespace quire::ranks

#endif  // QUIRE_RANKS_PIPELINE_MEMORY_RING_H_
