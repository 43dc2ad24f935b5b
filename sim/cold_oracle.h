// The oracle of the simulator: every record that could be put, every request, and every promise.
#ifndef QUIRE_SIM_COLD_ORACLE_H_
#define QUIRE_SIM_COLD_ORACLE_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tier/store.h"
#include "tier/test_records.h"

namespace quire::sim {

/// Names a record: its bytes follow from this.
struct RecordName {
  uint32_t publisher = 0;  // 0 is the unnamed one
  uint64_t epoch = 0;
  uint64_t number = 0;
  auto operator<=>(const RecordName&) const = default;
};

inline constexpr uint32_t kPublishers = 3;

/// All records of a run, made when they are first asked for.
class Records {
 public:
  const tier::TestRecord& operator[](const RecordName& name) {
    auto& record = made_[name];
    if (record == nullptr) {
      // No two have bytes in common, so that bytes tell whose they are.
      const uint64_t bytes_of = (name.epoch << 20) + name.number * 4 + name.publisher;
      record = std::make_unique<tier::TestRecord>(bytes_of, layout_, DomainOf(name.publisher),
                                                  name.epoch);
    }
    return *record;
  }
  static std::string DomainOf(uint32_t publisher) {
    return publisher == 0 ? "" : "tenant-" + std::to_string(publisher);
  }
  /// Names of the records that were ever asked for.
  std::vector<RecordName> Names() const {
    std::vector<RecordName> names;
    for (const auto& [name, record] : made_) names.push_back(name);
    return names;
  }

 private:
  const tier::RecordLayout layout_ = tier::TestLayout(16, 1, 1500);  // 8 KiB in all
  std::map<RecordName, std::unique_ptr<tier::TestRecord>> made_;
};

/// A load that is under way, with the memory it goes to.
struct PendingLoad {
  RecordName name{};
  std::vector<std::vector<std::byte>> sections{};
  std::vector<std::span<std::byte>> out{};
  bool found = false;  // the store said it has it
};

}  // namespace quire::sim

#endif  // QUIRE_SIM_COLD_ORACLE_H_
