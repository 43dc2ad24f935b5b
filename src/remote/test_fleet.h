// Machines of a fleet on one service in memory, turned by hand.
#ifndef QUIRE_REMOTE_TEST_FLEET_H_
#define QUIRE_REMOTE_TEST_FLEET_H_

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "env/clock.h"
#include "remote/memory_objects.h"
#include "remote/remote_store.h"
#include "tier/test_records.h"
#include "tier/warm.h"

namespace quire::remote {

inline FleetKey TestFleetKey(uint8_t fill = 7) {
  FleetKey key;
  key.fill(fill);
  return key;
}

/// A machine: a remote store, with memory in front of it or without.
struct TestMachine {
  TestMachine(MemoryService& service, const Clock& clock, bool has_local = false,
              FleetKey fleet = TestFleetKey(), RemoteWrites writes = RemoteWrites::kAll) {
    auto objects = std::make_unique<MemoryObjects>(service, clock);
    way = objects.get();
    auto records =
        std::make_unique<RemoteRecords>(std::move(objects), fleet, RemoteOptions{}, clock);
    std::unique_ptr<tier::WarmStore> memory;
    if (has_local) {
      memory = std::make_unique<tier::WarmStore>(tier::WarmOptions{.bytes_cap = 4 << 20}, clock,
                                                 nullptr);
      local = memory.get();
    }
    records->Await(1000);
    store = std::make_unique<RemoteStore>(std::move(records), std::move(memory), writes);
  }

  MemoryObjects* way = nullptr;
  tier::WarmStore* local = nullptr;
  std::unique_ptr<RemoteStore> store;
};

/// Where a load's bytes go.
struct TestLoad {
  TestLoad(const tier::TestRecord& record, uint64_t tag, uint32_t first = 0,
           uint32_t count = ~uint32_t{0}) {
    const auto sections = record.layout().sections();
    count = std::min<uint32_t>(count, static_cast<uint32_t>(sections.size()) - first);
    for (uint32_t i = 0; i < count; ++i) bytes.emplace_back(sections[first + i].bytes);
    for (auto& section : bytes) out.emplace_back(section);
    crcs.resize(count);
    request = {.identity = record.identity(),
               .layout = &record.layout(),
               .section_first = first,
               .section_count = count,
               .out = out,
               .crcs = crcs,
               .tag = tag};
  }
  TestLoad(TestLoad&&) = default;

  bool Has(const tier::TestRecord& record) const {
    for (size_t i = 0; i < bytes.size(); ++i) {
      const auto section = record.sections()[request.section_first + i];
      if (!std::ranges::equal(bytes[i], section) || crcs[i] != Crc32c(section)) return false;
    }
    return true;
  }

  std::vector<std::vector<std::byte>> bytes{};
  std::vector<std::span<std::byte>> out{};
  std::vector<uint32_t> crcs{};
  tier::LoadRequest request{};
};

inline void PutRecord(tier::Store& store, const tier::TestRecord& record, uint64_t tag) {
  const tier::PutRequest request = {.identity = record.identity(),
                                    .layout = &record.layout(),
                                    .sections = record.sections(),
                                    .tag = tag};
  store.Put({&request, 1});
}

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_TEST_FLEET_H_
