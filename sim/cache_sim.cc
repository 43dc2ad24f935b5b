#include "sim/cache_sim.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>

#include "base/check.h"
#include "cache/below/store_state.h"
#include "cache/core.h"
#include "sim/cache_device.h"
#include "sim/cache_guests.h"
#include "sim/cache_memory.h"
#include "sim/cache_oracle.h"
#include "sim/cache_setup.h"
#include "sim/cache_streams.h"
#include "sim/cache_users.h"
#include "sim/machine.h"

namespace quire::sim {
namespace {

constexpr uint32_t kBlock = 16;  // tokens
constexpr uint64_t kCommitSlackUs = 150'000;
constexpr float kAnyError = std::numeric_limits<float>::infinity();
// Of a value of the pretended model, at most 127, after four bits and the rotation.
constexpr float kDifferenceMax = 60.0f;

class CacheSim : private Machine {
 public:
  explicit CacheSim(const SimOptions& options) : Machine(options, options.seed ^ 0x51be) {
    const bool is_tight = prng_.NextChance(3);
    const uint64_t segments = is_tight ? 8 + prng_.NextBelow(8) : 150;
    cold_ = SomeColdOptions(segments);
    cold_.commit_interval_us = 1000 + prng_.NextBelow(100'000);
    spread_us_ = options.seed % 3 == 0 ? cold_.commit_interval_us : 0;
    cold_.staging_bytes = uint64_t{prng_.NextChance(3) ? 512U : 2048U} << 10;
    cold_.scrub_bytes_per_s = prng_.NextChance(2) ? uint64_t{1} << 20 : 0;
    cache_options_ = DrawCacheOptions(prng_, clock_);
    // Odd seeds alone, so that even ones are the same runs as before this was added.
    meets_ = options_.seed % 2 == 1 && CanMeet(cache_options_);
    streams_ = options_.seed % 7 == 5 && CanStream(cache_options_);
    // The ring of a context that streams and its last tokens take more than other contexts.
    if (streams_) cache_options_.hot_bytes_max = cache_options_.hot_bytes = 2'500'000;
    sides_.resize(prng_.NextChance(3) ? 2 : 1);
    if (options.seed % 5 == 4) {
      cache_options_.placement = PlacementOf(options.seed);
      for (size_t i = 0; i < sides_.size(); ++i) guests_.emplace_back(options.seed * 3 + i);
    }
    const bool is_plain = guests_.empty() && !streams_ && !IsOnDevice(options.seed);
    const std::string_view ladder = LadderOf(options.seed);
    if (!ladder.empty() && is_plain && CanHaveLadder(cache_options_)) {
      cache::Must(SetLadder(ladder, cache_options_.profile));
    }
    meets_ = meets_ && CanMeet(cache_options_);
    cold_answers_ = std::make_unique<ColdAnswers>(cache_options_);
    if (guests_.empty() && IsOnDevice(options.seed)) {
      device_ = std::make_unique<CacheDevice>(options.seed);
      cache_options_.ops = &device_->ops();
    }
    memory_.emplace(device_.get());
    cache_options_.memory = memory_->memory();
  }

  SimReport Run() {
    Open();
    files_.set_rates(RatesOf(faults_));
    for (; report_.steps < options_.steps && report_.problems() == 0; ++report_.steps) Step();
    if (report_.problems() == 0) Recover();
    Close();
    return Finish();
  }

 private:
  void Note(uint64_t number) { digest_.UpdateNumber(number); }
  bool has_ladder() const { return cache_options_.profile.has_ladder(); }
  // Nor does any call report an error.
  bool calm() const { return faults_ == Faults::kCrashes && !files_.stopped(); }

  // The machine and what runs on it.

  void Open() {
    auto opened = OpenStore();
    if (opened == nullptr) return;
    // Without a catalogue the store claims records that a crash may have torn, until they are read.
    doubts_ = doubts_ || opened->recovery().catalogue_rebuilt;
    disk_ = opened.get();
    std::unique_ptr<tier::Store> below = std::move(opened);
    if (device_ != nullptr) below = device_->InFrontOf(std::move(below), clock_);
    auto transfers = std::make_unique<transfer::Transfers>(
        std::move(below), transfers_clock_, transfer::TransferOptions{.spread_us = spread_us_});
    transfers_ = transfers.get();
    store_ = cache::StoreState::Wrap(std::move(transfers));
    // A crash may tear one copy of the epochs while the other one lies on bad sectors.
    const bool epochs_lost = transfers_->stats().epochs_damaged && EpochsAreWorn();
    if (epochs_lost) expected_.clear();
    for (uint32_t party = 0; party < kParties.size(); ++party) CheckEpoch(party, epochs_lost);
    cache_options_.store = store_.get();
    for (Side& side : sides_) {
      side.cache = cache::MakeCache(cache_options_);
      side.tenants[0] = kDefaultTenant;
      for (uint32_t party = 1; party < kParties.size(); ++party) AddTenant(side, party);
    }
  }

  void CheckEpoch(uint32_t account, bool epochs_lost) {
    if (kParties[account].account != account) return;
    computed_.Restart(account);
    exact_.Restart(account);
    const uint64_t epoch = EpochOf(account);
    if (epoch >= durable_epochs_[account]) return;
    durable_epochs_[account] = epoch;
    // The store forgets the epoch of an account that had stored nothing: nothing could come back.
    if (transfers_->UsageOf(tier::PublisherOf(kParties[account].name)) == tier::PublisherUsage{})
      return;
    if (honest() && !epochs_lost) {
      return Problem(report_.lost_bytes,
                     fmt::format("an epoch of \"{}\" is {} again", kParties[account].name, epoch),
                     sizeof(epoch));
    }
    computed_.LoseEpoch(account);
    exact_.LoseEpoch(account);
  }
  uint64_t EpochOf(uint32_t account) const {
    return transfers_->EpochOf(tier::PublisherOf(kParties[account].name));
  }

  void AddTenant(Side& side, uint32_t party) {
    const Party& who = kParties[party];
    side.tenants[party] = cache::Must(
        side.cache->AddTenant({.name = who.name,
                               .quota_bytes = who.has_quota ? cache_options_.hot_bytes / 2 : 0,
                               .domain = who.domain,
                               .shared = who.shared,
                               .ttl_us = who.ttl_us}));
  }

  uint64_t Recycled() const {
    const uint64_t above = device_ == nullptr ? 0 : device_->lost_above();
    return recycled_before_ + store_->stats().records_recycled + above;
  }

  void Close() {
    for (Side& side : sides_) {
      EndUses(side);
      side.cache.reset();
    }
    store_.reset();
  }

  CacheGuests* GuestsOf(const Side& side) {
    return guests_.empty() ? nullptr : &guests_[static_cast<size_t>(&side - sides_.data())];
  }
  // Afterwards nothing is held.
  void EndUses(Side& side) {
    if (CacheGuests* const guests = GuestsOf(side)) guests->End(side, identities_);
    side.Close();
  }

  void Restart(uint64_t how) {
    ++report_.crashes;
    for (Side& side : sides_) {
      EndUses(side);
      side.cache.reset();
    }
    recycled_before_ = Recycled();  // the flushes above wrote more
    if (how == 1) files_.KillProcess();
    if (how > 1) files_.LosePower();
    store_.reset();
    if (how > 0) files_.Restart();
    stops_at_ = kNever;
    Open();
    if (report_.problems() > 0) return;
    CheckExpected(sides_[0]);
  }

  // What happens.

  void Step() {
    transfers_clock_.BeginStep();
    if (report_.steps >= stops_at_ && (files_.stopped() || report_.steps >= stops_at_ + 20)) {
      if (!files_.stopped()) files_.StopAfter(0);
      Restart(1 + prng_.NextBelow(3));
    }
    if (report_.problems() > 0) return;
    Side& side = sides_[prng_.NextBelow(sides_.size())];
    const uint64_t dice = prng_.NextBelow(1000);
    if (dice < 230) {
      Begin(side);
    } else if (dice < 380) {
      Extend(side);
    } else if (dice < 410) {
      Rollback(side);
    } else if (dice < 500) {
      CloseOne(side);
    } else if (dice < 620) {
      EndLoad(side);
    } else if (dice < 660) {
      Note(side.cache->Evict(1 + prng_.NextBelow(40)));
    } else if (dice < 670) {
      Verify(side);
    } else if (dice < 685) {
      const uint64_t most = cache_options_.hot_bytes_max;
      Note(side.cache->Resize(most / 3 + prng_.NextBelow(most - most / 3)).has_value() ? 1 : 0);
    } else if (dice < 693) {
      Erase(AnyParty(prng_), guests_.empty() ? order_prng_.NextBelow(4) : 3);
    } else if (dice < 695) {
      RemoveTenant();
    } else if (dice < 715) {
      Checkpoint(side);
    } else if (dice < 725) {
      Crash();
    } else if (dice < 729) {
      const bool full = faults_ != Faults::kCrashes && prng_.NextChance(2);
      files_.set_disk_bytes(full ? files_.bytes_used() : ~uint64_t{0});
    } else if (dice < 740) {
      CheckDrained(side);
    } else {
      Tick();
    }
    if (CacheGuests* const guests = GuestsOf(side)) {
      const std::string wrong = guests->Act(side, identities_);
      if (!wrong.empty()) Problem(report_.wrong_bytes, wrong);
    }
    if (streams_ && order_prng_.NextChance(12)) Stream(side);
    if (device_ != nullptr && !honest()) device_->Act();
    if (Wear()) {
      doubts_ = true;
      expected_.clear();
    }
    CheckStep();
  }

  void Tick() {
    clock_.Advance(prng_.NextBelow(20'000));
    for (uint64_t i = 1 + prng_.NextBelow(4); i > 0; --i) {
      Note(transfers_->Tick(prng_.NextBelow(2000)) ? 1 : 0);
    }
  }

  void Crash() {
    if (stops_at_ != kNever) return;
    if (prng_.NextChance(4)) return Restart(0);
    if (prng_.NextChance(3)) return Restart(1 + prng_.NextBelow(3));
    files_.StopAfter(prng_.NextBelow(40));  // in the middle of a later operation
    stops_at_ = report_.steps;
  }

  Plan Acquire(Side& side, const Origin& origin, std::span<const TokenId> tokens) {
    if (!has_ladder()) return Acquire(side, origin, tokens, /*error_max=*/0.0f);
    constexpr std::array kBounds = {0.0f, 0.05f, kAnyError};
    return Acquire(side, origin, tokens, kBounds[order_prng_.NextBelow(kBounds.size())]);
  }
  // What a restart leaves of a ladder is in the lower precision.
  Plan AcquireStored(Side& side, const Origin& origin, std::span<const TokenId> tokens) {
    return Acquire(side, origin, tokens, has_ladder() ? kAnyError : 0.0f);
  }
  Plan Acquire(Side& side, const Origin& origin, std::span<const TokenId> tokens, float error_max) {
    Plan plan = cache::Must(side.cache->Acquire({.tenant = side.tenants[origin.party],
                                                 .identity = &identities_[origin.variant],
                                                 .tokens = tokens,
                                                 .approximate_error_max = error_max}));
    const uint64_t resident = plan.resident_tokens() / kBlock;
    if (has_ladder() && error_max == 0 && exact_.Allowed(origin, tokens, resident) < resident) {
      Problem(report_.wrong_bytes, "what was computed after approximate blocks counts as exact");
    }
    const bool accepts = plan.approximate_tokens() == 0 || error_max > 0;
    if (!accepts || plan.approximate_error() > error_max) {
      Problem(report_.wrong_bytes,
              fmt::format("{} tokens with an error of {}, {} is accepted",
                          plan.approximate_tokens(), plan.approximate_error(), error_max));
    }
    Note(plan.resident_tokens());
    Note(plan.loadable_tokens());
    Note(static_cast<uint64_t>(plan.reason()));
    CheckPlan(origin, tokens, plan);
    return plan;
  }

  void CheckPlan(const Origin& origin, std::span<const TokenId> tokens, const Plan& plan) {
    if (const auto wrong = WrongWith(plan, origin, tokens, computed_)) {
      Problem(report_.*wrong->first, wrong->second);
    }
  }

  void Begin(Side& side) {
    if (side.lives.size() + side.loads.size() > 6) return CloseOne(side);
    const Origin origin = {.party = AnyParty(prng_), .variant = prng_.NextChance(6) ? 1U : 0U};
    const Text text = {.base = prng_.NextBelow(3),
                       .fork = kBlock * prng_.NextBelow(6),
                       .branch = prng_.NextBelow(3)};
    const std::vector<TokenId> tokens = text.First(1 + prng_.NextBelow(8 * kBlock));
    recent_.push_front({.origin = origin, .tokens = tokens});
    if (recent_.size() > 8) recent_.pop_back();
    Plan plan = Acquire(side, origin, tokens);
    if (plan.loadable_tokens() > 0 && !prng_.NextChance(6)) {
      return BeginLoad(side, origin, tokens, std::move(plan));
    }
    if (prng_.NextChance(12)) {
      if (side.plans.size() < 2) side.plans.push_back(std::move(plan));
      return;
    }
    OpenPlan(side, origin, tokens, std::move(plan));
  }

  void BeginLoad(Side& side, const Origin& origin, const std::vector<TokenId>& tokens, Plan plan) {
    const bool hurries = prng_.NextChance(5);
    Loading load = {.origin = origin,
                    .tokens = tokens,
                    .resident = plan.resident_tokens(),
                    .recycled = Recycled(),
                    .damaged = store_->stats().records_damaged,
                    .is_calm = calm() && !hurries};
    const bool meets = meets_ && order_prng_.NextChance(2);
    load.by_layer = !meets && layer_prng_.NextChance(4);
    const LoadOrder other = load.by_layer ? LoadOrder::kByLayer : LoadOrder::kFromFront;
    auto ticket = side.cache->Load(std::move(plan),
                                   {.timeout_us = hurries ? 1 + prng_.NextBelow(3000) : 0,
                                    .order = meets ? LoadOrder::kFromEnd : other});
    Note(ticket ? 0 : static_cast<uint64_t>(ticket.error().code));
    if (!ticket) return;
    load.ticket = *std::move(ticket);
    if (meets) BeginFront(side, load);
    // Most loads are short, so their first layers are looked for at once.
    for (int tries = 0; load.by_layer && tries < 30 && !BeginArriving(side, load); ++tries) {
      transfers_->Tick(5);
    }
    side.loads.push_back(std::move(load));
  }

  void BeginFront(Side& side, Loading& load) {
    auto opened = side.cache->Open(load.ticket->Front(1), {.on_full = OnFull::kHalt});
    Note(opened ? 0 : static_cast<uint64_t>(opened.error().code));
    if (!opened) return;
    const auto resident = static_cast<ptrdiff_t>(load.resident);
    load.front = {.origin = load.origin,
                  .tokens = {load.tokens.begin(), load.tokens.begin() + resident},
                  .computed = load.resident / kBlock,
                  .sequence = *std::move(opened)};
    Compare(load.front);
  }

  // Whether it begins with what has the first layers by now.
  bool BeginArriving(Side& side, Loading& load) {
    auto plan = load.ticket->Arriving();
    if (!plan) return false;
    const auto resident = static_cast<ptrdiff_t>(plan->resident_tokens());
    auto opened = side.cache->Open(*std::move(plan), {.on_full = OnFull::kHalt});
    Note(opened ? 0 : static_cast<uint64_t>(opened.error().code));
    if (!opened) return false;
    load.front = {.origin = load.origin,
                  .tokens = {load.tokens.begin(), load.tokens.begin() + resident},
                  .computed = static_cast<uint64_t>(resident) / kBlock,
                  .sequence = *std::move(opened)};
    return true;
  }

  // What began with some layers has all of them when the load has brought all blocks.
  void TakeArrived(Side& side, Loading& load) {
    Live front = std::move(load.front);
    if (front.sequence == nullptr || front.sequence->arrives()) return;
    ++report_.arrived;
    Compare(front);
    if (Compute(front, load.tokens)) side.lives.push_back(std::move(front));
  }

  void ComputeFront(Loading& load) {
    Live& front = load.front;
    const uint64_t to = std::min(load.ticket->progress().meet_tokens,
                                 front.tokens.size() + 1 + order_prng_.NextBelow(3 * kBlock));
    if (to > front.tokens.size() && !Compute(front, std::span(load.tokens).first(to))) front = {};
    load.ticket->Meet(front.tokens.size());
    if (order_prng_.NextChance(20)) front = {};  // the sequence is dropped
  }

  void EndLoad(Side& side) {
    if (side.loads.empty()) return Tick();
    const size_t i = prng_.NextBelow(side.loads.size());
    Loading& load = side.loads[i];
    const bool is_shared = load.origin.account() != load.origin.party && guests_.empty();
    if (is_shared && order_prng_.NextChance(8)) {  // the load may bring blocks of the other member
      return Erase(MateOf(load.origin.party), 2 + order_prng_.NextBelow(2));
    }
    if (load.by_layer) {
      const bool may_begin = load.front.sequence == nullptr && layer_prng_.NextChance(2);
      if (may_begin && BeginArriving(side, load)) return;
    } else if (load.front.sequence != nullptr && order_prng_.NextChance(2)) {
      return ComputeFront(load);
    }
    if (prng_.NextChance(4)) {
      Note(load.ticket->WaitFor(prng_.NextBelow(5000)) ? 1 : 0);
      return;
    }
    if (prng_.NextChance(5)) {
      load.ticket->Cancel();
      load.is_calm = false;
      if (prng_.NextChance(2)) return;
    }
    Loading ending = std::move(load);
    side.loads.erase(side.loads.begin() + static_cast<ptrdiff_t>(i));
    if (prng_.NextChance(8)) return;  // it is dropped
    Take(side, ending);
  }

  void Take(Side& side, Loading& load) {
    Plan plan = load.ticket->Take();
    Note(plan.resident_tokens());
    Note(static_cast<uint64_t>(plan.reason()));
    CheckPlan(load.origin, load.tokens, plan);
    const MissReason why = plan.reason();
    const bool failed = why == MissReason::kLoadFailed || why == MissReason::kLoadLate;
    // A record that was being written when a machine stopped may turn out to be torn when it is
    // read.
    const bool torn = report_.crashes > 0 && store_->stats().records_damaged > load.damaged;
    if (load.is_calm && calm() && !torn && load.recycled == Recycled()) {
      if (failed || plan.resident_tokens() < load.resident) {
        Problem(report_.unexplained,
                fmt::format("a load ended as {}, {} tokens resident, {} before",
                            MissReasonName(why), plan.resident_tokens(), load.resident));
      }
    }
    if (plan.resident_tokens() > load.resident) ++report_.loaded;
    if (load.by_layer) TakeArrived(side, load);
    OpenPlan(side, load.origin, load.tokens, std::move(plan));
  }

  void OpenPlan(Side& side, const Origin& origin, const std::vector<TokenId>& tokens, Plan plan) {
    const uint64_t resident = plan.resident_tokens();
    const bool approximate = plan.approximate_tokens() > 0;
    const bool grows = prng_.NextChance(3);
    SequenceOptions options = {.reserve_tokens = grows ? tokens.size() + 40 : 0,
                               .on_full = OnFull::kHalt};
    if (CacheGuests* const guests = GuestsOf(side)) options = guests->SomeOptions(tokens.size());
    auto opened = side.cache->Open(std::move(plan), options);
    Note(opened ? 0 : static_cast<uint64_t>(opened.error().code));
    if (!opened) return;
    Live live = {.origin = origin,
                 .tokens = {tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(resident)},
                 .computed = resident / kBlock,
                 .stale = !options.publish,
                 .approximate = approximate,
                 .sequence = *std::move(opened)};
    if (live.sequence->length() != resident) Problem(report_.wrong_bytes, "a shorter sequence");
    Compare(live);
    if (Compute(live, tokens)) side.lives.push_back(std::move(live));
  }

  void Compare(const Live& live) {
    const auto& want = cold_answers_->Of(live.origin, live.tokens);
    const auto have = cold_answers_->Seen(*live.sequence, cold_answers_->ModelOf(live.origin));
    const auto is_near = [](float a, float b) { return std::abs(a - b) < kDifferenceMax; };
    if (live.approximate ? std::ranges::equal(have, want, is_near) : have == want) return;
    Problem(report_.wrong_bytes,
            fmt::format("wrong values in {} tokens of \"{}\"", live.tokens.size(),
                        kParties[live.origin.party].name),
            live.tokens.size());
  }

  // False: there is no room, and the sequence cannot go on.
  bool Compute(Live& live, std::span<const TokenId> tokens) {
    const auto fed = cold_answers_->ModelOf(live.origin).Feed(*live.sequence, tokens);
    Note(fed ? 0 : static_cast<uint64_t>(fed.error().code));
    if (!fed) return live.sequence->Rollback(live.tokens.size()).has_value();
    live.tokens.assign(tokens.begin(), tokens.end());
    if (live.stale) return true;
    computed_.Add(live.origin, tokens, live.computed);
    if (!live.approximate) exact_.Add(live.origin, tokens, live.computed);
    return true;
  }

  void Extend(Side& side) {
    if (side.lives.empty()) return Begin(side);
    const size_t i = prng_.NextBelow(side.lives.size());
    Live& live = side.lives[i];
    // The next tokens depend on the present ones, so that other sequences may have them too.
    const uint64_t seen = live.tokens.size();
    std::vector<TokenId> tokens = live.tokens;
    const uint64_t last = seen == 0 ? 0 : static_cast<uint64_t>(live.tokens.back());
    const uint64_t branch = MixNumbers(last, prng_.NextBelow(2));
    for (uint64_t more = 1 + prng_.NextBelow(2 * kBlock); more > 0; --more) {
      tokens.push_back(static_cast<TokenId>(MixNumbers(branch, tokens.size()) % 50'000));
    }
    if (!Compute(live, tokens)) side.lives.erase(side.lives.begin() + static_cast<ptrdiff_t>(i));
  }

  // A context larger than memory. Its blocks that left memory are durable.
  void Stream(Side& side) {
    const Origin origin = {.party = AnyParty(prng_)};
    if (kParties[origin.account()].ttl_us > 0) return;  // the store keeps none of its blocks
    const Text text = {.base = 50 + order_prng_.NextBelow(2)};
    const std::vector<TokenId> tokens = text.First(1 + order_prng_.NextBelow(60 * kBlock));
    const uint64_t gone = Recycled() + store_->stats().records_damaged;
    const Streamed done = StreamThrough(*side.cache, Acquire(side, origin, tokens),
                                        cold_answers_->ModelOf(origin), tokens, order_prng_);
    Note(done.tokens);
    Note(done.front);
    if (!done.wrong.empty()) return Problem(report_.wrong_bytes, done.wrong);
    if (!done.unread.empty() && calm() && gone == Recycled() + store_->stats().records_damaged) {
      return Problem(report_.unexplained, "a streamed context: " + done.unread);
    }
    computed_.Add(origin, std::span(tokens).first(done.tokens), done.resident / kBlock);
    report_.loaded += done.compared > 0 ? 1 : 0;
    report_.streamed += done.front > 0 ? 1 : 0;
    if (!honest() || doubts_ || Recycled() > 0 || done.front == 0 || files_.stopped()) return;
    if (!done.unread.empty()) return;  // what cannot be read again and again is forgotten
    expected_.push_back({.origin = origin, .tokens = tokens, .resident = done.front});
  }

  void Rollback(Side& side) {
    if (side.lives.empty()) return;
    Live& live = side.lives[prng_.NextBelow(side.lives.size())];
    const uint64_t position = prng_.NextBelow(live.tokens.size() + 1);
    const auto rolled = live.sequence->Rollback(position);
    Note(rolled ? 1 : 0);
    if (!rolled) return;
    live.tokens.resize(position);
    live.computed = std::min(live.computed, position / kBlock);
  }

  void CloseOne(Side& side) {
    if (!side.plans.empty() && prng_.NextChance(3)) side.plans.pop_back();
    if (side.lives.empty()) return;
    const size_t i = prng_.NextBelow(side.lives.size());
    if (prng_.NextChance(3)) Compare(side.lives[i]);
    side.lives.erase(side.lives.begin() + static_cast<ptrdiff_t>(i));
  }

  void Verify(Side& side) {
    const VerifyReport verified = side.cache->Verify();
    Note(verified.blocks);
    if (verified.damaged > 0) Problem(report_.wrong_bytes, "verify finds damage in memory");
  }

  // Erases in each cache. `dice` says what is under way meanwhile: nothing (0, 1), loads, or
  // anything.
  void Erase(uint32_t party, uint64_t dice) {
    memory_->Learn(files_, cold_.directory);
    for (Side& side : sides_) {
      if (dice < 2) side.Close();
      if (dice == 2) side.CloseButLoads();
    }
    bool durable = true;
    bool beside_mates = false;
    for (Side& side : sides_) {
      beside_mates = beside_mates || HasOfMates(*side.cache, side.tenants[party]);
      const auto erased = side.cache->Erase(side.tenants[party]);
      Note(erased ? erased->blocks : 1'000'000);
      durable = durable && erased.has_value();
    }
    AfterErasing(party, durable);
    if (dice != 2) return;
    for (Side& side : sides_) side.loads.clear();
    if (durable && !beside_mates) LookForErased(party);
  }

  void AfterErasing(uint32_t party, bool durable) {
    const uint32_t account = kParties[party].account;
    computed_.Erase(party, durable);
    exact_.Erase(party, durable);
    if (durable) durable_epochs_[account] = EpochOf(account);
    if (durable) LookForErased(party);
    std::erase_if(expected_,
                  [&](const Expected& expected) { return expected.origin.account() == account; });
    for (Side& side : sides_) {
      for (Live& live : side.lives) live.stale = live.stale || live.origin.party == party;
      for (Loading& load : side.loads) {
        load.is_calm = load.is_calm && load.origin.account() != account;
        load.front.stale = load.front.stale || load.origin.party == party;
      }
    }
  }

  // No erased byte is left, except in slots that are held, or that have bytes which another member
  // of a domain wrote.
  void LookForErased(uint32_t party) {
    if (!honest() || worn_for_good() || !store_->Flush() || files_.stopped()) return;
    const uint32_t account = kParties[party].account;
    const bool holds = std::ranges::any_of(sides_, [](const Side& side) {
      return !side.lives.empty() || !side.loads.empty() || !side.plans.empty();
    });
    std::vector<Cache*> caches;
    for (const Side& side : sides_) caches.push_back(side.cache.get());
    memory_->Learn(files_, cold_.directory);
    ++report_.scanned;
    const std::string found = memory_->Find(
        tier::PublisherOf(kParties[account].name), durable_epochs_[account], files_,
        files_.in_flight() == 0 && !holds, caches, !holds && guests_.empty() && account == party);
    if (!found.empty()) Problem(report_.wrong_bytes, found);
  }

  void RemoveTenant() {
    constexpr uint32_t kBob = 2;
    for (Side& side : sides_) {
      std::erase_if(side.lives, [](const Live& live) { return live.origin.party == kBob; });
      std::erase_if(side.loads, [](const Loading& load) { return load.origin.party == kBob; });
      side.plans.clear();
    }
    Erase(kBob, /*dice=*/3);
    for (Side& side : sides_) {
      const auto removed = side.cache->RemoveTenant(side.tenants[kBob]);
      Note(removed ? 1 : 0);
      AfterErasing(kBob, removed.has_value());
      if (removed) AddTenant(side, kBob);
    }
  }

  // What is checked.

  void CheckStep() {
    if (report_.problems() > 0) return;
    if (files_.bytes_used() > cold_.bytes_cap) {
      Problem(report_.over_cap,
              fmt::format("{} bytes, cap {}", files_.bytes_used(), cold_.bytes_cap));
    }
    for (Side& side : sides_) {
      const CacheStats stats = side.cache->stats();
      Note(stats.hot_bytes_used);
      if (stats.hot_bytes_used > stats.hot_bytes_limit) {
        Problem(report_.over_cap, fmt::format("{} bytes of memory, budget {}", stats.hot_bytes_used,
                                              stats.hot_bytes_limit));
      }
      static_cast<cache::Core&>(*side.cache).CheckDirectory();
      const DiskStoreStats below = store_->stats();
      if (!honest() || below.records_recycled + below.records_damaged > 0) continue;
      const std::string missing = MissingBelow(*side.cache, *disk_);
      if (!missing.empty()) Problem(report_.lost_bytes, missing + " is not on the disk");
    }
  }

  // When nothing is held, everything can be evicted, and nothing is left.
  void CheckDrained(Side& side) {
    EndUses(side);
    const std::string left = LeftInDrained(*side.cache);
    if (!left.empty()) Problem(report_.leaked, left);
  }

  // Everything that is in memory now is made durable, by a flush or by time alone.
  void Checkpoint(Side& side) {
    std::vector<Expected> candidates(recent_.begin(), recent_.end());
    for (Expected& candidate : candidates) {
      candidate.resident = Acquire(side, candidate.origin, candidate.tokens).resident_tokens();
    }
    if (report_.problems() > 0) return;
    const DiskStoreStats before = store_->stats();
    bool durable = true;
    if (calm() && stops_at_ == kNever && prng_.NextChance(2)) {
      const uint64_t end_us =
          clock_.NowMicros() + spread_us_ + cold_.commit_interval_us + kCommitSlackUs;
      while (clock_.NowMicros() < end_us) {
        if (!transfers_->Tick(1000)) clock_.Advance(500);
      }
    } else {
      durable = store_->Flush().has_value();
    }
    durable = durable && store_->stats().records_dropped == before.records_dropped;
    Note(durable ? 1 : 0);
    if (!durable || !honest() || files_.stopped()) return;
    const CacheStats stats = side.cache->stats();
    // Blocks that a load attaches while a flush ends are offered to the store afterwards.
    if (stats.unwritten_blocks > 0 && !side.loads.empty()) return;
    if (stats.unwritten_blocks > 0) {
      return Problem(report_.lost_bytes,
                     fmt::format("{} blocks wait to be written after that", stats.unwritten_blocks),
                     stats.unwritten_blocks * side.cache->block_bytes());
    }
    // Blocks with a ttl are not written, nor those that lost slots outside windows before that.
    constexpr uint32_t kShy = 6;
    const uint64_t shy = cache::Must(side.cache->tenant_stats(side.tenants[kShy])).published_blocks;
    if (stats.stored_blocks + shy < stats.published_blocks) return;
    const uint64_t recycled = Recycled();
    if (recycled != expected_recycled_) expected_.clear();
    expected_recycled_ = recycled;
    if (recycled > 0 || doubts_) return;  // blocks in memory may be gone in the store
    for (Expected& candidate : candidates) {
      if (candidate.resident == 0 || candidate.origin.party == kShy) continue;
      if (expected_.size() < 40) expected_.push_back(std::move(candidate));
    }
  }

  void CheckExpected(Side& side) {
    if (Recycled() != expected_recycled_) expected_.clear();
    for (const Expected& expected : expected_) {
      const Plan plan = AcquireStored(side, expected.origin, expected.tokens);
      const uint64_t there = plan.resident_tokens() + plan.loadable_tokens();
      if (there >= expected.resident) continue;
      Problem(report_.lost_bytes,
              fmt::format("\"{}\" had {} tokens, {} are left ({})",
                          kParties[expected.origin.party].name, expected.resident, there,
                          MissReasonName(plan.reason())),
              (expected.resident - there) / kBlock * side.cache->block_bytes());
    }
  }

  // Faults have stopped: every request ends, stored blocks load, and new blocks are written and
  // load.
  void Recover() {
    transfers_clock_.BeginStep();
    for (Side& side : sides_) {
      if (CacheGuests* const guests = GuestsOf(side)) guests->End(side, identities_);
    }
    guests_.clear();
    files_.set_rates({});
    files_.MendDisk();
    files_.set_disk_bytes(~uint64_t{0});
    if (stops_at_ != kNever) Restart(2);
    for (Side& side : sides_) {
      for (Loading& load : side.loads) {
        if (!load.ticket->WaitFor(60'000'000)) return Problem(report_.stuck, "a load never ended");
      }
    }
    clock_.Advance(60'000'000);  // a full disk is tried again
    Note(store_->Flush() ? 1 : 0);
    for (Side& side : sides_) CheckDrained(side);
    Restart(0);
    if (report_.problems() > 0) return;
    faults_ = honest() ? Faults::kCrashes : faults_;
    for (const Expected& recent : recent_) LoadAll(recent);
    for (const Expected& expected : expected_) LoadAll(expected);
    if (report_.problems() > 0) return;
    const Expected fresh = {.tokens = Text{.base = 99}.First(4 * kBlock + 1),
                            .resident = 4 * kBlock};
    OpenPlan(sides_[0], fresh.origin, fresh.tokens, Acquire(sides_[0], fresh.origin, fresh.tokens));
    sides_[0].Close();  // the end of a sequence keeps open forms of its last blocks
    // Without epochs a flush fails, because erased bytes may be left.
    if (!store_->Flush() && !transfers_->stats().epochs_damaged) {
      return Problem(report_.stuck, "nothing can be written any more");
    }
    CheckDrained(sides_[0]);
    const uint64_t loaded = LoadAll(fresh);
    if (loaded < fresh.resident) {
      Problem(report_.stuck,
              fmt::format("of {} tokens that were written {} load", fresh.resident, loaded));
    }
    for (Side& side : sides_) CheckDrained(side);
  }

  uint64_t LoadAll(const Expected& expected) {
    Side& side = sides_[0];
    side.Close();
    Plan plan = AcquireStored(side, expected.origin, expected.tokens);
    const uint64_t resident = plan.resident_tokens();
    const uint64_t there = resident + plan.loadable_tokens();
    if (there == resident) return resident;
    const uint64_t damaged = store_->stats().records_damaged;
    auto ticket = side.cache->Load(std::move(plan), {});
    if (!ticket) return there;  // its quota is too small
    Plan after = ticket->Take();
    const uint64_t loaded = after.resident_tokens();
    const bool torn = store_->stats().records_damaged > damaged;
    const bool failed = after.reason() == MissReason::kLoadFailed;
    if (honest() && loaded < there && failed && !torn) {
      Problem(report_.unexplained, fmt::format("{} of {} tokens of \"{}\" load", loaded, there,
                                               kParties[expected.origin.party].name));
    }
    OpenPlan(side, expected.origin, expected.tokens, std::move(after));
    return loaded;
  }

  Prng order_prng_{options_.seed ^ 0x3e57};  // of loads from the end
  Prng layer_prng_{options_.seed ^ 0x1a7e};  // of loads by layer
  PassingClock transfers_clock_{clock_};
  CacheOptions cache_options_;
  const std::array<Identity, 2> identities_ = TwoIdentities();
  Computed computed_{kBlock};
  Computed exact_{kBlock};  // after no approximate block of a ladder
  std::unique_ptr<ColdAnswers> cold_answers_;
  std::deque<Expected> recent_;     // prompts
  std::vector<Expected> expected_;  // until a segment is recycled
  uint64_t expected_recycled_ = 0;
  bool doubts_ = false;
  uint64_t spread_us_ = 0;        // the time over which writes are spread
  bool meets_ = false;            // some loads are from the end
  bool streams_ = false;          // some contexts are larger than memory
  uint64_t recycled_before_ = 0;  // by stores that ended
  uint64_t stops_at_ = kNever;    // step since which the machine is about to stop
  std::array<uint64_t, kParties.size()> durable_epochs_ = {};  // as they were confirmed
  std::unique_ptr<CacheDevice> device_;                        // or the caches are on the host
  std::optional<CacheMemory> memory_;
  std::unique_ptr<DiskStore> store_;   // after the objects it uses
  const tier::Store* disk_ = nullptr;  // without a warm tier
  transfer::Transfers* transfers_ = nullptr;
  std::vector<Side> sides_;
  std::vector<CacheGuests> guests_;  // one for each side, or none
};

}  // namespace

SimReport RunCacheSim(const SimOptions& options) { return CacheSim(options).Run(); }

}  // namespace quire::sim
