#include "sim/cold_sim.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "sim/cold_oracle.h"
#include "sim/machine.h"
#include "sim/raw_bytes.h"
#include "tier/cold.h"
#include "tier/tools.h"

namespace quire::sim {
namespace {

using tier::StoreCompletion;
using tier::StoreOutcome;

constexpr uint64_t kNumbers = 40;  // of records of one publisher and epoch

class ColdSim : private Machine {
 public:
  explicit ColdSim(const SimOptions& options)
      : Machine(options, options.seed), tools_prng_(options.seed ^ 0x7001) {
    cold_ = SomeColdOptions(3 + prng_.NextBelow(8));
    cold_.commit_interval_us = 1000 + prng_.NextBelow(100'000);
    cold_.staging_bytes = 512 << 10;
    cold_.scrub_bytes_per_s = prng_.NextChance(2) ? uint64_t{1} << 20 : 0;
    if (prng_.NextChance(3)) {
      cold_.limits = {{.publisher = tier::PublisherOf(Records::DomainOf(1)),
                       .bytes_quota = 4 * kSegmentBytes,
                       .bytes_floor = kSegmentBytes}};
    }
  }

  SimReport Run() {
    Open();
    files_.set_rates(RatesOf(faults_));
    for (; report_.steps < options_.steps && report_.problems() == 0; ++report_.steps) Step();
    if (report_.problems() == 0) Recover();
    store_.reset();
    return Finish();
  }

 private:
  // `epochs_worn`: a crash may have cost both copies of the epochs.
  void Open(bool epochs_worn = false) {
    epochs_worn |= EpochsAreWorn();
    store_ = OpenStore();
    if (store_ == nullptr) return;
    for (uint32_t p = 1; p < kPublishers; ++p) {
      const uint64_t epoch = store_->EpochOf(tier::PublisherOf(Records::DomainOf(p)));
      const bool damaged = store_->Stats().epochs_damaged;
      // A disk that lies about writing both copies undoes an erasure. The store forgets the epoch
      // of a publisher that had stored nothing: nothing could come back.
      const bool had_nothing =
          store_->UsageOf(tier::PublisherOf(Records::DomainOf(p))) == tier::PublisherUsage{};
      if ((!honest() || had_nothing || epochs_lost_) && !damaged) {
        durable_epochs_[p] = std::min(durable_epochs_[p], epoch);
      }
      if (damaged && honest() && !epochs_worn && !epochs_lost_) {
        Problem(report_.lost_bytes, "both copies of the epochs are damaged");
      }
      if (epoch < durable_epochs_[p] && !damaged) {
        Problem(report_.lost_bytes,
                fmt::format("epoch {} of publisher {} is {} again", durable_epochs_[p], p, epoch),
                sizeof(epoch));
      }
      epochs_[p] = std::max(epoch, durable_epochs_[p]);
      wiped_epochs_[p] = std::min(wiped_epochs_[p], epochs_[p]);
    }
    epochs_lost_ = store_->Stats().epochs_damaged;
    LookForErased();
  }

  // No byte of erased records is left, as far as the overwriting was flushed.
  void LookForErased() {
    if (!honest() || worn_for_good() || report_.problems() > 0) return;
    // Without epochs the store cannot tell what was erased, until a repair overwrites all of named
    // tenants.
    if (store_->Stats().epochs_damaged) return;
    raw_bytes_.Learn(files_, cold_.directory);
    const bool is_idle = files_.in_flight() == 0 && loads_.empty() && puts_.empty();
    // A write that is under way may still fail, and leave the bytes that it was to overwrite.
    if (!is_idle && faults_ == Faults::kReported) return;
    for (uint32_t p = 1; p < kPublishers; ++p) {
      const std::string found = raw_bytes_.Find(tier::PublisherOf(Records::DomainOf(p)),
                                                wiped_epochs_[p], files_, is_idle);
      if (!found.empty()) Problem(report_.wrong_bytes, found);
    }
  }

  void Step() {
    const uint64_t dice = prng_.NextBelow(1000);
    if (dice < 350) {
      Put();
    } else if (dice < 600) {
      Get();
    } else if (dice < 630) {
      Cancel();
    } else if (dice < 640) {
      Flush();
    } else if (dice < 646) {
      prng_.NextChance(4) ? EraseAndCrash() : Erase();
    } else if (dice < 652) {
      ++report_.crashes;
      Restart(prng_.NextBelow(4));
    } else if (dice < 655) {
      FillDisk();
    } else {
      Tick(prng_.NextBelow(30'000));
    }
    if (const auto worn = Wear()) Doubt(*worn);
    if (files_.bytes_used() > cold_.bytes_cap) {
      Problem(report_.over_cap,
              fmt::format("{} bytes, cap {}", files_.bytes_used(), cold_.bytes_cap));
    }
  }

  // Records on sectors that went bad may be lost, and no others.
  void Doubt(const Worn& worn) {
    std::map<Digest, RecordName> names;
    for (const RecordName& name : records_.Names()) names[records_[name].identity().key] = name;
    const std::span<const std::byte> contents = *files_.Contents(worn.path);
    for (uint64_t at = 0; at + tier::kRecordAlignment <= contents.size();
         at += tier::kRecordAlignment) {
      const auto record = tier::InspectHeader(contents.subspan(at));
      if (!record || at >= worn.end || at + record->record_bytes() <= worn.begin) continue;
      const auto name = names.find(record->key);
      if (name != names.end()) doubtful_[name->second] = tags_;
    }
  }

  RecordName AnyName() {
    const auto publisher = static_cast<uint32_t>(prng_.NextBelow(kPublishers));
    uint64_t epoch = epochs_[publisher];
    if (epoch > 0 && prng_.NextChance(10))
      --epoch;  // a put with an older epoch, as if it came
                // late
    return {.publisher = publisher, .epoch = epoch, .number = prng_.NextBelow(kNumbers)};
  }

  bool Has(const RecordName& name) {
    tier::Presence presence = tier::Presence::kUnknown;
    store_->Find({&records_[name].identity().key, 1}, {&presence, 1});
    return presence == tier::Presence::kPresent;
  }

  void Put() {
    const RecordName name = AnyName();
    const tier::TestRecord& record = records_[name];
    const tier::PutRequest request = {.identity = record.identity(),
                                      .layout = &record.layout(),
                                      .sections = record.sections(),
                                      .tag = ++tags_};
    puts_[tags_] = {.name = name, .gone = Gone()};
    store_->Put({&request, 1});
  }
  // Records that were there and are not any more.
  uint64_t Gone() const {
    const tier::StoreStats stats = store_->Stats();
    return stats.evicted + stats.damaged;
  }

  void Get() {
    const RecordName name = AnyName();
    const tier::TestRecord& record = records_[name];
    PendingLoad& load = loads_[++tags_];
    load.name = name;
    load.found = Has(name);
    const auto first = static_cast<uint32_t>(prng_.NextBelow(record.sections().size()));
    for (size_t i = 0; i < record.sections().size(); ++i) {
      load.sections.emplace_back(record.sections()[i].size());
    }
    for (size_t i = first; i < load.sections.size(); ++i) load.out.push_back(load.sections[i]);
    const tier::LoadRequest request = {.identity = record.identity(),
                                       .layout = &record.layout(),
                                       .section_first = first,
                                       .section_count = static_cast<uint32_t>(load.out.size()),
                                       .out = load.out,
                                       .tag = tags_};
    const uint64_t deadline_us =
        prng_.NextChance(4) ? clock_.NowMicros() + 1 + prng_.NextBelow(2000) : 0;
    store_->Get({&request, 1}, deadline_us);
  }

  void Cancel() {
    if (loads_.empty()) return;
    auto load = loads_.begin();
    std::advance(load, prng_.NextBelow(loads_.size()));
    store_->Cancel(load->first);
    // The store must not write to the memory of a cancelled load: it is freed at once (sanitizers
    // watch).
    cancelled_.insert(load->first);
    load->second.sections.clear();
  }

  void Flush() {
    raw_bytes_.Learn(files_, cold_.directory);
    store_->Flush(++tags_);
    others_[tags_] = {.epochs = durable_epochs_};
  }

  void Erase() {
    const auto publisher = 1 + static_cast<uint32_t>(prng_.NextBelow(kPublishers - 1));
    ++epochs_[publisher];
    raw_bytes_.Learn(files_, cold_.directory);
    others_[++tags_] = {.publisher = publisher, .epoch = epochs_[publisher]};
    store_->Erase(tier::PublisherOf(Records::DomainOf(publisher)), epochs_[publisher], tags_);
  }

  // The copies of the epochs cannot be written, which may leave one torn, and the machine stops
  // while the store tries again.
  void EraseAndCrash() {
    const uint64_t wait_us = 2 * cold_.commit_interval_us;
    if (faults_ == Faults::kReported) files_.set_rates({.write_error = 1, .call_error = 1});
    Erase();
    for (int i = 0; i < 3; ++i) Tick(prng_.NextBelow(wait_us));
    files_.set_rates(RatesOf(faults_));
    for (uint64_t i = prng_.NextBelow(8); i > 0; --i) Tick(prng_.NextBelow(wait_us / 4));
    ++report_.crashes;
    Restart(2);
  }

  void FillDisk() {
    const bool full = faults_ != Faults::kCrashes && prng_.NextChance(2);
    files_.set_disk_bytes(full ? files_.bytes_used() : ~uint64_t{0});
  }

  void Tick(uint64_t advance_us) {
    clock_.Advance(advance_us);
    std::vector<StoreCompletion> done;
    store_->Tick(done, prng_.NextBelow(2000));
    for (const StoreCompletion& completion : done) End(completion);
  }

  void End(const StoreCompletion& completion) {
    digest_.UpdateNumber(completion.tag);
    digest_.UpdateNumber(completion.outcome);
    digest_.UpdateNumber(completion.miss);
    if (const auto put = puts_.find(completion.tag); put != puts_.end()) {
      const auto [name, gone] = put->second;
      puts_.erase(put);
      // A record that was written before its sectors went bad is still confirmed when it is synced.
      const auto doubt = doubtful_.find(name);
      const bool is_newer = doubt != doubtful_.end() && doubt->second < completion.tag;
      if (is_newer && completion.outcome == StoreOutcome::kOk) doubtful_.erase(doubt);
      EndPut(name, gone, completion.outcome);
      return;
    }
    if (const auto other = others_.find(completion.tag); other != others_.end()) {
      const auto [publisher, epoch, epochs] = other->second;
      others_.erase(other);
      if (completion.outcome != StoreOutcome::kOk) return;
      if (publisher != 0) {
        durable_epochs_[publisher] = std::max(durable_epochs_[publisher], epoch);
        return;
      }
      for (uint32_t p = 1; p < kPublishers; ++p) {
        wiped_epochs_[p] = std::max(wiped_epochs_[p], epochs[p]);
      }
      LookForErased();
      return;
    }
    const auto load = loads_.find(completion.tag);
    if (load == loads_.end()) {
      return Problem(report_.stuck, fmt::format("tag {} ended twice", completion.tag));
    }
    EndLoad(load->second, completion);
    loads_.erase(load);
    cancelled_.erase(completion.tag);
  }

  void EndPut(const RecordName& name, uint64_t gone, StoreOutcome outcome) {
    const bool there = outcome == StoreOutcome::kOk || outcome == StoreOutcome::kPresent;
    if (!there || gone < Gone() || name.epoch < epochs_[name.publisher] || Has(name)) return;
    Problem(report_.lost_bytes,
            fmt::format("record {} of publisher {} was put ({}) and is not there", name.number,
                        name.publisher, StoreOutcomeName(outcome)));
  }

  void EndLoad(const PendingLoad& load, const StoreCompletion& completion) {
    const RecordName& name = load.name;
    if (completion.outcome == StoreOutcome::kOk && !cancelled_.contains(completion.tag)) {
      ++report_.loaded;
      if (name.epoch < epochs_[name.publisher]) {
        return Problem(report_.wrong_bytes, "an erased record came back",
                       records_[name].layout().record_bytes());
      }
      const tier::TestRecord& record = records_[name];
      const size_t first = record.sections().size() - load.out.size();
      for (size_t i = 0; i < load.out.size(); ++i) {
        if (std::ranges::equal(load.out[i], record.sections()[first + i])) continue;
        return Problem(report_.wrong_bytes, fmt::format("wrong bytes of record {}", name.number),
                       load.out[i].size());
      }
    }
    const bool gone = completion.outcome == StoreOutcome::kMiss ||
                      (completion.outcome == StoreOutcome::kAbsent && load.found);
    if (gone && honest() && !doubtful_.contains(name)) {
      Problem(report_.unexplained, fmt::format("{} {} of a record that the store had",
                                               tier::StoreOutcomeName(completion.outcome),
                                               tier::RecordMissName(completion.miss)));
    }
  }

  // Inspects the store, or repairs it, while it is closed; calls and sectors fail as before.
  void UseTool(bool epochs_worn) {
    // A repair overwrites all of named tenants then, and their epochs begin anew.
    if (epochs_worn && !tier::ReadEpochs(files_, cold_.directory).table) epochs_lost_ = true;
    const auto report = [&]() -> Result<tier::StoreReport> {
      switch (tools_prng_.NextBelow(4)) {
        case 0: return tier::StatStore(files_, cold_.directory);
        case 1: return tier::VerifyStore(files_, cold_.directory);
        case 2: return tier::VerifyStoreBeside(files_, cold_.directory, [] {});
        default: return RepairStore();
      }
    }();
    // After a power cut there may be no store yet.
    using enum ErrorCode;
    const ErrorCode code = report ? kIo : report.error().code;
    if (code == kIo || code == kNoSpace || code == kNotFound) return;
    Problem(report_.stuck, "a tool fails: " + report.error().message);
  }
  Result<tier::StoreReport> RepairStore() {
    const uint64_t faults = files_.faults();
    auto report = tier::RepairStore(files_, cold_.directory);
    if (report && report->damaged > 0 && files_.faults() == faults && !worn_for_good()) {
      Problem(report_.unexplained, "repair leaves damage");
    }
    return report;
  }

  // What could be found before must be found afterwards. A record that could not and is there again
  // was being overwritten when the machine stopped: it may turn out to be damaged.
  void Restart(uint64_t how) {
    std::vector<RecordName> had;
    for (const RecordName& name : records_.Names()) {
      if (Has(name)) had.push_back(name);
    }
    const bool epochs_worn = EpochsAreWorn();
    if (how == 0) {
      store_.reset();  // a normal end without a flush
    } else {
      if (how == 1) files_.KillProcess();
      if (how > 1) files_.LosePower();
      store_.reset();
      files_.Restart();
    }
    puts_.clear();
    loads_.clear();
    cancelled_.clear();
    others_.clear();
    if (tools_prng_.NextChance(4)) UseTool(epochs_worn || EpochsAreWorn());
    const bool epochs_lost = epochs_lost_;
    Open(epochs_worn);
    if (report_.problems() > 0 || !honest()) return;
    for (const RecordName& name : records_.Names()) {
      if (Has(name) && !std::ranges::binary_search(had, name)) doubtful_[name] = tags_;
    }
    // Without its epochs a store serves nothing of named publishers until it is repaired; the
    // repair removes all of it. Open has checked whether the epochs may be lost.
    const bool serves_named = !store_->Stats().epochs_damaged && !epochs_lost;
    for (const RecordName& name : had) {
      if (name.epoch < epochs_[name.publisher] || Has(name)) continue;
      if (name.publisher != 0 && !serves_named) continue;
      if (doubtful_.contains(name)) continue;
      Problem(report_.lost_bytes,
              fmt::format("durable record {} of publisher {} is gone after a {}", name.number,
                          name.publisher,
                          how == 0   ? "close"
                          : how == 1 ? "kill"
                                     : "power cut"),
              records_[name].layout().record_bytes());
    }
  }

  // Ticks until every request has ended.
  bool Settle() {
    for (int i = 0; i < 20'000; ++i) {
      if (puts_.empty() && loads_.empty() && others_.empty()) return true;
      Tick(1000);
    }
    return false;
  }

  // Faults have stopped: everything that is found loads, and every put is stored.
  void Recover() {
    files_.set_rates({});
    files_.MendDisk();
    files_.set_disk_bytes(~uint64_t{0});
    if (!Settle()) {
      return Problem(report_.stuck,
                     fmt::format("{} puts, {} loads and {} flushes and erasures never ended",
                                 puts_.size(), loads_.size(), others_.size()));
    }
    Flush();
    if (!Settle()) return Problem(report_.stuck, "a flush never ended");
    Restart(0);
    if (report_.problems() > 0) return;
    const uint64_t loaded = report_.loaded;
    for (int i = 0; i < 100; ++i) {
      Get();
      if (!Settle()) return Problem(report_.stuck, "a load never ended");
    }
    // Records of the unnamed publisher can be stored in every state of the epochs.
    const RecordName fresh = {.publisher = 0, .epoch = 0, .number = kNumbers + 1};
    for (int i = 0; i < 3 && !Has(fresh); ++i) {
      const tier::TestRecord& record = records_[fresh];
      const tier::PutRequest request = {.identity = record.identity(),
                                        .layout = &record.layout(),
                                        .sections = record.sections(),
                                        .tag = ++tags_};
      puts_[tags_] = {.name = fresh, .gone = Gone()};
      store_->Put({&request, 1});
      if (!Settle()) return Problem(report_.stuck, "a put never ended");
    }
    if (!Has(fresh)) Problem(report_.stuck, "nothing can be stored any more");
    digest_.UpdateNumber(report_.loaded - loaded);
  }

  struct PendingPut {
    RecordName name{};
    uint64_t gone = 0;  // when it was put
  };
  struct Other {  // a flush, or an erasure
    uint32_t publisher = 0;
    uint64_t epoch = 0;
    std::array<uint64_t, kPublishers> epochs{};  // that were durable when a flush began
  };

  Prng tools_prng_;           // so that a run without tools is the same one
  bool epochs_lost_ = false;  // both copies, until a repair
  Records records_;
  RawBytes raw_bytes_;
  std::map<uint64_t, PendingPut> puts_;
  std::map<uint64_t, PendingLoad> loads_;
  std::map<uint64_t, Other> others_;
  std::set<uint64_t> cancelled_;
  std::map<RecordName, uint64_t> doubtful_;                // and the last tag before that
  std::array<uint64_t, kPublishers> epochs_ = {};          // as the tenants know them
  std::array<uint64_t, kPublishers> durable_epochs_ = {};  // as they were confirmed
  std::array<uint64_t, kPublishers> wiped_epochs_ = {};    // epochs before which all bytes are
                                                           // overwritten
  uint64_t tags_ = 0;
  std::unique_ptr<tier::ColdStore> store_;  // after the objects it uses
};

}  // namespace

SimReport RunColdSim(const SimOptions& options) { return ColdSim(options).Run(); }

}  // namespace quire::sim
