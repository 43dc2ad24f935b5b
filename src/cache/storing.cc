#include "cache/storing.h"

#include <algorithm>

#include "base/hash.h"
#include "base/sync_point.h"
#include "cache/leases.h"
#include "cache/quarantine.h"

namespace quire::cache {

Storing::Backlog Storing::backlog() const {
  return cache_.Look([](const State& state) -> Backlog {
    return {.queued = state.directory.queued(),
            .lost_total = state.counters.evicted_unwritten_total};
  });
}

bool Storing::WriteNext(const Writer& write) {
  MutexLock one_at_a_time(cache_.reading_mutex());
  const auto block = cache_.With([](State& state) { return NextWrite(state); });
  if (!block) return false;
  bool given = false;
  struct EndAtEnd {
    ~EndAtEnd() {
      storing.cache_.With([&](State& state) { EndReading(state); });
      if (!given) storing.EndWrite(form, Below::kNothing, /*again=*/false);
    }
    Storing& storing;
    const StoredForm& form;
    const bool& given;
  } end{.storing = *this, .form = block->form, .given = given};

  PerClass<std::vector<std::byte>> copies;
  Sections sections;
  for (uint32_t c = 0; c < cache_.classes().count(); ++c) {
    const SlotId slot = block->slots[c];
    if (slot.is_none()) continue;
    std::span<const std::byte> bytes = cache_.slots().HostBytes(slot);
    if (bytes.empty()) {
      copies[c].resize(cache_.classes().slot_bytes(c));
      cache_.slots().CopyOut(slot, copies[c].data());
      bytes = copies[c];
    }
    cache_.shapes().Cut(c, bytes, sections.bytes);
  }
  cache_.slots().ops().Synchronize();
  // One pass over the bytes: those of the sections say what the checksum of the slot is.
  for (const auto& bytes : sections.bytes) sections.crcs.push_back(Crc32c(bytes));
  bool same = true;
  for (uint32_t c = 0; c < cache_.classes().count(); ++c) {
    if (block->slots[c].is_none()) continue;
    const auto [first, count] = cache_.shapes().sections(c);
    const auto crcs = std::span<const uint32_t>(sections.crcs).subspan(first, count);
    same = same && cache_.shapes().Join(c, crcs) == block->crcs[c];
  }
  AtSyncPoint("write: a block was read");
  if (same) {
    write(*block, sections);
    given = true;
    return true;
  }
  cache_.With([&](State& state) {
    // Unless it went meanwhile.
    const StoredForm& form = block->form;
    if (!state.directory.contains(form.block)) return;
    if (state.directory.at(form.block).key == form.key) {
      Quarantine(state, form.block, BlockState::kDamaged);
    }
  });
  return true;
}

void Storing::EndWrite(const StoredForm& form, Below below, bool again) {
  cache_.With([&](State& state) { cache::EndWrite(state, form, below, again); });
}

std::vector<StoredForm> Storing::TakeUsed() {
  return cache_.With([](State& state) { return cache::TakeUsed(state); });
}

void Storing::OfferAgain(std::span<const StoredForm> lost) {
  cache_.With([&](State& state) { cache::OfferAgain(state, lost); });
}

}  // namespace quire::cache
