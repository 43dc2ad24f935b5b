// The pool in lock step with a model made of a map and two lists.
#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "pool/pool.h"

namespace quire::pool {
namespace {

constexpr uint32_t kSlotsMax = 24;
constexpr uint64_t kSlotBytes = 5000;

struct Model {
  std::map<uint32_t, uint32_t> references;   // of used slots
  std::map<uint32_t, uint32_t> generations;  // of slots freed at least once
  std::vector<uint32_t> freed;               // the last one goes first
  std::set<uint32_t> dirty;                  // handed out since the last trim
  std::map<uint32_t, uint8_t> contents;      // first byte of slots written since the last trim
  uint32_t slots = kSlotsMax;
  uint32_t first_unused = 0;
  uint32_t peak = 0;

  uint32_t free_count() const { return static_cast<uint32_t>(freed.size()) + slots - first_unused; }

  std::vector<uint32_t> Allocate(uint32_t count) {
    std::vector<uint32_t> taken;
    for (uint32_t i = 0; i < count; ++i) {
      uint32_t slot = first_unused;
      if (freed.empty()) {
        ++first_unused;
      } else {
        slot = freed.back();
        freed.pop_back();
      }
      references[slot] = 1;
      dirty.insert(slot);
      taken.push_back(slot);
    }
    peak = std::max(peak, static_cast<uint32_t>(references.size()));
    return taken;
  }

  void Resize(uint32_t count) {
    std::erase_if(freed, [count](uint32_t slot) { return slot >= count; });
    first_unused = std::min(first_unused, count);
    slots = count;
    peak = static_cast<uint32_t>(references.size());
  }
  bool UsedBeyond() const { return !references.empty() && references.rbegin()->first >= slots; }
  void GiveBackTail() {
    for (uint32_t slot = slots; slot < kSlotsMax; ++slot) {
      dirty.erase(slot);
      contents.erase(slot);
    }
  }

  bool Release(uint32_t slot) {
    if (--references[slot] > 0) return false;
    references.erase(slot);
    ++generations[slot];
    if (slot < slots) freed.push_back(slot);
    return true;
  }

  uint64_t Trim() {
    uint64_t trimmed = 0;
    for (uint32_t slot = 0; slot < slots; ++slot) {
      if (references.contains(slot)) continue;
      trimmed += dirty.erase(slot);
      contents.erase(slot);
    }
    return trimmed;
  }
};

uint32_t AnyUsed(const Model& model) {
  const auto nth = *rc::gen::inRange<size_t>(0, model.references.size());
  return std::next(model.references.begin(), static_cast<std::ptrdiff_t>(nth))->first;
}

void Step(Pool& pool, Model& model) {
  const int event = *rc::gen::weightedElement<int>({{6, 0}, {4, 1}, {8, 2}, {1, 3}, {2, 4}});
  if (event == 0) {
    const auto count = *rc::gen::weightedOneOf<uint32_t>(
        {{8, rc::gen::inRange<uint32_t>(0, 5)}, {1, rc::gen::inRange<uint32_t>(0, kSlotsMax + 3)}});
    std::vector<SlotId> slots(count);
    const bool allocated = pool.Allocate(slots);
    RC_ASSERT(allocated == (count <= model.free_count()));
    if (!allocated) return;
    const std::vector<uint32_t> expected = model.Allocate(count);
    for (uint32_t i = 0; i < count; ++i) {
      RC_ASSERT(slots[i].number() == expected[i]);
      const auto mark = *rc::gen::arbitrary<uint8_t>();
      *pool.data(slots[i]) = std::byte{mark};
      model.contents[expected[i]] = mark;
    }
  } else if (event == 1 && !model.references.empty()) {
    const uint32_t slot = AnyUsed(model);
    pool.Retain(SlotId(slot));
    ++model.references[slot];
  } else if (event == 2 && !model.references.empty()) {
    const uint32_t slot = AnyUsed(model);
    RC_ASSERT(pool.Release(SlotId(slot)) == model.Release(slot));
  } else if (event == 3) {
    RC_ASSERT(pool.Trim() == model.Trim() * pool.slot_stride_bytes());
  } else if (event == 4) {
    const auto count = *rc::gen::inRange<uint32_t>(1, kSlotsMax + 1);
    if (count > model.slots && model.UsedBeyond()) return;
    RC_ASSERT(pool.CommitSlots(count).has_value());
    pool.SetSlots(count);
    model.Resize(count);
    if (model.UsedBeyond()) return;
    pool.GiveBackTail();
    model.GiveBackTail();
  }
}

template <typename Map>
uint32_t ValueOr0(const Map& map, uint32_t key) {
  const auto found = map.find(key);
  return found == map.end() ? 0 : found->second;
}

void Compare(const Pool& pool, const Model& model) {
  RC_ASSERT(pool.free_count() == model.free_count());
  RC_ASSERT(pool.stats().slots_used == model.references.size());
  RC_ASSERT(pool.stats().slots_used_peak == model.peak);
  for (uint32_t slot = 0; slot < kSlotsMax; ++slot) {
    RC_ASSERT(pool.references(SlotId(slot)) == ValueOr0(model.references, slot));
    RC_ASSERT(pool.generation(SlotId(slot)) == ValueOr0(model.generations, slot));
    if (slot >= model.slots && !model.references.contains(slot)) continue;  // not to be touched
    RC_ASSERT(*pool.data(SlotId(slot)) == std::byte(ValueOr0(model.contents, slot)));
  }
}

RC_GTEST_PROP(PoolProperty, EqualsTheNaiveModel, ()) {
  const auto memory = MakeHostMemory(false);
  const auto pool =
      Pool::Create({.name = "p", .slot_bytes = kSlotBytes, .slots_max = kSlotsMax}, *memory)
          .value();
  Model model;
  const auto steps = *rc::gen::inRange(1, 120);
  for (int step = 0; step < steps; ++step) {
    Step(*pool, model);
    Compare(*pool, model);
  }
  // Free slots at the end can be allocated, once each, and are disjoint from used ones.
  std::vector<SlotId> rest(pool->free_count());
  RC_ASSERT(pool->Allocate(rest));
  std::set<uint32_t> all;
  for (const auto& [slot, count] : model.references) all.insert(slot);
  for (const SlotId slot : rest) all.insert(slot.number());
  RC_ASSERT(all.size() == model.references.size() + rest.size());
  RC_ASSERT(rest.empty() || all.size() >= model.slots);
}

}  // namespace
}  // namespace quire::pool
