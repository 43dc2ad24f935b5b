// Holds that end when a device is done with what they pin.
#ifndef QUIRE_CACHE_FENCES_H_
#define QUIRE_CACHE_FENCES_H_

#include <memory>
#include <vector>

#include "cache/state.h"

namespace quire::cache {

/// Ends holds of slots once the fence is done; until then they are holds like others. If memory
/// runs out (std::bad_alloc) both are still the caller's.
///
/// Shape: slots in token order
void ReleaseAfter(State& state, std::shared_ptr<Fence>& fence, std::vector<SlotId>& slots);
/// Ends the holds whose fences are done. Waits for none.
void ReleaseDone(State& state);

}  // namespace quire::cache

#endif  // QUIRE_CACHE_FENCES_H_
