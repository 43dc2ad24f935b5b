// The C functions of engines and sessions.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/hash.h"
#include "embed/boundary.h"
#include "quire/engine.h"
#include "serve/c/engine_host.h"
#include "serve/driver.h"

using quire::ErrorCode;
using quire::Fail;
using quire::Result;
using quire::embed::Boundary;
using quire::embed::NotNull;
using quire::embed::ReadStruct;
using quire::serve::RequestId;
using quire::serve::SessionId;
using quire::serve::c::EngineHost;

// Where their first versions ended, and then each field that came later.
template <>
[[gnu::visibility(
    "hidden")]] inline constexpr std::array quire::embed::kFieldEnds<quire_engine_options> = {
    offsetof(quire_engine_options, resident_tokens),
    offsetof(quire_engine_options, policy),
    offsetof(quire_engine_options, load),
    offsetof(quire_engine_options, eviction_batch),
    offsetof(quire_engine_options, hot_bytes_max),
    offsetof(quire_engine_options, window_tokens),
    offsetof(quire_engine_options, sink_tokens),
    offsetof(quire_engine_options, layout),
    offsetof(quire_engine_options, placement),
    offsetof(quire_engine_options, remote),
    offsetof(quire_engine_options, fleet_key_file),
    offsetof(quire_engine_options, remote_writes_all),
    offsetof(quire_engine_options, remote_writes_all) + sizeof(uint32_t),
    offsetof(quire_engine_options, keys_command),
    offsetof(quire_engine_options, key),
    offsetof(quire_engine_options, arithmetic),
    offsetof(quire_engine_options, ladder),
    offsetof(quire_engine_options, ladder) + sizeof(const char*)};
template <>
[[gnu::visibility(
    "hidden")]] inline constexpr std::array quire::embed::kFieldEnds<quire_turn_options> = {
    offsetof(quire_turn_options, repetition_penalty),
    offsetof(quire_turn_options, presence_penalty),
    offsetof(quire_turn_options, frequency_penalty),
    offsetof(quire_turn_options, min_tokens),
    offsetof(quire_turn_options, logit_bias),
    offsetof(quire_turn_options, logit_bias_count),
    offsetof(quire_turn_options, on_full),
    offsetof(quire_turn_options, timeout_us),
    offsetof(quire_turn_options, priority),
    offsetof(quire_turn_options, reserved0),
    offsetof(quire_turn_options, keep_share),
    offsetof(quire_turn_options, keep_by),
    offsetof(quire_turn_options, retain_us),
    offsetof(quire_turn_options, retain_tokens),
    offsetof(quire_turn_options, keep_blocks),
    offsetof(quire_turn_options, adapter),
    offsetof(quire_turn_options, approximate_error_max),
    offsetof(quire_turn_options, reserved1),
    offsetof(quire_turn_options, reserved1) + sizeof(int32_t)};
template <>
[[gnu::visibility(
    "hidden")]] inline constexpr std::array quire::embed::kFieldEnds<quire_session_options> = {
    offsetof(quire_session_options, adapter),
    offsetof(quire_session_options, adapter) + sizeof(const char*)};
template <>
[[gnu::visibility("hidden")]] inline constexpr std::array quire::embed::kFieldEnds<quire_event> = {
    offsetof(quire_event, dropped_tokens), offsetof(quire_event, retained_tokens),
    offsetof(quire_event, approximate_tokens), offsetof(quire_event, approximate_error_ppm),
    offsetof(quire_event, approximate_error_ppm) + sizeof(uint64_t)};

struct quire_engine {
  std::shared_ptr<EngineHost> host;
};

struct quire_lease {
  std::shared_ptr<EngineHost> host;  // ends last
  quire::serve::HeldLease held;
};

struct quire_session {
  std::shared_ptr<EngineHost> host;
  std::string name;
  SessionId id = SessionId::None();  // none: it is no session, but a call of its own
  bool ended = false;
  // Of the turn that is under way; none: there is none. Cancel reads it on any thread.
  std::atomic<RequestId> turn = RequestId::None();
  std::optional<quire::model::TextStream> stream{};
  std::string text{};  // of the last event
};

namespace {

constexpr uint64_t kTokensMax = uint64_t{1} << 32;

std::string SomeName() {
  std::array<uint8_t, 16> bytes{};
  quire::FillRandom(bytes);
  return "s" + quire::ToHex(bytes);
}

std::string NameOr(const char* name) { return name == nullptr ? SomeName() : name; }

Result<quire_session*> Entered(const std::shared_ptr<EngineHost>& host, const std::string& name,
                               SessionId id, uint64_t tokens) {
  auto session = std::make_unique<quire_session>();
  session->host = host;
  session->name = name;
  session->id = id;
  host->NoteOpen(name, tokens);
  return session.release();
}

// What is not durable is not there.
Result<quire_session*> Settled(const std::shared_ptr<EngineHost>& host, const std::string& name,
                               Result<SessionId> id, std::future<Result<void>> outcome,
                               uint64_t tokens) {
  if (!id) return std::unexpected(id.error());
  if (const auto settled = outcome.get(); !settled) {
    (void)host->engine().EndSession(*id);  // it is there
    return std::unexpected(settled.error());
  }
  return Entered(host, name, *id, tokens);
}

Result<void> CheckThere(const quire_session* session) {
  QUIRE_TRY(NotNull(session, "session"));
  if (session->id.is_none()) {
    return Fail(ErrorCode::kInvalidArgument, "session: it is a call of quire_engine_ask");
  }
  if (!session->ended) return {};
  return Fail(ErrorCode::kNotFound, fmt::format("session '{}' was ended", session->name));
}

// `begins`: nothing comes before it.
Result<std::vector<quire::TokenId>> FedTokens(const EngineHost& host, bool begins,
                                              const quire_turn_options& asked) {
  QUIRE_TRY(quire::embed::CheckArray(asked.tokens, asked.token_count, kTokensMax, "tokens"));
  std::vector<quire::TokenId> fed(asked.tokens, asked.tokens + asked.token_count);
  if (asked.text == nullptr) return fed;
  QUIRE_ASSIGN(const auto* const tokenizer, host.tokenizer());
  const bool add_special = begins && fed.empty();
  QUIRE_ASSIGN(const auto of_text, tokenizer->Encode(asked.text, {.add_special = add_special}));
  fed.insert(fed.end(), of_text.begin(), of_text.end());
  return fed;
}

Result<quire::model::LogitRules> RulesOf(const quire_turn_options& asked) {
  QUIRE_TRY(quire::embed::CheckArray(asked.logit_bias, asked.logit_bias_count, kTokensMax,
                                     "options->logit_bias"));
  quire::model::LogitRules rules{.presence_penalty = asked.presence_penalty,
                                 .frequency_penalty = asked.frequency_penalty,
                                 .tokens_min = asked.min_tokens};
  if (asked.repetition_penalty != 0) rules.repetition_penalty = asked.repetition_penalty;
  for (uint64_t i = 0; i < asked.logit_bias_count; ++i) {
    rules.bias.push_back({.token = asked.logit_bias[i].token, .bias = asked.logit_bias[i].bias});
  }
  return rules;
}

quire::model::SamplingOptions SamplingOf(const quire_session_options& asked) {
  return {.temperature = asked.temperature,
          .seed = asked.seed,
          .top_k = asked.top_k,
          .top_p = asked.top_p == 0 ? 1.0f : asked.top_p,
          .min_p = asked.min_p};
}

Result<quire::serve::KeepOptions> KeepOf(const quire_turn_options& asked) {
  quire::serve::KeepOptions keep;
  if (asked.keep_share != 0) keep.share = asked.keep_share;
  keep.blocks_max = asked.keep_blocks;
  if (keep.blocks_max > 0) keep.by = quire::serve::KeepBy::kAccumulated;
  if (asked.keep_by == nullptr) return keep;
  const auto by = quire::serve::KeepByOf(asked.keep_by);
  if (!by) {
    return Fail(ErrorCode::kInvalidArgument,
                "options->keep_by is none of \"observed\", \"accumulated\", \"recent\"");
  }
  keep.by = *by;
  return keep;
}

// Of no session. `begins`: no text comes before what is fed.
Result<quire::serve::Request> RequestOf(const EngineHost& host, bool begins,
                                        const quire_turn_options& asked) {
  QUIRE_TRY(quire::embed::CheckArray(asked.stop_tokens, asked.stop_count, kTokensMax,
                                     "options->stop_tokens"));
  quire::serve::Request request{.max_tokens = asked.max_tokens,
                                .approximate_error_max = asked.approximate_error_max,
                                .adapter = quire::embed::Text(asked.adapter),
                                .digests_logits = false};
  QUIRE_ASSIGN(request.prompt, FedTokens(host, begins, asked));
  if (asked.stop_count > 0) {
    request.stop_tokens.assign(asked.stop_tokens, asked.stop_tokens + asked.stop_count);
  } else if (asked.no_stop == 0) {
    request.stop_tokens = host.stop_tokens();
  }
  QUIRE_ASSIGN(request.rules, RulesOf(asked));
  QUIRE_ASSIGN(request.keep, KeepOf(asked));
  if (asked.retain_us != 0) {
    request.retain.push_back({.tokens = asked.retain_tokens == 0 ? UINT64_MAX : asked.retain_tokens,
                              .ttl_us = asked.retain_us});
  }
  request.spills = asked.on_full == QUIRE_SPILL;
  if (!request.spills) {
    QUIRE_ASSIGN(request.on_full,
                 quire::embed::ToEnum(asked.on_full, "options->on_full", quire::OnFull::kReject));
  }
  constexpr int32_t kPriorityMost = 50;
  if (asked.priority < -kPriorityMost || asked.priority > kPriorityMost) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("options->priority {}: from -50 to 50", asked.priority));
  }
  request.priority = static_cast<uint8_t>(kPriorityMost - asked.priority);
  if (asked.timeout_us != 0) {
    constexpr uint64_t kTimeoutMost = UINT64_MAX / 2;  // no sum overflows
    request.deadline_us =
        quire::SystemClock().NowMicros() + std::min(asked.timeout_us, kTimeoutMost);
  }
  return request;
}

Result<void> Submit(quire_session& session, quire::serve::Request request) {
  session.stream.reset();
  if (const auto tokenizer = session.host->tokenizer()) session.stream.emplace(**tokenizer);
  QUIRE_ASSIGN(session.turn, session.host->engine().Submit(std::move(request)));
  return {};
}

quire_event EventOf(quire_session& session, const quire::serve::NewToken& token) {
  session.text = session.stream ? session.stream->Add(token.token) : std::string();
  quire_event event{};
  event.kind = QUIRE_EVENT_TOKEN;
  event.token = token.token;
  return event;
}

// The turn is over.
Result<quire_event> EventOf(quire_session& session, quire::serve::Response response) {
  session.turn = RequestId::None();
  session.text = session.stream ? session.stream->Finish() : std::string();
  const bool failed = response.finish == quire::serve::Finish::kFailed;
  if (failed) return std::unexpected(std::move(response).error);
  if (!session.id.is_none() && response.finish != quire::serve::Finish::kCancelled) {
    session.host->NoteOpen(session.name, response.prompt_tokens + response.tokens.size());
  }
  quire_event event{};
  event.kind = QUIRE_EVENT_DONE;
  event.prompt_tokens = response.prompt_tokens;
  event.reused_tokens = response.reused_tokens;
  event.loaded_tokens = response.loaded_tokens;
  event.generated_tokens = response.tokens.size();
  event.finish = static_cast<quire_finish>(response.finish);
  event.dropped_tokens = response.dropped_tokens;
  for (const auto& outcome : response.retained) event.retained_tokens = outcome.tokens;
  event.approximate_tokens = response.sequence.tokens_approximate;
  event.approximate_error_ppm = quire::embed::MillionthsOf(response.sequence.approximate_error);
  return event;
}

// None: it says nothing to a C caller.
Result<std::optional<quire_event>> EventOf(quire_session& session, quire::serve::Event event) {
  session.text.clear();
  if (const auto* const progress = std::get_if<quire::serve::Progress>(&event)) {
    quire_event of_c{};
    of_c.kind = QUIRE_EVENT_PROGRESS;
    of_c.prompt_done = progress->done;
    of_c.prompt_tokens = progress->total;
    return of_c;
  }
  if (const auto* const token = std::get_if<quire::serve::NewToken>(&event)) {
    return EventOf(session, *token);
  }
  if (auto* const response = std::get_if<quire::serve::Response>(&event)) {
    QUIRE_ASSIGN(const quire_event done, EventOf(session, std::move(*response)));
    return done;
  }
  return std::nullopt;
}

}  // namespace

quire_code quire_engine_open(const quire_engine_options* options, quire_engine** engine,
                             quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(engine, "engine"));
    QUIRE_ASSIGN(const quire_engine_options asked, ReadStruct(options, "options"));
    QUIRE_TRY(NotNull(asked.model, "options->model"));
    quire::serve::c::HostOptions host = {
        .model = asked.model,
        .store = {.directory = quire::embed::Text(asked.store),
                  .remote = quire::embed::Text(asked.remote),
                  .fleet_key_file = quire::embed::Text(asked.fleet_key_file)},
        .hot_bytes_max = asked.hot_bytes_max,
        .tokens_max = asked.tokens_max,
        .threads = asked.threads,
        .window = {.window_tokens = asked.window_tokens, .sink_tokens = asked.sink_tokens}};
    if (asked.store_bytes != 0) host.store.bytes_cap = asked.store_bytes;
    host.store.keys = quire::embed::ToStoreKeys(asked);
    if (asked.remote_writes_all != 0) host.store.remote_writes = quire::RemoteWrites::kAll;
    if (asked.session_bytes != 0) host.session_bytes = asked.session_bytes;
    if (asked.hot_bytes != 0) host.hot_bytes = asked.hot_bytes;
    if (asked.block_tokens != 0) host.block_tokens = asked.block_tokens;
    if (asked.chunk_tokens != 0) host.chunk_tokens = asked.chunk_tokens;
    if (asked.codec != 0) {
      QUIRE_ASSIGN(host.codec, quire::embed::ToEnum<quire::Codec>(asked.codec, "options->codec"));
    }
    if (asked.ladder != nullptr && asked.codec != 0) {
      return Fail(ErrorCode::kInvalidArgument, "options->codec: a ladder names its codecs itself");
    }
    host.ladder = quire::embed::Text(asked.ladder);
    host.resident_tokens = asked.resident_tokens;
    if (asked.policy != nullptr) host.policy = asked.policy;
    QUIRE_ASSIGN(host.eviction_batch,
                 quire::embed::ToEnum(asked.eviction_batch, "options->eviction_batch",
                                      quire::EvictionBatch::kExact));
    QUIRE_ASSIGN(host.layout, quire::embed::ToEnum(asked.layout, "options->layout",
                                                   quire::ArenaLayout::kBlockMajor));
    QUIRE_ASSIGN(host.placement, quire::embed::ToPlacement(asked.placement));
    if (asked.arithmetic != nullptr) host.arithmetic = asked.arithmetic;
    if (asked.load != nullptr) {
      const auto load = quire::serve::LoadPolicyOf(asked.load);
      if (!load) {
        return Fail(ErrorCode::kInvalidArgument,
                    "options->load is none of \"always\", \"auto\", \"never\", \"both\"");
      }
      host.load = *load;
    }
    QUIRE_ASSIGN(auto opened, EngineHost::Open(host));
    *engine = new quire_engine{.host = std::move(opened)};
    return {};
  });
}

void quire_engine_free(quire_engine* engine) { delete engine; }

quire_code quire_engine_resize(quire_engine* engine, uint64_t hot_bytes, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(engine, "engine"));
    return engine->host->leases().Resize(hot_bytes);
  });
}

quire_code quire_engine_lease(quire_engine* engine, const char* owner, uint64_t bytes,
                              uint64_t wait_us, quire_lease** lease, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(engine, "engine"));
    QUIRE_TRY(NotNull(owner, "owner"));
    QUIRE_TRY(NotNull(lease, "lease"));
    auto& leases = engine->host->leases();
    QUIRE_ASSIGN(const uint64_t id, leases.Take(owner, bytes, wait_us));
    *lease = new quire_lease{.host = engine->host, .held = {leases, id}};
    return {};
  });
}

quire_code quire_lease_resize(quire_lease* lease, uint64_t bytes, uint64_t wait_us,
                              quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(lease, "lease"));
    return lease->held.leases().Change(lease->held.id(), bytes, wait_us);
  });
}

void quire_lease_free(quire_lease* lease) { delete lease; }

quire_code quire_engine_stats_json(const quire_engine* engine, char* text, size_t text_bytes,
                                   size_t* length, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(engine, "engine"));
    return quire::embed::WriteText(engine->host->StatsJson(), text, text_bytes, length);
  });
}

quire_code quire_engine_sequences_json(const quire_engine* engine, char* text, size_t text_bytes,
                                       size_t* length, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(engine, "engine"));
    return quire::embed::WriteText(engine->host->SequencesJson(), text, text_bytes, length);
  });
}

quire_code quire_engine_entries_json(const quire_engine* engine, uint64_t entries_max, char* text,
                                     size_t text_bytes, size_t* length, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(engine, "engine"));
    QUIRE_ASSIGN(const auto entries, engine->host->cache().Entries({.entries_max = entries_max}));
    return quire::embed::WriteText(quire::ToJson(entries), text, text_bytes, length);
  });
}

quire_code quire_engine_block_map(const quire_engine* engine, char* text, size_t text_bytes,
                                  size_t* length, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(engine, "engine"));
    return quire::embed::WriteText(engine->host->cache().BlockMap(), text, text_bytes, length);
  });
}

quire_code quire_engine_free_json(const quire_engine* engine, char* text, size_t text_bytes,
                                  size_t* length, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(engine, "engine"));
    return quire::embed::WriteText(quire::ToJson(engine->host->cache().FreeSlots()), text,
                                   text_bytes, length);
  });
}

quire_code quire_engine_demote(quire_engine* engine, const quire_turn_options* prompt,
                               uint64_t* blocks, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(engine, "engine"));
    QUIRE_TRY(NotNull(blocks, "blocks"));
    QUIRE_ASSIGN(const quire_turn_options asked, ReadStruct(prompt, "prompt"));
    QUIRE_ASSIGN(const auto tokens, FedTokens(*engine->host, /*begins=*/true, asked));
    quire::serve::Engine& serving = engine->host->engine();
    std::shared_ptr<const quire::serve::ServedAdapter> adapter;
    if (asked.adapter != nullptr) {
      QUIRE_ASSIGN(adapter, serving.adapters().Find(asked.adapter));
    }
    const quire::Identity& identity = adapter == nullptr ? serving.identity() : adapter->identity;
    QUIRE_ASSIGN(*blocks, engine->host->cache().Demote({.identity = &identity, .tokens = tokens}));
    return {};
  });
}

quire_code quire_engine_load_adapter(quire_engine* engine, const char* name, const char* directory,
                                     quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(engine, "engine"));
    QUIRE_TRY(NotNull(name, "name"));
    QUIRE_TRY(NotNull(directory, "directory"));
    QUIRE_TRY(engine->host->engine().adapters().Load(name, directory));
    return {};
  });
}

quire_code quire_engine_unload_adapter(quire_engine* engine, const char* name, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(engine, "engine"));
    QUIRE_TRY(NotNull(name, "name"));
    return engine->host->engine().adapters().Unload(name);
  });
}

quire_code quire_engine_adapters_json(const quire_engine* engine, char* text, size_t text_bytes,
                                      size_t* length, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(engine, "engine"));
    return quire::embed::WriteText(engine->host->AdaptersJson(), text, text_bytes, length);
  });
}

quire_code quire_engine_sessions_json(const quire_engine* engine, char* text, size_t text_bytes,
                                      size_t* length, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(engine, "engine"));
    return quire::embed::WriteText(engine->host->SessionsJson(), text, text_bytes, length);
  });
}

quire_code quire_session_open(quire_engine* engine, const quire_session_options* options,
                              quire_session** session, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(engine, "engine"));
    QUIRE_TRY(NotNull(session, "session"));
    QUIRE_ASSIGN(const quire_session_options asked, quire::embed::ReadOptions(options, "options"));
    const std::string name = NameOr(asked.name);
    auto settling = quire::serve::MakeSettling();
    auto id = engine->host->engine().OpenSession(
        {.sampling = SamplingOf(asked), .name = name, .adapter = quire::embed::Text(asked.adapter)},
        std::move(settling.settled));
    QUIRE_ASSIGN(*session, Settled(engine->host, name, std::move(id), std::move(settling.outcome),
                                   /*tokens=*/0));
    return {};
  });
}

quire_code quire_session_reopen(quire_engine* engine, const char* name, quire_session** session,
                                quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(engine, "engine"));
    QUIRE_TRY(NotNull(name, "name"));
    QUIRE_TRY(NotNull(session, "session"));
    QUIRE_ASSIGN(const SessionId id,
                 engine->host->engine().OpenSession({.name = name, .stored = true}));
    QUIRE_ASSIGN(*session, Entered(engine->host, name, id, engine->host->TokensOf(name)));
    return {};
  });
}

quire_code quire_session_fork(quire_session* session, const char* name, quire_session** fork,
                              quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(CheckThere(session));
    QUIRE_TRY(NotNull(fork, "fork"));
    const std::string made = NameOr(name);
    EngineHost& host = *session->host;
    auto settling = quire::serve::MakeSettling();
    auto id = host.engine().ForkSession(session->id, made, std::move(settling.settled));
    QUIRE_ASSIGN(*fork, Settled(session->host, made, std::move(id), std::move(settling.outcome),
                                host.TokensOf(session->name)));
    return {};
  });
}

quire_code quire_session_name(const quire_session* session, char* text, size_t text_bytes,
                              size_t* length, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(session, "session"));
    return quire::embed::WriteText(session->name, text, text_bytes, length);
  });
}

quire_code quire_session_end(quire_session* session, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(CheckThere(session));
    auto settling = quire::serve::MakeSettling();
    QUIRE_TRY(session->host->engine().EndSession(session->id, std::move(settling.settled)));
    session->ended = true;
    session->host->NoteEnded(session->name);
    return settling.outcome.get();
  });
}

void quire_session_free(quire_session* session) {
  if (session == nullptr) return;
  EngineHost& host = *session->host;
  (void)Boundary(nullptr, [&]() -> Result<void> {
    if (session->id.is_none()) {
      if (const RequestId turn = session->turn; !turn.is_none()) host.engine().Cancel(turn);
    } else if (!session->ended) {
      if (host.keeps_sessions()) {
        auto settling = quire::serve::MakeSettling();
        QUIRE_TRY(host.engine().CloseSession(session->id, std::move(settling.settled)));
        // The next call that opens it finds its name free.
        (void)settling.outcome.get();
      } else {
        QUIRE_TRY(host.engine().EndSession(session->id));
      }
      host.NoteClosed(session->name);
    }
    // The end of a turn that was not taken.
    if (const RequestId turn = session->turn; !turn.is_none()) {
      while (host.engine().Await(turn)) {
      }
    }
    return {};
  });
  delete session;
}

quire_code quire_session_begin(quire_session* session, const quire_turn_options* options,
                               quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(CheckThere(session));
    if (!session->turn.load().is_none()) {
      return Fail(ErrorCode::kBusy,
                  fmt::format("session '{}': a turn is under way", session->name));
    }
    QUIRE_ASSIGN(const quire_turn_options asked, ReadStruct(options, "options"));
    const bool begins = session->host->TokensOf(session->name) == 0;
    QUIRE_ASSIGN(quire::serve::Request request, RequestOf(*session->host, begins, asked));
    request.session = session->id;
    return Submit(*session, std::move(request));
  });
}

quire_code quire_engine_ask(quire_engine* engine, const quire_turn_options* options,
                            const quire_session_options* sampling, quire_session** call,
                            quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(engine, "engine"));
    QUIRE_TRY(NotNull(call, "call"));
    QUIRE_ASSIGN(const quire_turn_options asked, ReadStruct(options, "options"));
    QUIRE_ASSIGN(const quire_session_options drawn,
                 quire::embed::ReadOptions(sampling, "sampling"));
    QUIRE_ASSIGN(quire::serve::Request request, RequestOf(*engine->host, /*begins=*/true, asked));
    request.sampling = SamplingOf(drawn);
    auto made = std::make_unique<quire_session>();
    made->host = engine->host;
    QUIRE_TRY(Submit(*made, std::move(request)));
    *call = made.release();
    return {};
  });
}

quire_code quire_session_next(quire_session* session, quire_event* event, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(session, "session"));
    QUIRE_TRY(quire::embed::CheckOutput(event, "event"));
    const RequestId turn = session->turn;
    if (turn.is_none()) {
      return Fail(ErrorCode::kNotFound,
                  fmt::format("session '{}': no turn is under way", session->name));
    }
    while (auto said = session->host->engine().Await(turn)) {
      QUIRE_ASSIGN(auto of_c, EventOf(*session, *std::move(said)));
      if (!of_c) continue;
      of_c->text = session->text.c_str();
      quire::embed::WriteStruct(event, *of_c);
      return {};
    }
    session->turn = RequestId::None();
    return Fail(ErrorCode::kCancelled, "the engine has ended");
  });
}

quire_code quire_session_cancel(quire_session* session, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(session, "session"));
    if (const RequestId turn = session->turn; !turn.is_none()) {
      session->host->engine().Cancel(turn, quire::serve::CancelledTurn::kUndone);
    }
    return {};
  });
}
