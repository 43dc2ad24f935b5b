#include "ranks/pipeline/stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/hash.h"
#include "cache/verbs/admit.h"
#include "model/stage.h"

namespace quire::ranks::pipeline {

namespace {

std::span<const TokenId> Next(uint64_t count, std::span<const TokenId>& tokens) {
  const auto next = tokens.first(count);
  tokens = tokens.subspan(count);
  return next;
}

}  // namespace

Digest StateAfter(const Digest& state, const Message& message, std::span<const uint64_t> lengths) {
  Blake2b<32> hash;
  hash.Update(std::as_bytes(std::span(state)));
  hash.UpdateNumber(message.command);
  for (const uint64_t number :
       {message.number, uint64_t{message.tenant.number()}, message.sequence, message.position}) {
    hash.UpdateNumber(number);
  }
  for (const MessageItem& item : message.items) {
    hash.UpdateNumber(item.sequence);
    hash.UpdateNumber(item.tokens);
  }
  hash.Update(std::as_bytes(std::span(message.tokens)));
  hash.Update(std::as_bytes(std::span(message.text)));
  hash.Update(std::as_bytes(lengths));
  return hash.Finish();
}

Result<Plan> FindPrefix(Cache& cache, const AcquireRequest& request, uint64_t tokens_max,
                        bool loads) {
  AcquireRequest asked = request;
  asked.tokens = request.tokens.first(std::min<uint64_t>(tokens_max, request.tokens.size()));
  QUIRE_ASSIGN(Plan plan, cache.Acquire(asked));
  if (loads && plan.loadable_tokens() > 0) {
    if (auto ticket = cache.Load(std::move(plan), {})) {
      plan = ticket->Take();
    } else {
      // There is no room for what would come, so what memory has is all that is found.
      QUIRE_ASSIGN(plan, cache.Acquire(asked));
    }
  }
  cache::PlanState& state = cache::PlanState::Of(plan);
  const uint64_t beyond = request.tokens.size() - asked.tokens.size();
  state.prompt_tokens += beyond;
  if (!state.missing.empty()) state.missing.back().tokens += beyond;
  return plan;
}

void NameValues(std::span<const Digest> fingerprints, const model::Model& model,
                Identity& identity) {
  identity.weights = model::StageFingerprint(fingerprints, model.layers());
  identity.position_encoding = model.position_encoding();
}

Result<void> Stage::Serve(Ring& ring) {
  while (true) {
    QUIRE_ASSIGN(const auto bytes, ring.Receive());
    auto message = Decode(bytes);
    if (!message) return std::unexpected(ring.Break(message.error()));
    if (auto done = Take(*message); !done) {
      done.error().message = fmt::format("rank {}: {}", setup_.rank, done.error().message);
      return std::unexpected(ring.Break(std::move(done).error()));
    }
    QUIRE_TRY(ring.Send(Encode(*message)));
    if (message->command == Command::kStop) return {};
  }
}

Result<void> Stage::Take(Message& message) {
  if (message.number != number_ + 1) {
    return Fail(ErrorCode::kCorrupt,
                fmt::format("it is told message {} after message {}", message.number, number_));
  }
  if (message.state != state_) {
    return Fail(ErrorCode::kCorrupt,
                fmt::format("before message {} its sequences differ from those of the ranks before "
                            "it: it is in state {}, they are in {}",
                            message.number, ToHex(std::span(state_).first(8)),
                            ToHex(std::span(message.state).first(8))));
  }
  number_ = message.number;
  std::vector<uint64_t> lengths;
  // What others add on its way is no part of the state.
  const Message told = {.command = message.command,
                        .number = message.number,
                        .tenant = message.tenant,
                        .sequence = message.sequence,
                        .position = message.position,
                        .items = message.items,
                        .tokens = message.tokens,
                        .text = message.text};
  try {
    switch (message.command) {
      case Command::kJoin: QUIRE_TRY(Join(message)); break;
      case Command::kAcquire: QUIRE_TRY(Acquire(message)); break;
      case Command::kOpen: QUIRE_TRY(Open(message)); break;
      case Command::kReserve: QUIRE_TRY(Reserve(message)); break;
      case Command::kEnd: sequences_.erase(message.sequence); break;
      case Command::kStep: QUIRE_TRY(Step(message)); break;
      case Command::kTenant: QUIRE_TRY(ChangeTenant(message)); break;
      case Command::kStop:
        if (setup_.flush) setup_.flush();
        break;
    }
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kNoSpace, "the system has no memory left");
  }
  for (const MessageItem& item : told.items) {
    lengths.push_back(sequences_.at(item.sequence)->length());
  }
  state_ = StateAfter(state_, told, lengths);
  return {};
}

// The first time each adds the fingerprint of what it has; the second time all are known.
Result<void> Stage::Join(Message& message) {
  if (message.text != setup_.settings) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("it was started with other options than rank 0: '{}' here, '{}' there",
                            setup_.settings, message.text));
  }
  if (message.digests.size() == setup_.rank) {
    message.digests.push_back(components_.model.fingerprint());
  } else if (message.digests.size() == setup_.ranks) {
    NameValues(message.digests, components_.model, identity_);
  } else {
    return Fail(ErrorCode::kCorrupt, fmt::format("{} fingerprints came, of {} ranks",
                                                 message.digests.size(), setup_.ranks));
  }
  return {};
}

Result<void> Stage::Acquire(Message& message) {
  found_.reset();
  if (message.error) return {};
  const auto tenant = tenants_.Find(message.tenant);
  if (!tenant) {
    Refuse(tenant.error(), message);
    return {};
  }
  auto plan = FindPrefix(components_.cache,
                         {.tenant = *tenant,
                          .identity = &identity_,
                          .tokens = message.tokens,
                          .reuse = message.reuse,
                          .open_as = message.opens ? &message.options : nullptr},
                         message.position, setup_.loads);
  if (!plan) {
    Refuse(plan.error(), message);
    return {};
  }
  const uint64_t found = plan->resident_tokens();
  if (found < message.tokens_least) {
    message.tokens_least = found;
    message.reason = plan->reason();
  }
  message.tokens_most = std::max(message.tokens_most, found);
  found_ = *std::move(plan);
  return {};
}

Result<void> Stage::Open(Message& message) {
  std::optional<Plan> plan = std::exchange(found_, std::nullopt);
  if (message.error) return {};
  if (!plan || plan->resident_tokens() != message.tokens_most) {
    return Fail(ErrorCode::kCorrupt,
                fmt::format("it is to open a sequence of {} tokens and holds {}",
                            message.tokens_most, plan ? plan->resident_tokens() : 0));
  }
  auto sequence = components_.cache.Open(*std::move(plan), message.options);
  if (!sequence) {
    Refuse(sequence.error(), message);
    return {};
  }
  sequences_[message.sequence] = *std::move(sequence);
  return {};
}

Result<void> Stage::Reserve(Message& message) {
  const auto found = sequences_.find(message.sequence);
  if (found == sequences_.end()) {
    return Fail(ErrorCode::kCorrupt, fmt::format("it has no sequence {}", message.sequence));
  }
  if (message.error) return {};
  const auto reserved = found->second->Reserve(message.position);
  if (!reserved) Refuse(reserved.error(), message);
  return {};
}

Result<void> Stage::Step(Message& message) {
  const uint64_t hidden = components_.model.config().hidden;
  if (message.rows.size() != message.tokens.size() * hidden) {
    return Fail(ErrorCode::kCorrupt,
                fmt::format("{} values came for {} tokens of {}", message.rows.size(),
                            message.tokens.size(), hidden));
  }
  const bool is_last = components_.model.layers().is_last();
  const uint64_t vocab = components_.model.config().vocab;
  uint64_t wanted = 0;
  for (const MessageItem& item : message.items) {
    if (item.wanted == Wanted::kNone) continue;
    wanted += item.wanted == Wanted::kAll ? item.tokens : 1;
  }
  std::vector<float> out(is_last ? wanted * vocab : message.rows.size());
  std::span<const TokenId> tokens = message.tokens;
  std::vector<model::StepItem> items;
  float* logits = out.data();
  for (const MessageItem& item : message.items) {
    const auto found = sequences_.find(item.sequence);
    if (found == sequences_.end()) {
      return Fail(ErrorCode::kCorrupt, fmt::format("it has no sequence {}", item.sequence));
    }
    const bool asks = is_last && item.wanted != Wanted::kNone;
    items.push_back({.sequence = found->second.get(),
                     .tokens = Next(item.tokens, tokens),
                     .logits = asks ? logits : nullptr,
                     .all_logits = item.wanted == Wanted::kAll});
    if (asks) logits += (item.wanted == Wanted::kAll ? item.tokens : 1) * vocab;
  }
  QUIRE_TRY(components_.model.StepStage(
      items, {.in = message.rows.data(), .out = is_last ? nullptr : out.data()},
      components_.attention, components_.executor));
  message.rows = std::move(out);
  return {};
}

// A tenant that some ranks have and others not is of no use. Of other changes rank 0 hears whose
// failed first, and all ranks take them.
Result<void> Stage::ChangeTenant(Message& message) {
  QUIRE_ASSIGN(const TenantChange change, ReadTenantChange(message.text));
  found_.reset();  // it keeps slots of a tenant
  const auto changed = tenants_.Take(change);
  if (changed) return {};
  if (change.kind == TenantChange::Kind::kAdd) return changed;
  if (!message.error) Refuse(changed.error(), message);
  return {};
}

// No room is no failure: rank 0 decides what happens then. The first rank that has none says so.
void Stage::Refuse(const Error& error, Message& message) const {
  message.error = Error{error.code, fmt::format("rank {}: {}", setup_.rank, error.message)};
}

}  // namespace quire::ranks::pipeline
