#include "cache/fences.h"

#include <utility>

#include "cache/leases.h"

namespace quire::cache {

void ReleaseAfter(State& state, std::shared_ptr<Fence>& fence, std::vector<SlotId>& slots) {
  Fenced& last = state.fenced.emplace_back();
  last.fence = std::move(fence);
  last.slots = std::move(slots);
}

void ReleaseDone(State& state) {
  std::erase_if(state.fenced, [&](const Fenced& fenced) {
    if (!fenced.fence->IsDone()) return false;
    ReleaseSlots(state, fenced.slots);
    return true;
  });
}

}  // namespace quire::cache
