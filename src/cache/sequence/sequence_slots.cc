#include "cache/sequence/sequence_slots.h"

#include <algorithm>
#include <utility>

#include "base/bits.h"

namespace quire::cache {

// Where every layer looks through a window, slots are released while their entries stay, so the
// entries are charged separately, except in the first chunk. Elsewhere each entry has a slot that
// pays for it.
uint64_t BytesToGrow(const SlotClasses& classes, const BlockList& list, uint64_t blocks) {
  if (blocks <= list.chunk_blocks() || !classes.only_windows()) return 0;
  return list.BytesToGrow(blocks);
}

SequenceSlots::SequenceSlots(const SlotClasses& classes, BlockList blocks, uint64_t tokens,
                             uint64_t shared)
    : classes_(classes), list_(std::move(blocks)), first_own_(shared) {
  for (uint32_t c = 0; c < class_count(); ++c) {
    states_[c].assigned = list_.size();
    states_[c].passed = classes_.reach(c).first_needed(tokens);
  }
}

std::vector<SlotId> SequenceSlots::Held(uint64_t blocks) const {
  std::vector<SlotId> held;
  for (uint32_t c = 0; c < class_count(); ++c) {
    for (uint64_t block = 0; block < blocks; ++block) {
      if (const SlotId slot = at(c, block); !slot.is_none()) held.push_back(slot);
    }
  }
  return held;
}

bool SequenceSlots::Sees(uint64_t position) const {
  for (uint32_t c = 0; c < class_count(); ++c) {
    if (classes_.reach(c).streams()) {
      if (position > 0 && states_[c].passed > position / classes_.block_tokens()) return false;
      continue;
    }
    const uint64_t needed = classes_.reach(c).first_needed(position);
    if (states_[c].passed > needed && needed < DivUp(position, uint64_t{classes_.block_tokens()})) {
      return false;
    }
  }
  return true;
}

PerClass<uint64_t> SequenceSlots::Lacking(uint64_t blocks, uint32_t write_group, uint64_t write_end,
                                          const Steps& steps) const {
  PerClass<uint64_t> counts{};
  for (uint32_t c = 0; c < class_count(); ++c) {
    const ClassState& state = states_[c];
    if (!classes_.reach(c).windowed()) {
      counts[c] = blocks - list_.size();
      continue;
    }
    uint64_t spare = SpareWanted(c, blocks, steps);
    if (IsWritten(c, write_group) && write_end > state.assigned) {
      spare = std::max(spare, write_end - state.assigned);
    }
    counts[c] = spare - std::min<uint64_t>(spare, state.spare.size());
  }
  return counts;
}

// Slots that should be spare in a class that releases them: as many as will be written, but not
// more than live at once, the sequence's present ones included. Open forms need slots for whole
// steps only while the prompt is read.
uint64_t SequenceSlots::SpareWanted(uint32_t c, uint64_t blocks, const Steps& steps) const {
  const ClassState& state = states_[c];
  const WindowReach& reach = classes_.reach(c);
  const uint64_t sinks_end = std::min(state.assigned, reach.sink_blocks());
  const uint64_t own_sinks = sinks_end - std::min(sinks_end, first_own_);
  const uint64_t own_begin = std::max(state.passed, first_own_);
  const uint64_t own = own_sinks + state.assigned - std::min(state.assigned, own_begin);
  const bool whole_steps = classes_.is_sealed(c) || steps.in_prompt;
  const uint64_t most = reach.blocks_max(whole_steps ? steps.tokens : uint64_t{1});
  return std::min(blocks - state.assigned, most - std::min(most, own));
}

void SequenceSlots::Grow(uint64_t blocks, const PerClass<std::vector<SlotId>>& added) {
  for (uint32_t c = 0; c < class_count(); ++c) {
    if (!classes_.reach(c).windowed()) continue;
    states_[c].spare.reserve(states_[c].spare.size() + added[c].size());
  }
  list_.Resize(blocks);
  // Nothing fails from here on.
  for (uint32_t c = 0; c < class_count(); ++c) {
    ClassState& state = states_[c];
    if (classes_.reach(c).windowed()) {
      state.spare.insert(state.spare.end(), added[c].begin(), added[c].end());
      continue;
    }
    for (const SlotId slot : added[c]) list_.SetSlot(c, state.assigned++, slot);
  }
}

void SequenceSlots::AssignUpTo(uint32_t write_group, uint64_t write_end) {
  for (uint32_t c = 0; c < class_count(); ++c) {
    ClassState& state = states_[c];
    while (IsWritten(c, write_group) && state.assigned < write_end) {
      list_.SetSlot(c, state.assigned++, state.spare.back());
      state.spare.pop_back();
    }
  }
}

PerClass<uint64_t> SequenceSlots::TakePassed(uint64_t length, uint64_t sealed_end,
                                             const Steps& steps, std::vector<SlotId>& passed) {
  const auto end_of = [&](uint32_t c) {
    const uint64_t end = classes_.reach(c).first_needed(length);
    if (!classes_.is_sealed(c)) return end;
    return RoundDown(std::min(end, sealed_end), classes_.reach(c).blocks_at_once());
  };
  uint64_t passing = 0;
  uint64_t spare_slots = 0;
  for (uint32_t c = 0; c < class_count(); ++c) {
    const uint64_t end = end_of(c);
    passing += end - std::min(end, states_[c].passed);
    spare_slots += states_[c].spare.size();
  }
  if (passing > 0) passed.reserve(passing + spare_slots);  // nothing fails from here on
  for (uint32_t c = 0; c < class_count(); ++c) {
    uint64_t& first = states_[c].passed;
    for (const uint64_t end = end_of(c); first < end; ++first) {
      const SlotId slot = list_.slot(c, first);
      if (!slot.is_none()) passed.push_back(slot);
    }
  }
  // Where publishing lags behind, for want of room in a domain, a window may pass the last
  // published block: the sequence no longer keeps that block in the index and must not use its id
  // again. An open slot does not keep the block: only a twin is in the index.
  const auto is_held = [&](uint64_t block) {
    for (uint32_t group = 0; group < classes_.group_count(); ++group) {
      if (!at(group, block).is_none()) return true;
    }
    return false;
  };
  while (list_.published() > 0 && !is_held(list_.published() - 1)) {
    list_.SetPublished(list_.published() - 1);
  }
  PerClass<uint64_t> counts{};
  if (passed.empty()) return counts;
  for (uint32_t c = 0; c < class_count(); ++c) {
    if (!classes_.reach(c).windowed()) continue;
    std::vector<SlotId>& spare = states_[c].spare;
    const uint64_t wanted = SpareWanted(c, list_.size(), steps);
    counts[c] = wanted - std::min<uint64_t>(wanted, spare.size());
    while (spare.size() > wanted) {
      passed.push_back(spare.back());
      spare.pop_back();
    }
  }
  return counts;
}

void SequenceSlots::ReserveSpare(uint64_t more) {
  for (uint32_t c = 0; c < class_count(); ++c) {
    if (!classes_.reach(c).windowed()) continue;
    states_[c].spare.reserve(states_[c].spare.size() + more);
  }
}

// The list does not grow, so there is memory for all slots.
void SequenceSlots::Cut(uint64_t position, uint64_t blocks,
                        const PerClass<std::vector<SlotId>>& room) {
  const uint64_t whole = position / classes_.block_tokens();
  const uint64_t kept = DivUp(position, uint64_t{classes_.block_tokens()});
  const bool windows_only = std::ranges::all_of(classes_.reaches(), &WindowReach::windowed);
  const uint64_t size = windows_only ? list_.size() : blocks;
  list_.SetPublished(std::min(list_.published(), whole));
  list_.SetTokens(std::min(list_.tokens(), position));
  list_.Resize(size);
  for (uint32_t c = 0; c < class_count(); ++c) {
    ClassState& state = states_[c];
    for (uint64_t block = kept; block < size; ++block) list_.SetSlot(c, block, SlotId::None());
    state.assigned = std::min(state.assigned, kept);
    const WindowReach& reach = classes_.reach(c);
    state.passed = std::min(state.passed, reach.streams() ? whole : reach.first_needed(position));
    if (classes_.reach(c).windowed()) {
      state.spare.insert(state.spare.end(), room[c].begin(), room[c].end());
    } else {
      for (const SlotId slot : room[c]) list_.SetSlot(c, state.assigned++, slot);
    }
  }
  first_own_ = std::min(first_own_, whole);
}

std::vector<SlotId> SequenceSlots::Clear(BlockList empty) {
  std::vector<SlotId> held = Held(list_.size());
  list_ = std::move(empty);
  first_own_ = 0;
  for (uint32_t c = 0; c < class_count(); ++c) {
    ClassState& state = states_[c];
    held.insert(held.end(), state.spare.begin(), state.spare.end());
    state = {.passed = classes_.reach(c).first_needed(0)};
  }
  return held;
}

}  // namespace quire::cache
