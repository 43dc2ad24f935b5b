#include "cache/verbs/quarantine.h"

#include "cache/verbs/evict.h"
#include "cache/verbs/leases.h"

namespace quire::cache {
namespace {

// Moves on to the next sibling, or, after the last one, back to the parent. False: the root is
// done.
bool GoOn(const State& state, Marking& marking) {
  if (marking.at == marking.root) return false;
  const BlockId next = state.directory.tree().next_sibling(marking.at);
  marking.leaves = next.is_none();
  marking.at = marking.leaves ? state.directory.tree().parent(marking.at) : next;
  return true;
}

}  // namespace

void Quarantine(State& state, BlockId block, BlockState block_state, uint64_t* marked) {
  state.markings.push_back(
      {.root = block, .at = block, .block_state = block_state, .marked = marked});
  do {
    MarkOne(state);
  } while (!state.markings.empty() && state.directory.touched().MayGoOn());
}

void MarkOne(State& state) {
  Marking& marking = state.markings.back();
  const BlockId block = marking.at;
  if (!marking.leaves) {
    // The descendants of a block that was marked before were marked then, or are about to be.
    const bool is_new = state.directory.Mark(block, marking.block_state);
    const BlockId child = is_new ? state.directory.tree().first_child(block) : BlockId::None();
    marking.leaves = child.is_none();
    if (!marking.leaves) marking.at = child;
    if (!is_new) return;
    if (marking.marked != nullptr) ++*marking.marked;
    // A block that is never found again need not be pinned.
    while (state.pins.EndOneAt(block)) AddLease(state, block);
    return;
  }
  // A leased block leaves with its last lease.
  if (state.directory.leases().of(block) == 0 && !state.directory.tree().has_children(block)) {
    return Drop(state, block, MissReason::kNeverSeen);
  }
  if (!GoOn(state, marking)) state.markings.pop_back();
}

void MovePast(State& state, BlockId block) {
  std::erase_if(state.markings,
                [&](Marking& marking) { return marking.at == block && !GoOn(state, marking); });
}

}  // namespace quire::cache
