#include "sim/engine_users.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "sim/cache_oracle.h"

namespace quire::sim {

using serve::CancelledTurn;
using serve::Finish;

void EngineUsers::Begin(serve::Engine& engine,
                        const std::array<TenantId, kEngineParties.size()>& tenants,
                        const std::vector<serve::StoredSession>& found) {
  engine_ = &engine;
  tenants_ = tenants;
  const TenantId domain = tenants[3];
  for (size_t i = 0; i < tenants.size(); ++i) {
    if (kEngineParties[i].shared) continue;
    const bool is_member = *kEngineParties[i].domain != '\0';
    engine.SetTenant({.tenant = tenants[i],
                      .weight = setup_.weights[i],
                      .domain = is_member ? domain : TenantId::None()});
  }
  Talks before = std::exchange(talks_, {});
  for (const serve::StoredSession& session : found) {
    const auto talk = before.find(session.head.name);
    if (talk == before.end()) {
      tell_(&SimReport::unexplained, fmt::format("session '{}' is back", session.head.name));
      continue;
    }
    Adopt(session, talk->second);
    before.erase(talk);
  }
  for (auto& [name, talk] : before) {
    if (talk.opened && !talk.ending) {
      tell_(&SimReport::lost_bytes, fmt::format("session '{}' is gone", name));
    }
    Forget(talk);
  }
}

void EngineUsers::End() {
  arrived_ += engine_->stats().loads_by_layer;
  engine_ = nullptr;
  ++life_;
  asked_.clear();
}

// The turn after which a session continues after a restart.
void EngineUsers::Adopt(const serve::StoredSession& found, Talk& talk) {
  const std::string& name = found.head.name;
  if (found.unusable && files_.IsWorn(name)) {  // until the disk is replaced
    talk.unheard |= !std::exchange(talk.turn, serve::RequestId::None()).is_none();
    talk.open = talk.closed = talk.ending = false;
    talk.opened = true;
    talks_.emplace(name, std::move(talk));
    return;
  }
  if (found.unusable) {
    return tell_(&SimReport::lost_bytes,
                 fmt::format("session '{}': {}", name, found.unusable->message));
  }
  if (found.head.tenant != kEngineParties[talk.party].name) {
    tell_(&SimReport::wrong_bytes,
          fmt::format("session '{}' is of tenant '{}'", name, found.head.tenant));
  }
  Note(found.head.tokens);
  const Moment moment = MomentFound(name, found.head.tokens, talk);
  for (const Moment& other : talk.moments) {
    if (other.session != moment.session) oracle_.Forget(other);
  }
  Talk next = {.party = talk.party, .named = true, .moments = {moment}, .opened = true};
  const auto opened =
      engine_->OpenSession({.tenant = tenants_[talk.party], .name = name, .stored = true});
  next.open = opened.has_value();
  next.closed = !next.open;
  if (opened) next.id = *opened;
  if (!opened && open_talks() < setup_.engine.sessions_max) {
    tell_(&SimReport::unexplained, fmt::format("session '{}': {}", name, opened.error().message));
  }
  talks_.emplace(name, std::move(next));
}

Moment EngineUsers::MomentFound(const std::string& name, uint64_t tokens, Talk& talk) {
  for (size_t i = talk.durable; i < talk.moments.size(); ++i) {
    if (talk.moments[i].tokens == tokens) return talk.moments[i];
  }
  // A turn that may have ended without a report.
  const uint64_t before = talk.moments.back().tokens + talk.last.prompt.size();
  const bool was_asked = talk.unheard || !talk.turn.is_none();
  if (was_asked && tokens >= before && tokens <= before + talk.last.max_tokens) {
    const auto said = static_cast<uint32_t>(tokens - before);
    if (said == WantOf(talk).response.tokens.size()) return WantOf(talk).after;
    if (talk.last_stands || talk.last.on_full == OnFull::kHalt) {
      return oracle_.Turn(talk.moments.back(), talk.last.prompt, said, {}).after;
    }
  }
  tell_(&SimReport::lost_bytes,
        fmt::format("session '{}' goes on at {} tokens; {} were durable, {} heard of", name, tokens,
                    talk.moments[talk.durable].tokens, talk.moments.back().tokens));
  return talk.moments.back();
}

// Requests.

uint32_t EngineUsers::AnyParty() {
  while (true) {
    const auto party = static_cast<uint32_t>(prng_.NextBelow(kEngineParties.size()));
    if (!kEngineParties[party].shared) return party;
  }
}

// One of a few beginnings, branched and cut anywhere. No two accounts have one in common, so the
// computed bytes identify the account.
std::vector<TokenId> EngineUsers::SomeText(uint32_t party) {
  const uint64_t base = AccountOf(party) * 4 + prng_.NextBelow(3);
  const uint64_t fork = prng_.NextBelow(7) * 16;
  const uint64_t branch = prng_.NextBelow(4);
  std::vector<TokenId> tokens(1 + prng_.NextBelow(prng_.NextChance(3) ? 120 : 70));
  for (uint64_t t = 0; t < tokens.size(); ++t) {
    const uint64_t where = MixNumbers(MixNumbers(7, base), t < fork ? 0 : branch);
    tokens[t] = static_cast<TokenId>(MixNumbers(where, t) % setup_.model.vocab);
  }
  return tokens;
}

serve::Request EngineUsers::SomeRequest(uint32_t party) {
  constexpr std::array<uint32_t, 5> kMost = {0, 1, 4, 12, 30};
  serve::Request request = {.max_tokens = kMost[prng_.NextBelow(kMost.size())],
                            .tenant = tenants_[party],
                            .priority = static_cast<uint8_t>(45 + prng_.NextBelow(10))};
  if (prng_.NextChance(6)) {
    request.stop_tokens = {static_cast<TokenId>(prng_.NextBelow(setup_.model.vocab))};
  }
  if (prng_.NextChance(5)) request.on_full = OnFull::kHalt;
  if (prng_.NextChance(25)) request.on_full = OnFull::kNoEvict;
  if (prng_.NextChance(10)) {
    request.deadline_us = clock_.NowMicros() + 1 + prng_.NextBelow(200'000);
  }
  return request;
}

std::optional<serve::RequestId> EngineUsers::Send(Asked asked) {
  asked.budget_bytes_least = budget_bytes_;
  asked.failures = files_.failures();
  const uint64_t slowness = prng_.NextBelow(12);
  asked.reader = slowness > 3 ? Reader::kQuick : slowness > 0 ? Reader::kSlow : Reader::kAbsent;
  const bool is_full = asked_.size() >= setup_.engine.requests_max;
  const auto id = engine_->Submit(asked.request);
  Note(id ? id->number() : 0);
  if (id.has_value() == is_full) {
    tell_(&SimReport::unexplained,
          is_full ? "a request more than the queue holds"
                  : fmt::format("with {} requests: {}", asked_.size(), id.error().message));
  }
  if (!id) return std::nullopt;
  asked_.emplace(*id, std::move(asked));
  return *id;
}

serve::KeepOptions EngineUsers::SomeKeep() {
  constexpr std::array kBy = {serve::KeepBy::kObserved, serve::KeepBy::kAccumulated,
                              serve::KeepBy::kRecent};
  return {.share = 0.25 * static_cast<double>(1 + prng_.NextBelow(3)),
          .by = kBy[prng_.NextBelow(kBy.size())],
          .observe_tokens = 4 + static_cast<uint32_t>(prng_.NextBelow(30))};
}

void EngineUsers::DrawSpill(serve::Request& request) {
  if (setup_.engine.resident_tokens == 0 || request.on_full != OnFull::kReject) return;
  request.spills = request.publishes() && prng_.NextChance(2);
}

void EngineUsers::Submit() {
  Asked asked = {.party = AnyParty()};
  asked.request = SomeRequest(asked.party);
  asked.request.prompt = SomeText(asked.party);
  asked.request.reuse = !prng_.NextChance(8);
  const bool keeps_part = prng_.NextChance(8) && !serve::HasWindows(setup_.cache.geometry);
  if (keeps_part) asked.request.keep = SomeKeep();
  asked.request.all_logits = prng_.NextChance(8);
  if (prng_.NextChance(20)) asked.request.on_full = OnFull::kFewer;
  if (prng_.NextChance(3)) {
    asked.request.sampling = {.temperature = 1.0f, .seed = prng_.NextBelow(3)};
  }
  DrawSpill(asked.request);
  if (setup_.cache.profile.has_ladder() && prng_.NextChance(3)) {
    asked.request.approximate_error_max = 1.0f;
  }
  // Now and then several equal requests at once, of which one computes.
  for (uint64_t more = prng_.NextChance(4) ? prng_.NextBelow(4) : 0; more > 0; --more) {
    Send(asked);
    asked.request.prompt.push_back(static_cast<TokenId>(prng_.NextBelow(setup_.model.vocab)));
  }
  Send(std::move(asked));
}

void EngineUsers::SubmitLong(uint64_t tokens) {
  Asked asked = {.party = AnyParty(), .is_long = true};
  asked.request = SomeRequest(asked.party);
  const uint64_t base = MixNumbers(7, AccountOf(asked.party) * 4 + 3);
  for (uint64_t t = 0; t < tokens; ++t) {
    const uint64_t token = MixNumbers(base, t) % setup_.model.vocab;
    asked.request.prompt.push_back(static_cast<TokenId>(token));
  }
  DrawSpill(asked.request);
  Send(std::move(asked));
}

void EngineUsers::CancelOne() {
  if (asked_.empty()) return;
  const auto any =
      std::next(asked_.begin(), static_cast<ptrdiff_t>(prng_.NextBelow(asked_.size())));
  auto& [id, asked] = *any;
  if (asked.cancelled) return;
  const auto turn = prng_.NextChance(2) ? CancelledTurn::kStands : CancelledTurn::kUndone;
  const bool cancelled = engine_->Cancel(id, turn);
  Note(cancelled ? 1 : 0);
  if (!cancelled) return;
  asked.cancelled = true;
  asked.stands = turn == CancelledTurn::kStands;
  // A session that is first read from a file, or written to one, ends its turn later.
  const auto talk = talks_.find(asked.talk);
  if (talk != talks_.end()) talk->second.last_stands = asked.stands;
  const bool is_read =
      turn == CancelledTurn::kStands && talk != talks_.end();  // its text is, first
  const bool is_written = talk != talks_.end() && talk->second.named;
  if (!is_read && !is_written) asked.ends_by_tick = ticks_ + 1;
}

void EngineUsers::CancelAll() {
  engine_->CancelAll();
  for (auto& [id, asked] : asked_) asked.cancelled_again = std::exchange(asked.cancelled, true);
}

void EngineUsers::CancelTooLarge() {
  for (auto& [id, asked] : asked_) {
    uint64_t tokens = asked.request.prompt.size();
    if (!asked.talk.empty()) tokens += talks_.at(asked.talk).moments.back().tokens;
    if (asked.cancelled || Fits(asked, tokens)) continue;
    asked.cancelled = engine_->Cancel(id, CancelledTurn::kUndone);
  }
}

bool EngineUsers::Fits(const Asked& asked, uint64_t prompt_tokens) const {
  uint64_t generated = std::max<uint64_t>(asked.request.max_tokens, 1) - 1;
  // Selecting blocks makes a second sequence for a moment.
  if (!asked.request.keep.keeps_all() && generated > 0) generated += 2 * setup_.block_tokens();
  return oracle_.Fits(asked.party, asked.budget_bytes_least, prompt_tokens,
                      prompt_tokens + generated, setup_.engine.chunk_tokens_min);
}

void EngineUsers::NoteTick(uint64_t begin_us) {
  ++ticks_;
  tick_us_ = begin_us;
}

void EngineUsers::NoteBudget(uint64_t bytes) {
  budget_bytes_ = bytes;
  for (auto& [id, asked] : asked_) {
    asked.budget_bytes_least = std::min(asked.budget_bytes_least, bytes);
  }
}

std::string EngineUsers::FirstUnended(Readers readers) const {
  const serve::RequestId id = Unended(readers).front();
  const Asked& asked = asked_.at(id);
  return fmt::format("request {} of {} tokens + {} ({} said){}", id.number(),
                     asked.request.prompt.size(), asked.request.max_tokens, asked.said.size(),
                     asked.talk.empty() ? "" : " of session " + asked.talk);
}

// Reports from the engine.

std::vector<serve::RequestId> EngineUsers::Unended(Readers readers) const {
  std::vector<serve::RequestId> ids;
  for (const auto& [id, asked] : asked_) {
    const bool reads = readers == Readers::kAll || asked.reader == Reader::kQuick ||
                       (readers == Readers::kSlow && asked.reader == Reader::kSlow);
    if (reads) ids.push_back(id);
  }
  return ids;
}

void EngineUsers::Hear(Readers readers) {
  for (const serve::RequestId id : Unended(readers)) Hear(id);
}

void EngineUsers::Hear(serve::RequestId id) {
  Asked& asked = asked_.at(id);
  uint64_t events = 0;
  std::optional<serve::Response> last;
  while (auto event = engine_->Next(id)) {
    ++events;
    if (last)
      tell_(&SimReport::stuck, fmt::format("request {} goes on after its end", id.number()));
    if (const auto* token = std::get_if<serve::NewToken>(&*event)) {
      HearToken(id, asked, token->token);
    } else if (const auto* logits = std::get_if<serve::Logits>(&*event)) {
      HearLogits(id, asked, *logits);
    } else if (const auto* progress = std::get_if<serve::Progress>(&*event)) {
      Note(progress->done);
      if (progress->done <= asked.read || progress->done > progress->total) {
        tell_(&SimReport::unexplained,
              fmt::format("request {}: {} of {} tokens after {}", id.number(), progress->done,
                          progress->total, asked.read));
      }
      asked.read = progress->done;
    } else if (auto* response = std::get_if<serve::Response>(&*event)) {
      last = std::move(*response);
    }
  }
  if (events > setup_.engine.events_max + 1) {
    tell_(&SimReport::over_cap,
          fmt::format("request {} has {} events that wait", id.number(), events));
  }
  if (last) {
    HearLast(id, asked, *last);
    asked_.erase(id);
    return;
  }
  const auto talk = talks_.find(asked.talk);
  const bool late = asked.request.deadline_us > 0 && asked.request.deadline_us <= tick_us_ &&
                    (talk == talks_.end() || !talk->second.named);
  if (ticks_ >= asked.ends_by_tick || late) {
    tell_(&SimReport::stuck,
          fmt::format("request {} was {} and goes on", id.number(), late ? "due" : "cancelled"));
  }
}

const TurnAnswer& EngineUsers::WantOf(Talk& talk) {
  if (!talk.want) {
    talk.want = oracle_.Turn(talk.moments.back(), talk.last.prompt, talk.last.max_tokens,
                             talk.last.stop_tokens);
  }
  return *talk.want;
}

const serve::Response& EngineUsers::WantOf(Asked& asked) {
  if (!asked.talk.empty()) return WantOf(talks_.at(asked.talk)).response;
  if (asked.want == nullptr) asked.want = &oracle_.Alone(asked.request);
  return asked.want->response;
}

// Logits come for each position that was computed, once and in order; for sessions the oracle has
// none.
void EngineUsers::HearLogits(serve::RequestId id, Asked& asked, const serve::Logits& logits) {
  const uint64_t vocab = setup_.model.vocab;
  const uint64_t positions = logits.rows.size() / vocab;
  Note(logits.first_position);
  Note(positions);
  const bool in_order = logits.first_position >= asked.logits && positions > 0;
  asked.logits = logits.first_position + positions;
  if (asked.is_approximate()) return;
  WantOf(asked);
  const uint64_t at = logits.first_position * vocab;
  const std::vector<float>& want = asked.want->logits;
  if (asked.request.all_logits && in_order && logits.rows.size() % vocab == 0 &&
      at + logits.rows.size() <= want.size() &&
      std::memcmp(logits.rows.data(), want.data() + at, logits.rows.size() * sizeof(float)) == 0) {
    return;
  }
  tell_(&SimReport::wrong_bytes, fmt::format("logits of request {} for positions [{}, {})",
                                             id.number(), logits.first_position, asked.logits));
}

void EngineUsers::HearToken(serve::RequestId id, Asked& asked, TokenId token) {
  Note(id.number());
  Note(static_cast<uint64_t>(token));
  const size_t at = asked.said.size();
  asked.said.push_back(token);
  if (asked.is_approximate()) return;
  const std::vector<TokenId>& want = WantOf(asked).tokens;
  if (at < want.size() && want[at] == token) return;
  tell_(&SimReport::wrong_bytes,
        fmt::format("token {} of request {} is {}, alone {}", at, id.number(), token,
                    at < want.size() ? std::to_string(want[at]) : "none"));
}

void EngineUsers::HearLast(serve::RequestId id, Asked& asked, const serve::Response& response) {
  Note(static_cast<uint64_t>(response.finish));
  Note(response.reused_tokens);
  Note(response.preemptions);
  if (response.loaded_tokens > 0) ++loaded_;
  if (engine_->Next(id) || engine_->Cancel(id)) {
    tell_(&SimReport::stuck, fmt::format("request {} has ended and goes on", id.number()));
  }
  if (response.tokens != asked.said) {
    tell_(&SimReport::wrong_bytes,
          fmt::format("request {} said {} tokens and ends with {}", id.number(), asked.said.size(),
                      response.tokens.size()));
  }
  CheckFinish(id, asked, response);
  if (!asked.talk.empty()) EndTurn(asked, response);
}

void EngineUsers::CheckFinish(serve::RequestId id, Asked& asked, const serve::Response& response) {
  switch (response.finish) {
    case Finish::kLength:
    case Finish::kStop: {
      ++answers_;
      if (asked.is_approximate()) return;
      const serve::Response& want = WantOf(asked);
      if (response.sequence.tokens_streamed > 0) ++streamed_;
      if (response.finish != want.finish || response.logits_digest != want.logits_digest ||
          response.tokens.size() != want.tokens.size() ||
          response.prompt_tokens != want.prompt_tokens) {
        tell_(&SimReport::wrong_bytes,
              fmt::format("request {} of {} tokens{} ends as {} with {} tokens, alone of {} as {} "
                          "with {}",
                          id.number(), response.prompt_tokens,
                          asked.talk.empty() ? "" : " of session " + asked.talk,
                          serve::FinishName(response.finish), response.tokens.size(),
                          want.prompt_tokens, serve::FinishName(want.finish), want.tokens.size()));
      }
      return;
    }
    case Finish::kCancelled:
      if (!asked.cancelled) {
        tell_(&SimReport::unexplained, fmt::format("request {} ends as cancelled", id.number()));
      }
      return;
    case Finish::kNoSpace:
      if (asked.request.on_full != OnFull::kHalt && asked.request.on_full != OnFull::kFewer) {
        tell_(&SimReport::unexplained, fmt::format("request {} halts", id.number()));
      }
      return;
    case Finish::kFailed: return CheckFailure(id, asked, response);
  }
}

void EngineUsers::CheckFailure(serve::RequestId id, const Asked& asked,
                               const serve::Response& response) {
  const Error& error = response.error;
  Note(static_cast<uint64_t>(error.code));
  const serve::Request& request = asked.request;
  if (error.code == ErrorCode::kDeadline && request.deadline_us > 0 &&
      request.deadline_us <= clock_.NowMicros()) {
    return;
  }
  const bool no_room = error.code == ErrorCode::kTooLarge || error.code == ErrorCode::kNoSpace;
  if (no_room && request.on_full == OnFull::kNoEvict) return;
  if (no_room && !Fits(asked, response.prompt_tokens)) return;
  // The store did not write, or did not read, the tokens that left memory.
  const bool unread = error.code == ErrorCode::kIo || error.code == ErrorCode::kDeadline ||
                      error.code == ErrorCode::kCorrupt;
  if (asked.is_long && unread) return;
  if (asked.is_long && asked.erased && error.code == ErrorCode::kNotFound) return;
  if (!asked.talk.empty()) {
    if (error.code == ErrorCode::kIo) return;  // the disk could not read its text
  }
  tell_(&SimReport::unexplained,
        fmt::format("request {} of \"{}\", {} tokens + {}: {}", id.number(),
                    kEngineParties[asked.party].name, response.prompt_tokens, request.max_tokens,
                    error.message));
}

// Sessions.

uint64_t EngineUsers::open_talks() const {
  return static_cast<uint64_t>(
      std::ranges::count_if(talks_, [](const auto& each) { return each.second.open; }));
}

EngineUsers::Talks::iterator EngineUsers::AnyTalk() {
  if (talks_.empty()) return talks_.end();
  return std::next(talks_.begin(), static_cast<ptrdiff_t>(prng_.NextBelow(talks_.size())));
}

serve::OnSettled EngineUsers::Settled(const std::string& name, void (*hear)(Talk& talk)) {
  return [this, name, hear, life = life_](const Result<void>& outcome) {
    Note(outcome ? 1 : 0);
    const auto talk = talks_.find(name);
    if (!outcome || life != life_ || talk == talks_.end()) return;
    hear(talk->second);
    RemoveWhereGone(name);
  };
}

void EngineUsers::OpenTalk() {
  Talk talk = {.party = AnyParty(), .named = !prng_.NextChance(4)};
  const std::string name = fmt::format("{}{}", talk.named ? "s" : "unnamed-", ++names_);
  model::SamplingOptions sampling;
  if (prng_.NextChance(2)) sampling = {.temperature = 1.0f, .seed = names_};
  const bool is_full = open_talks() >= setup_.engine.sessions_max;
  const auto id = engine_->OpenSession(
      {.tenant = tenants_[talk.party], .sampling = sampling, .name = talk.named ? name : ""},
      Settled(name, [](Talk& opened) { opened.opened = true; }));
  if (id.has_value() == is_full) {
    tell_(&SimReport::unexplained, fmt::format("a session beside {} of {}: {}", open_talks(),
                                               setup_.engine.sessions_max, id.has_value()));
  }
  if (!id) return;
  talk.id = *id;
  talk.moments.push_back(oracle_.Begin(sampling));
  talks_.emplace(name, std::move(talk));
}

void EngineUsers::ForkTalk() {
  const auto from = AnyTalk();
  if (from == talks_.end() || !from->second.open || !from->second.turn.is_none()) return;
  if (open_talks() >= setup_.engine.sessions_max) return;
  const Talk& original = from->second;
  Talk talk = {.party = original.party, .named = original.named && !prng_.NextChance(4)};
  const std::string name = fmt::format("{}{}", talk.named ? "s" : "unnamed-", ++names_);
  const auto id = engine_->ForkSession(original.id, talk.named ? name : "",
                                       Settled(name, [](Talk& opened) { opened.opened = true; }));
  if (!id) {
    return tell_(&SimReport::unexplained,
                 fmt::format("fork of '{}': {}", from->first, id.error().message));
  }
  talk.id = *id;
  talk.moments.push_back(oracle_.Turn(original.moments.back(), {}, 0, {}).after);
  talks_.emplace(name, std::move(talk));
}

void EngineUsers::Ask() {
  const auto any = AnyTalk();
  if (any == talks_.end()) return;
  auto& [name, talk] = *any;
  if (!talk.open || !talk.turn.is_none() || talk.moments.back().tokens > 150) return;
  Asked asked = {.party = talk.party, .talk = name};
  asked.request = SomeRequest(talk.party);
  asked.request.session = talk.id;
  asked.request.prompt = SomeText(talk.party);
  asked.request.prompt.resize(std::min<size_t>(asked.request.prompt.size(), prng_.NextBelow(40)));
  if (talk.moments.back().tokens == 0 && asked.request.prompt.empty()) asked.request.prompt = {1};
  if (asked.request.prompt.empty() && asked.request.max_tokens == 0) asked.request.max_tokens = 1;
  talk.last = asked.request;
  talk.last_stands = false;
  talk.want.reset();
  if (const auto id = Send(std::move(asked))) talk.turn = *id;
}

void EngineUsers::EndTurn(const Asked& asked, const serve::Response& response) {
  const auto found = talks_.find(asked.talk);
  if (found == talks_.end()) return;
  Talk& talk = found->second;
  talk.turn = serve::RequestId::None();
  if (talk.gone) return RemoveWhereGone(asked.talk);
  const bool whole = response.finish == Finish::kLength || response.finish == Finish::kStop;
  if (!whole) {
    const bool stands = response.finish == Finish::kNoSpace ||
                        (response.finish == Finish::kCancelled && asked.stands);
    if (!stands) return;
    const auto said = static_cast<uint32_t>(response.tokens.size());
    talk.moments.push_back(oracle_.Turn(talk.moments.back(), asked.request.prompt, said, {}).after);
  } else {
    talk.moments.push_back(WantOf(talk).after);
  }
  // A turn is reported after its file was written, unless writing failed.
  const bool durable = talk.named && asked.failures == files_.failures() && !asked.cancelled_again;
  if (durable) talk.durable = talk.moments.size() - 1;
}

void EngineUsers::EndTalk() {
  const auto any = AnyTalk();
  if (any == talks_.end() || !any->second.open) return;
  auto& [name, talk] = *any;
  BeginToEnd(talk);
  const auto ended =
      engine_->EndSession(talk.id, Settled(name, [](Talk& removed) { removed.gone = true; }));
  if (!ended) tell_(&SimReport::unexplained, fmt::format("'{}': {}", name, ended.error().message));
}

// The session continues from its file at once, or after a restart.
void EngineUsers::CloseTalk() {
  const auto any = AnyTalk();
  if (any == talks_.end()) return;
  auto& [name, talk] = *any;
  if (!talk.named || talk.ending) return;
  if (talk.closed) {
    const auto id =
        engine_->OpenSession({.tenant = tenants_[talk.party], .name = name, .stored = true});
    if (id) {
      talk.id = *id;
      talk.open = true;
      talk.closed = false;
    } else if (open_talks() < setup_.engine.sessions_max) {
      tell_(&SimReport::unexplained, fmt::format("'{}' again: {}", name, id.error().message));
    }
    return;
  }
  if (!talk.open || !talk.opened || !talk.turn.is_none()) return;
  talk.open = false;
  const auto closed = engine_->CloseSession(talk.id, Settled(name, [](Talk& ended) {
                                              ended.closed = true;
                                              ended.durable = ended.moments.size() - 1;
                                            }));
  if (!closed)
    tell_(&SimReport::unexplained, fmt::format("'{}': {}", name, closed.error().message));
}

void EngineUsers::NoteErased(uint32_t account) {
  for (auto& [id, asked] : asked_) asked.erased |= AccountOf(asked.party) == account;
}

void EngineUsers::EraseParty(uint32_t party, std::function<void(bool gone)> settled) {
  std::vector<std::string> names;
  for (auto& [name, talk] : talks_) {
    if (talk.party != party) continue;
    BeginToEnd(talk);
    names.push_back(name);
  }
  engine_->EndSessionsOf(tenants_[party], [this, names, settled = std::move(settled),
                                           life = life_](const Result<void>& outcome) {
    Note(outcome ? 1 : 0);
    if (settled) settled(outcome.has_value());
    if (life != life_ || !outcome) return;
    for (const std::string& name : names) {
      const auto talk = talks_.find(name);
      if (talk == talks_.end()) continue;
      talk->second.gone = true;
      RemoveWhereGone(name);
    }
  });
}

void EngineUsers::BeginToEnd(Talk& talk) {
  talk.open = false;
  talk.closed = false;
  talk.ending = true;
  const auto turn = asked_.find(talk.turn);
  if (turn == asked_.end()) return;
  turn->second.cancelled_again = std::exchange(turn->second.cancelled, true);
}

void EngineUsers::RemoveWhereGone(const std::string& name) {
  const auto talk = talks_.find(name);
  if (talk == talks_.end() || !talk->second.gone || !talk->second.turn.is_none()) return;
  Forget(talk->second);
  talks_.erase(talk);
}

void EngineUsers::Forget(const Talk& talk) {
  for (const Moment& moment : talk.moments) oracle_.Forget(moment);
}

}  // namespace quire::sim
