#include "sim/remote_sim.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "env/clock.h"
#include "remote/memory_objects.h"
#include "remote/remote_store.h"
#include "tier/test_records.h"
#include "tier/warm.h"

namespace quire::sim {
namespace {

using remote::MemoryObjects;
using remote::ObjectFault;
using remote::ObjectRequest;
using remote::ObjectVerb;
using tier::StoreCompletion;
using tier::StoreOutcome;
using tier::TestRecord;

constexpr uint64_t kRecords = 24;
constexpr std::array kTenants = {"", "alice", "bob"};
constexpr uint64_t kEndUs = 60'000'000;  // by then everything has ended, and works again

/// A read or write under way.
struct Asked {
  std::unique_ptr<TestRecord> record{};  // what its identity points to
  std::vector<std::vector<std::byte>> bytes{};
  std::vector<std::span<std::byte>> out{};
  std::vector<uint32_t> crcs{};
  bool reads = false;
  bool was_erased = false;  // the erasure of its epoch had ended when it was asked for
};

struct Machine {
  MemoryObjects* way = nullptr;
  std::unique_ptr<remote::RemoteStore> store{};
  std::map<uint64_t, Asked> asked{};
  bool has_local = false;
  uint64_t cut_off_until_us = 0;
  uint64_t deaf_until_us = 0;  // it cannot read the epochs, and all else
};

class RemoteSim {
 public:
  explicit RemoteSim(const SimOptions& options)
      : prng_(options.seed * 7919 + 17), options_(options) {
    has_faults_ = options.seed % 3 != 0;
    if (has_faults_) fault_in_ = 4 + prng_.NextBelow(20);
    machines_.resize(2 + prng_.NextBelow(2));
    for (Machine& machine : machines_) {
      machine.has_local = prng_.NextChance(2);
      Start(machine);
    }
  }

  SimReport Run() {
    for (; report_.steps < options_.steps && report_.problems() == 0; ++report_.steps) Step();
    Recover();
    report_.digest = digest_.Finish();
    return report_;
  }

 private:
  void Problem(uint64_t SimReport::* counter, const std::string& what) {
    ++(report_.*counter);
    if (!report_.first_problem.empty()) return;
    report_.first_problem =
        fmt::format("remote seed {} step {}: {}", options_.seed, report_.steps, what);
  }

  void Start(Machine& machine) {
    auto way = std::make_unique<MemoryObjects>(service_, clock_);
    machine.way = way.get();
    remote::FleetKey key;
    key.fill(7);
    auto records = std::make_unique<remote::RemoteRecords>(
        std::move(way), key, remote::RemoteOptions{.seed = prng_.Next64()}, clock_);
    std::unique_ptr<tier::Store> local;
    if (machine.has_local) {
      local = std::make_unique<tier::WarmStore>(tier::WarmOptions{.bytes_cap = 256 << 10}, clock_,
                                                nullptr);
    }
    machine.way->SetScript(
        [this, &machine](const ObjectRequest& request) { return FaultOf(machine, request); });
    machine.store = std::make_unique<remote::RemoteStore>(
        std::move(records), std::move(local),
        prng_.NextChance(2) ? RemoteWrites::kAll : RemoteWrites::kReused);
  }

  ObjectFault FaultOf(const Machine& machine, const ObjectRequest& request) {
    ObjectFault fault{.delay_us = prng_.NextBelow(3000)};
    const bool is_deaf = request.wants_version && clock_.NowMicros() < machine.deaf_until_us;
    if (is_deaf || clock_.NowMicros() < machine.cut_off_until_us) {
      fault.kind = ObjectFault::kNotDone;
      return fault;
    }
    if (fault_in_ == 0 || !prng_.NextChance(fault_in_)) return fault;
    ++report_.faults;
    constexpr std::array kKinds = {
        ObjectFault::kNoAnswer,  ObjectFault::kNotDone, ObjectFault::kStale,
        ObjectFault::kFlip,      ObjectFault::kCut,     ObjectFault::kOtherObject,
        ObjectFault::kLoseWrite, ObjectFault::kTwice,   ObjectFault::kNone};
    fault.kind = kKinds[prng_.NextBelow(kKinds.size())];
    fault.delay_us = prng_.NextBelow(prng_.NextChance(4) ? 3'000'000 : 50'000);
    // An old answer about the epochs is an old life of the service where its writes are lost as well:
    // a machine that starts then cannot know better (docs/remote.md).
    const bool is_table = request.wants_version || request.verb == ObjectVerb::kSwap;
    if (is_table && fault.kind == ObjectFault::kStale) fault.kind = ObjectFault::kNotDone;
    return fault;
  }

  void Step() {
    Machine& machine = machines_[prng_.NextBelow(machines_.size())];
    switch (prng_.NextBelow(16)) {
      case 0: clock_.Advance(prng_.NextBelow(400'000)); break;
      case 1:
        if (fault_in_ != 0 && prng_.NextChance(6)) {
          uint64_t& until_us =
              prng_.NextChance(2) ? machine.cut_off_until_us : machine.deaf_until_us;
          until_us = clock_.NowMicros() + prng_.NextBelow(8'000'000);
        }
        break;
      case 2:
        if (prng_.NextChance(12)) Restart(machine);
        break;
      case 3:
        if (prng_.NextChance(4)) Erase(machine);
        break;
      case 4:
      case 5:
      case 6:
      case 7: Put(machine); break;
      case 8:
        if (!machine.asked.empty() && prng_.NextChance(3)) {
          machine.store->Cancel(machine.asked.begin()->first);
        }
        break;
      default: Get(machine);
    }
    for (Machine& each : machines_) Turn(each);
    clock_.Advance(prng_.NextBelow(4000));
  }

  // An erasure that was under way there is never confirmed.
  void Restart(Machine& machine) {
    ++report_.crashes;
    for (const auto& [tag, asked] : machine.asked) erasing_.erase(tag);
    machine.store.reset();
    machine.asked.clear();
    Start(machine);
  }

  uint32_t SomeTenant() { return static_cast<uint32_t>(prng_.NextBelow(kTenants.size())); }

  Asked Make(Machine& machine, uint64_t number, uint32_t tenant) {
    const auto publisher = tier::PublisherOf(kTenants[tenant]);
    // Now and then of an epoch that is over.
    uint64_t epoch = machine.store->EpochOf(publisher);
    if (epoch > 0 && prng_.NextChance(3)) epoch -= 1 + prng_.NextBelow(epoch);
    Asked asked;
    asked.record = std::make_unique<TestRecord>(number, layout_, kTenants[tenant], epoch);
    // As of a domain: its keys have no epoch.
    asked.record->identity().key = tier::TestDigest(kTenants[tenant], number);
    // A machine that is cut off goes on with what it has itself, until it hears of the erasure.
    const bool hears = !machine.has_local || machine.store->remote_stats().epochs_known;
    asked.was_erased = hears && epoch < erased_[tenant];
    return asked;
  }

  void Put(Machine& machine) {
    Asked asked = Make(machine, prng_.NextBelow(kRecords), SomeTenant());
    const uint64_t tag = ++tag_;
    const tier::PutRequest request = {.identity = asked.record->identity(),
                                      .layout = &layout_,
                                      .sections = asked.record->sections(),
                                      .tag = tag};
    machine.store->Put({&request, 1});
    machine.asked[tag] = std::move(asked);
  }

  void Get(Machine& machine) {
    const uint64_t tag = ++tag_;
    Asked& asked = machine.asked[tag] = Make(machine, prng_.NextBelow(kRecords), SomeTenant());
    asked.reads = true;
    const auto sections = layout_.sections();
    const bool whole = prng_.NextChance(2);
    const uint32_t first = whole ? 0 : static_cast<uint32_t>(prng_.NextBelow(sections.size()));
    const uint32_t count = whole ? static_cast<uint32_t>(sections.size()) : 1;
    for (uint32_t i = 0; i < count; ++i) asked.bytes.emplace_back(sections[first + i].bytes);
    for (auto& section : asked.bytes) asked.out.emplace_back(section);
    asked.crcs.resize(count);
    const tier::LoadRequest load = {.identity = asked.record->identity(),
                                    .layout = &layout_,
                                    .section_first = first,
                                    .section_count = count,
                                    .out = asked.out,
                                    .crcs = asked.crcs,
                                    .tag = tag};
    first_section_[tag] = first;
    machine.store->Get({&load, 1}, 0);
  }

  void Erase(Machine& machine) {
    const uint32_t tenant = 1 + static_cast<uint32_t>(prng_.NextBelow(kTenants.size() - 1));
    const auto publisher = tier::PublisherOf(kTenants[tenant]);
    const uint64_t epoch = machine.store->EpochOf(publisher) + 1;
    const uint64_t tag = ++tag_;
    machine.asked[tag] = {};
    erasing_[tag] = {tenant, epoch};
    machine.store->Erase(publisher, epoch, tag);
  }

  void Turn(Machine& machine) {
    std::vector<StoreCompletion> done;
    machine.store->Tick(done, 0);
    for (const StoreCompletion& end : done) {
      auto asked = machine.asked.extract(end.tag);
      if (!asked) {
        Problem(&SimReport::stuck, fmt::format("tag {} ended twice", end.tag));
        continue;
      }
      digest_.UpdateNumber(end.tag);
      digest_.UpdateNumber(end.outcome);
      if (const auto erasure = erasing_.extract(end.tag)) {
        const auto [tenant, epoch] = erasure.mapped();
        if (end.outcome == StoreOutcome::kOk) {
          erased_[tenant] = std::max(erased_[tenant], epoch);
        } else if (!has_faults_) {
          Problem(&SimReport::unexplained, "an erasure failed");
        }
      } else if (asked.mapped().reads) {
        OnRead(end, asked.mapped());
      }
    }
  }

  void OnRead(const StoreCompletion& end, const Asked& asked) {
    const uint32_t first = first_section_.extract(end.tag).mapped();
    if (end.outcome != StoreOutcome::kOk) {
      const bool clean = std::ranges::all_of(asked.bytes, [](const auto& section) {
        return std::ranges::all_of(section, [](std::byte b) { return b == std::byte{}; });
      });
      if (!clean) Problem(&SimReport::wrong_bytes, "a read that failed changed its memory");
      return;
    }
    ++report_.loaded;
    for (size_t i = 0; i < asked.bytes.size(); ++i) {
      const auto wanted = asked.record->sections()[first + i];
      const bool same = std::ranges::equal(asked.bytes[i], wanted);
      if (!same || asked.crcs[i] != Crc32c(wanted)) {
        return Problem(&SimReport::wrong_bytes, "a read has other bytes");
      }
    }
    if (asked.was_erased) Problem(&SimReport::wrong_bytes, "what was erased was found");
  }

  // Without faults everything ends, and what one machine writes another one reads.
  void Recover() {
    if (report_.problems() > 0) return;
    fault_in_ = 0;
    for (Machine& machine : machines_) machine.cut_off_until_us = machine.deaf_until_us = 0;
    for (uint64_t passed = 0; passed < kEndUs; passed += 10'000) {
      clock_.Advance(10'000);
      for (Machine& machine : machines_) Turn(machine);
    }
    for (Machine& machine : machines_) {
      if (!machine.asked.empty()) Problem(&SimReport::stuck, "something never ended");
      const RemoteStats stats = machine.store->remote_stats();
      if (stats.breaker != BreakerState::kClosed || !stats.epochs_known) {
        Problem(&SimReport::stuck, "it is left alone though it answers");
      }
      if (stats.reading != 0 || stats.writing != 0)
        Problem(&SimReport::leaked, "counts of requests");
      for (uint32_t tenant = 1; tenant < kTenants.size(); ++tenant) {
        if (machine.store->EpochOf(tier::PublisherOf(kTenants[tenant])) < erased_[tenant]) {
          Problem(&SimReport::lost_bytes, "an erasure that ended is forgotten");
        }
      }
    }
  }

  Prng prng_;
  const SimOptions options_;
  const tier::RecordLayout layout_ = tier::TestLayout(16, 2, 700);
  ManualClock clock_{1'000'000};
  remote::MemoryService service_;
  std::vector<Machine> machines_;
  bool has_faults_ = false;
  uint64_t fault_in_ = 0;  // one request in so many; 0: none
  uint64_t tag_ = 0;
  std::array<uint64_t, kTenants.size()> erased_{};  // up to which epoch, for certain
  std::map<uint64_t, std::pair<uint32_t, uint64_t>> erasing_;
  std::map<uint64_t, uint32_t> first_section_;
  SimReport report_;
  Blake2b<16> digest_;
};

}  // namespace

SimReport RunRemoteSim(const SimOptions& options) { return RemoteSim(options).Run(); }

}  // namespace quire::sim
