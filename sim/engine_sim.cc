#include "sim/engine_sim.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/bits.h"
#include "cache/below/store_state.h"
#include "cache/core.h"
#include "cache/test_util.h"
#include "serve/spill.h"
#include "sim/cache_memory.h"
#include "sim/cache_setup.h"
#include "sim/cache_users.h"
#include "sim/engine_oracle.h"
#include "sim/engine_outsiders.h"
#include "sim/engine_setup.h"
#include "sim/engine_users.h"
#include "sim/machine.h"
#include "sim/session_files.h"
#include "sim/session_texts.h"

namespace quire::sim {
namespace {

using Readers = EngineUsers::Readers;

class EngineSim : private Machine {
 public:
  explicit EngineSim(const SimOptions& options)
      : Machine(options, options.seed ^ 0xe951e),
        setup_(DrawEngineSetup(prng_, clock_, options.seed % 7 == 5, LadderOf(options.seed))),
        model_(MakeSimModel(setup_.model)),
        identity_(IdentityOf(*model_)),
        oracle_(setup_, *model_),
        session_files_(files_, prng_.Next64()),
        users_(setup_, oracle_, clock_, prng_, digest_, session_files_,
               [this](uint64_t SimReport::* counter, const std::string& what) {
                 Problem(report_.*counter, what);
               }) {
    cold_ = SomeColdOptions(prng_.NextChance(3) && !streams() ? 8 + prng_.NextBelow(8) : 60);
    cold_.commit_interval_us = 1000 + prng_.NextBelow(50'000);
    cold_.staging_bytes = 512U << 10;
    turns_by_itself_ = !prng_.NextChance(3);
  }

  SimReport Run() {
    Open();
    SetFaults(true);
    for (; report_.steps < options_.steps && report_.problems() == 0; ++report_.steps) Step();
    if (report_.problems() == 0) Recover();
    Close();
    report_.answers = users_.answers();
    report_.loaded = users_.loaded();
    report_.arrived = users_.arrived();
    report_.streamed = users_.streamed();
    return Finish();
  }

 private:
  void Note(uint64_t number) { digest_.UpdateNumber(number); }
  bool streams() const { return setup_.engine.resident_tokens > 0; }

  void SetFaults(bool on) {
    files_.set_rates(on ? RatesOf(faults_) : FaultRates());
    session_files_.set_rate(on && faults_ != Faults::kCrashes ? 30 : 0);
    if (on) return;
    files_.MendDisk();
    files_.set_disk_bytes(~uint64_t{0});
  }

  // The machine and what runs on it.

  void Open() {
    auto opened = OpenStore();
    if (opened == nullptr) return;
    auto transfers = std::make_unique<transfer::Transfers>(std::move(opened), transfers_clock_);
    transfers_ = transfers.get();
    store_ = cache::StoreState::Wrap(std::move(transfers));
    CacheOptions options = setup_.cache;
    options.store = store_.get();
    options.memory = memory_.memory();
    cache_ = cache::MakeCache(std::move(options));
    tenants_ = AddParties(
        *cache_, {.quotas_of = setup_.cache.hot_bytes, .floors_of = setup_.cache.hot_bytes});
    session_files_.set_rate(0);
    files_.set_rates({});
    sessions_ = cache::Must(serve::SessionStore::Open(
        session_files_, {.directory = SessionFiles::kDirectory,
                         .fingerprint = serve::FingerprintOf(identity_, "{}"),
                         .unix_us = [this] { return clock_.NowMicros(); }}));
    serve::EngineOptions engine = setup_.engine;
    engine.sessions = sessions_.get();
    engine_ = cache::Must(serve::Engine::Create({.model = *model_,
                                                 .cache = *cache_,
                                                 .attention = *attention_,
                                                 .executor = *executor_,
                                                 .clock = engine_clock_},
                                                identity_, engine));
    turn_at_us_ = 0;
    outsiders_.Begin(*cache_, identity_);
    NoteBudget();
    users_.Begin(*engine_, tenants_, sessions_->found());
    SetFaults(true);
  }

  void Close() {
    users_.End();
    outsiders_.End();
    engine_.reset();
    sessions_.reset();
    cache_.reset();
    store_.reset();
  }

  /// `how`: 0 asks it to end, 1 kills the process, others cut the power.
  void Restart(uint64_t how) {
    ++report_.crashes;
    if (how == 0) EndInOrder();
    if (report_.problems() > 0) return;
    users_.End();
    engine_.reset();  // its cancelled requests may wait for the disk
    outsiders_.End();
    CheckDrained();
    if (how == 1) files_.KillProcess();
    if (how > 1) files_.LosePower();
    sessions_.reset();
    cache_.reset();
    store_.reset();
    if (how > 0) files_.Restart();
    session_files_.Restart();
    stops_at_ = kNever;
    Open();
  }

  // Ends as the driver does: cancels everything, and every waiting request gets an answer.
  void EndInOrder() {
    while (true) {
      users_.CancelAll();
      const serve::TickReport report = Tick();
      if (report.settled) break;
      sessions_->Tick();
    }
    users_.Hear(Readers::kAll);
    if (users_.AllEnded(Readers::kAll)) return;
    Problem(report_.stuck, "at the end " + users_.FirstUnended(Readers::kAll));
  }

  // What happens.

  void Step() {
    transfers_clock_.BeginStep();
    engine_clock_.BeginStep();
    if (report_.steps >= stops_at_ && (files_.stopped() || report_.steps >= stops_at_ + 20)) {
      if (!files_.stopped()) files_.StopAfter(0);
      Restart(1 + prng_.NextBelow(2));
    }
    if (report_.problems() > 0) return;
    Act(prng_.NextBelow(1000));
    if (report_.problems() > 0) return;
    Wear();
    WearSession();
    NoteBudget();
    users_.Hear(Readers::kQuick);
    CheckStep();
  }

  // A long request takes hundreds of turns: what ends all requests is rare where contexts stream, or
  // none of them would end by itself.
  void Act(uint64_t dice) {
    const bool ends_requests = (dice >= 220 && dice < 250) || (dice >= 572 && dice < 607);
    if (ends_requests && streams() && !prng_.NextChance(12)) dice = 999;
    if (dice < 6 && streams()) {
      const uint64_t tokens = serve::TokensThatMayFit(*cache_) + 1 + prng_.NextBelow(400);
      users_.SubmitLong(std::min(RoundUp(tokens, uint64_t{100}), uint64_t{4000}));
    } else if (dice < 150) {
      users_.Submit();
    } else if (dice < 220) {
      users_.Ask();
    } else if (dice < 250) {
      users_.CancelOne();
    } else if (dice < 310) {
      ChangeTalks();
    } else if (dice < 350) {
      users_.Hear(Readers::kSlow);
    } else if (dice < 470) {
      TickTransfers();
    } else if (dice < 550) {
      sessions_->Tick();
    } else if (dice < 562) {
      Resize();
    } else if (dice < 570) {
      Note(cache_->Evict(1 + prng_.NextBelow(20)));
    } else if (dice < 572) {
      if (cache_->Verify().damaged > 0) Problem(report_.wrong_bytes, "damage in memory");
    } else if (dice < 574) {
      const uint32_t party = users_.AnyParty();
      users_.EraseParty(party);
      Erase(party);
    } else if (dice < 576) {
      EraseAccount(AccountOf(users_.AnyParty()));
    } else if (dice < 582) {
      engine_->GiveWay();
    } else if (dice < 590) {
      ChangeFaults();
    } else if (dice < 597) {
      Crash();
    } else if (dice < 607) {
      Drain();
    } else if (dice < 612) {
      TakeOutside();
    } else if (dice < 616) {
      outsiders_.GiveBack();
    } else if (dice < 620) {
      outsiders_.Pin(users_.SomeText(/*party=*/0));
    } else if (dice < 640) {
      clock_.Advance(prng_.NextBelow(30'000));
    } else {
      for (uint64_t i = 1 + prng_.NextBelow(12); i > 0; --i) Turn();
    }
  }

  bool Erase(uint32_t party) {
    users_.NoteErased(AccountOf(party));
    const bool erased = cache_->Erase(tenants_[party]).has_value();
    Note(erased ? 1 : 0);
    if (tenants_[party] == kDefaultTenant) outsiders_.NoteErased();
    return erased;
  }

  /// Erases all members of an account while no request is under way: then no byte of it is
  /// anywhere.
  void EraseAccount(uint32_t account) {
    Drain();
    if (report_.problems() > 0) return;
    if (account == 0) outsiders_.End();
    Note(store_->Flush() ? 1 : 0);
    memory_.Learn(files_, cold_.directory);
    SessionTexts texts;
    bool gone = true;
    uint64_t unsettled = 0;
    for (uint32_t party = 0; party < kEngineParties.size(); ++party) {
      if (AccountOf(party) != account || kEngineParties[party].shared) continue;
      texts.Learn(session_files_, kEngineParties[party].name);
      ++unsettled;
      users_.EraseParty(party, [&](bool settled) {
        --unsettled;
        gone = gone && settled;
      });
      gone = Erase(party) && gone;
    }
    while (unsettled > 0) {
      Tick();
      sessions_->Tick();
    }
    if (gone && honest() && !worn_for_good()) LookForErased(account, texts);
  }

  void LookForErased(uint32_t account, const SessionTexts& texts) {
    if (!store_->Flush() || files_.stopped()) return;
    ++report_.scanned;
    const tier::PublisherId publisher =
        tier::PublisherOf(account == 0 ? "" : kEngineParties[account].name);
    memory_.Learn(files_, cold_.directory);
    const std::string found =
        memory_.Find(publisher, transfers_->EpochOf(publisher), files_,
                     /*is_idle=*/files_.in_flight() == 0, {}, /*everything=*/true);
    if (!found.empty()) Problem(report_.wrong_bytes, found);
    if (const std::string text = texts.Find(session_files_); !text.empty()) {
      Problem(report_.wrong_bytes, text);
    }
  }

  /// As Wear, for a session's file.
  void WearSession() {
    if (faults_ == Faults::kCrashes || !session_prng_.NextChance(300)) return;
    const std::vector<std::string> paths = session_files_.paths();
    if (paths.empty()) return;
    const std::string& path = paths[session_prng_.NextBelow(paths.size())];
    const uint64_t bytes = files_.Contents(path)->size();
    if (bytes == 0) return;
    const bool for_good = session_prng_.NextChance(8);
    files_.Damage(path, session_prng_.NextBelow(bytes), 1,
                  for_good ? BadSectors::kForGood : BadSectors::kUntilWritten);
  }

  void ChangeTalks() {
    switch (prng_.NextBelow(8)) {
      case 0:
      case 1:
      case 2: return users_.OpenTalk();
      case 3: return users_.ForkTalk();
      case 4: return users_.EndTalk();
      default: return users_.CloseTalk();
    }
  }

  void ChangeFaults() {
    if (faults_ == Faults::kCrashes) return;
    switch (prng_.NextBelow(4)) {
      case 0: return files_.set_disk_bytes(files_.bytes_used() + prng_.NextBelow(300));
      case 1: return SetFaults(false);
      default: return SetFaults(true);
    }
  }

  void Resize() {
    const uint64_t most = setup_.cache.hot_bytes_max;
    Note(cache_->Resize(most / 4 + prng_.NextBelow(most - most / 4)).has_value() ? 1 : 0);
  }

  /// The budget less what other owners hold.
  uint64_t BudgetBytes() const {
    const uint64_t bytes = cache_->stats().hot_bytes_limit;
    return bytes - std::min(bytes, outsiders_.bytes());
  }
  void NoteBudget() { users_.NoteBudget(BudgetBytes()); }

  /// Another owner takes room; an engine that gives way evicts for it.
  void TakeOutside() {
    constexpr int kAsksMax = 500;
    const uint64_t tokens = outsiders_.SomeLength();
    for (int asks = 0; !outsiders_.Take(tokens); ++asks) {
      const bool fits = oracle_.Fits(0, BudgetBytes(), tokens, tokens, /*step_tokens=*/16);
      if (!fits || setup_.engine.outside_retry_us == 0) break;
      engine_->GiveWay();
      if (asks == kAsksMax) {
        return Problem(report_.stuck, fmt::format("outside {} tokens find no room", tokens));
      }
      Tick();
      transfers_->Tick(0);
    }
    NoteBudget();
  }

  void Crash() {
    if (stops_at_ != kNever) return;
    if (prng_.NextChance(3)) return Restart(0);
    if (prng_.NextChance(2)) return Restart(1 + prng_.NextBelow(2));
    files_.StopAfter(prng_.NextBelow(40));  // in the middle of a later operation
    stops_at_ = report_.steps;
  }

  serve::TickReport Tick() {
    const uint64_t begin_us = clock_.NowMicros();
    const serve::TickReport report = engine_->Tick();
    users_.NoteTick(begin_us);
    turn_at_us_ = report.worked ? 0 : report.wait_us == kNever ? kNever : begin_us + report.wait_us;
    return report;
  }

  /// Ticks the engine when the driver would: not before there is a reason. False: there is none.
  bool Turn() {
    const bool due = engine_->AwaitChange(0) || turn_at_us_ <= clock_.NowMicros();
    if (!due && turns_by_itself_) return false;
    Note(Tick().worked ? 1 : 0);
    return due;
  }

  bool TickTransfers() {
    clock_.Advance(prng_.NextBelow(20'000));
    bool worked = false;
    for (uint64_t i = 1 + prng_.NextBelow(4); i > 0; --i) {
      worked = transfers_->Tick(prng_.NextBelow(2000)) || worked;
    }
    Note(worked ? 1 : 0);
    return worked;
  }

  // What is checked.

  void CheckStep() {
    if (report_.problems() > 0) return;
    const CacheStats stats = cache_->stats();
    Note(stats.hot_bytes_used);
    if (std::max(stats.hot_bytes_used, stats.hot_bytes_peak) > stats.hot_bytes_limit) {
      Problem(report_.over_cap, fmt::format("{} bytes of memory, budget {}", stats.hot_bytes_peak,
                                            stats.hot_bytes_limit));
    }
    for (const TenantId tenant : tenants_) {
      const TenantStats of = cache::Must(cache_->tenant_stats(tenant));
      if (of.quota_bytes == 0 || of.bytes_used <= of.quota_bytes) continue;
      Problem(report_.over_cap,
              fmt::format("\"{}\" has {} bytes, quota {}", of.name, of.bytes_used, of.quota_bytes));
    }
    const serve::EngineStats engine = engine_->stats();
    if (engine.running > setup_.engine.running_max ||
        engine.step_prompt_tokens_max > setup_.engine.chunk_tokens_max) {
      Problem(report_.over_cap, fmt::format("{} requests run, steps of {} tokens", engine.running,
                                            engine.step_prompt_tokens_max));
    }
    if (report_.steps % 8 > 0) return;
    if (const std::string wrong = outsiders_.WrongPin(); !wrong.empty()) {
      Problem(report_.lost_bytes, wrong);
    }
    static_cast<cache::Core&>(*cache_).CheckDirectory();
    uint64_t store_bytes = 0;
    for (const std::string& path : files_.Paths()) {
      if (path.starts_with(cold_.directory + "/")) store_bytes += files_.Contents(path)->size();
    }
    if (store_bytes > cold_.bytes_cap) {
      Problem(report_.over_cap, fmt::format("{} bytes, cap {}", store_bytes, cold_.bytes_cap));
    }
  }

  /// Ends every request. First without those whose readers never read: they must not stop the
  /// others.
  void Drain() {
    for (const Readers readers : {Readers::kSlow, Readers::kAll}) DrainOf(readers);
  }

  /// Ticks the engine only when the driver would, so that a request that waits for ever is noticed.
  void DrainOf(Readers readers) {
    constexpr uint64_t kRoundsMax = 20'000;
    constexpr uint64_t kPatience = 1000;  // rounds
    uint64_t idle_us = 0;
    for (uint64_t round = 0; !users_.AllEnded(readers) && report_.problems() == 0; ++round) {
      transfers_clock_.BeginStep();
      engine_clock_.BeginStep();
      if (round > kRoundsMax || idle_us > 300'000'000) {
        return Problem(report_.stuck, users_.FirstUnended(readers) +
                                          (idle_us > 0 ? " waits for nothing" : " never ends"));
      }
      if (round % kPatience == kPatience - 1 && setup_.engine.outside_retry_us > 0) {
        users_.CancelTooLarge();
      }
      bool worked = Turn();
      worked = transfers_->Tick(1000) || worked;
      worked = sessions_->Tick() || worked;
      users_.Hear(readers);
      if (worked) {
        idle_us = 0;
        continue;
      }
      const uint64_t next_us = 1000 + idle_us / 2;
      idle_us += next_us;
      clock_.Advance(next_us);
    }
  }

  /// Without an engine nothing is held: all can be evicted, and nothing is left.
  void CheckDrained() {
    const std::string left = LeftInDrained(*cache_);
    if (!left.empty()) Problem(report_.leaked, left);
  }

  // Faults have stopped: every request ends, and sessions continue.
  void Recover() {
    transfers_clock_.BeginStep();
    engine_clock_.BeginStep();
    faults_ = honest() ? Faults::kCrashes : faults_;
    if (stops_at_ != kNever) Restart(2);
    if (report_.problems() > 0) return;
    SetFaults(false);
    Drain();
    for (const uint64_t how : {0, 2}) {
      if (report_.problems() > 0) return;
      Restart(how);
      SetFaults(false);
      for (int i = 0; i < 10 && report_.problems() == 0; ++i) {
        users_.Ask();
        users_.Submit();
        Drain();
      }
    }
  }

  PassingClock transfers_clock_{clock_};
  PassingClock engine_clock_{clock_};
  const EngineSetup setup_;
  const std::unique_ptr<model::Model> model_;
  const Identity identity_;
  EngineOracle oracle_;
  SessionFiles session_files_;
  EngineUsers users_;
  EngineOutsiders outsiders_{setup_, prng_};
  bool turns_by_itself_ = false;  // ticks only when the driver would
  uint64_t stops_at_ = kNever;    // step since which the machine is about to stop
  uint64_t turn_at_us_ = 0;       // when the driver would tick the engine though nothing changed
  std::array<TenantId, kEngineParties.size()> tenants_{};
  const std::unique_ptr<Executor> executor_ = MakeThreadPool(1);
  const std::unique_ptr<AttentionBackend> attention_ = cache::Must(MakeCpuAttention());
  Prng session_prng_{options_.seed ^ 0x5e55};  // of bad sectors of sessions' files
  // The first layer, and the first block of a text, have the same bytes in several accounts.
  CacheMemory memory_{nullptr, RawBytes(/*layer_first=*/1, /*block_first=*/1)};
  std::unique_ptr<DiskStore> store_;  // after the objects it uses
  transfer::Transfers* transfers_ = nullptr;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<serve::SessionStore> sessions_;
  std::unique_ptr<serve::Engine> engine_;
};

}  // namespace

SimReport RunEngineSim(const SimOptions& options) { return EngineSim(options).Run(); }

}  // namespace quire::sim
