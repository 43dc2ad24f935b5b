// The C interface of the engine: a model, a cache and sessions, for programs that are not C++. C99,
// standard headers only. In libquire_engine.so, which holds all it needs; quire.h has the common
// rules (Errors, Threads, Lifetime, Growth, Numbers).
//
//   quire_engine_options options = {.size = sizeof options, .model = "models/tiny",
//                                   .store = "/var/lib/quire"};
//   quire_engine_open(&options, &engine, &error);
//   quire_session_open(engine, NULL, &session, &error);      // its name outlives the process
//   quire_turn_options turn = {.size = sizeof turn, .text = "Once", .max_tokens = 32};
//   quire_session_begin(session, &turn, &error);
//   do quire_session_next(session, &event, &error); while (event.kind != QUIRE_EVENT_DONE);
#ifndef QUIRE_ENGINE_H_
#define QUIRE_ENGINE_H_

#include <stddef.h>
#include <stdint.h>

#include "quire/quire.h"

// NOLINTBEGIN(readability-identifier-naming): the names are C's.
#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

typedef struct quire_engine quire_engine;
typedef struct quire_session quire_session;
typedef struct quire_lease quire_lease;

typedef struct quire_engine_options {
  size_t size;             // sizeof(quire_engine_options)
  const char* model;       // directory in Hugging Face form
  const char* store;       // directory where blocks and sessions outlive the process; NULL: nowhere
  uint64_t store_bytes;    // most that blocks take there; 0: 8 GiB
  uint64_t session_bytes;  // most that sessions take there; 0: 1 GiB
  uint64_t hot_bytes;      // budget of the cache in memory; 0: 4 GB
  uint64_t tokens_max;     // longest text of a session; 0: the model's
  uint32_t block_tokens;   // 0: 16
  uint32_t chunk_tokens;   // of a prompt that a step computes; 0: 512
  uint32_t threads;        // 0: one per core
  quire_codec codec;       // of K and V; 0: the model's type
  // A context larger than hot_bytes is read back from the store while layers attend, all but at
  // least so many of its last tokens (docs/streaming.md). 0: it is refused.
  uint64_t resident_tokens;
  const char* policy;  // which block goes first (docs/policies.md); NULL: "lru"
  const char* load;    // blocks that the store has: "auto" (NULL) loads them, computes them or
                       // both, whichever was fastest lately; "always" loads; "never" computes;
                       // "both" loads the end while the beginning is computed
  quire_eviction_batch eviction_batch;  // 0: QUIRE_EXACT
  uint64_t hot_bytes_max;               // most that quire_engine_resize may ask for; 0: hot_bytes
  // Every layer of a model without windows sees its first sink_tokens and the window_tokens before
  // it: memory stays the same however long the text is, and the answer differs. 0: all.
  uint32_t window_tokens;
  uint32_t sink_tokens;
  quire_layout layout;        // of blocks in memory; 0: QUIRE_BLOCK_MAJOR
  quire_placement placement;  // QUIRE_FREE_LIST (0)
  // A service that machines share, behind the store or without one: redis://, rediss:// or s3://
  // (docs/remote.md). Sessions are in the store alone. NULL or empty: none.
  const char* remote;
  const char* fleet_key_file;  // 32 bytes that they have in common; NULL: nothing is shared
  uint32_t remote_writes_all;  // not 0: all is written there, not only what is used again
  // Of an encrypted store, and its sessions, at most one of these (docs/encryption.md): a file of
  // 32 bytes; a command that wraps and unwraps; 32 bytes. NULL: none.
  const char* keys_file;
  const char* keys_command;
  const uint8_t* key;
  // How matrices are multiplied (docs/numerics.md). NULL: "fma32", the same bits on every machine.
  // A model of bf16 may have "dot16": by the processor's products of bf16, that is "dot16-amx" or
  // else "dot16-avx512", whichever it has; blocks of one are never taken for another's.
  const char* arithmetic;
  // "f16:int8": blocks that grow cold stay in the second codec alone, and so they go to the store,
  // or in a third one: "f16:int8:int4"; turns find them that accept them (docs/ladder.md). `codec`
  // is 0 then. NULL: none.
  const char* ladder;
} quire_engine_options;

/// Loads the model and opens the store; a thread of the engine's own computes from now on.
///
/// Errors:   QUIRE_NOT_FOUND, QUIRE_CORRUPT, QUIRE_UNSUPPORTED of the model's files;
///           QUIRE_UNSUPPORTED the processor, or the model, lacks what the arithmetic needs;
///           QUIRE_NOT_FOUND a file that opens the remote; QUIRE_INVALID_ARGUMENT; QUIRE_NO_SPACE
///           hot_bytes; QUIRE_BUSY another process has the store; QUIRE_IO
/// Lifetime: it ends when it and all its sessions have been freed; then published blocks are
///           written to the store
quire_code quire_engine_open(const quire_engine_options* options, quire_engine** engine,
                             quire_error* error);
void quire_engine_free(quire_engine* engine);

/// Changes the budget of the cache in memory, leases included, while sessions go on.
///
/// Errors: as quire_cache_resize; QUIRE_TOO_LARGE the leases have more
quire_code quire_engine_resize(quire_engine* engine, uint64_t hot_bytes, quire_error* error);

/// Takes bytes out of the cache's budget for something outside the engine, such as a training run
/// with a registry of its own (quire_registry_create), until the lease is freed. Turns that run
/// give way for at most `wait_us`, and go on when there is room.
///
/// Errors:   QUIRE_INVALID_ARGUMENT no bytes, or `owner` (a name for statistics) has not 1 to 256
///           bytes; QUIRE_TOO_LARGE the budget has no more than that; QUIRE_NO_SPACE the rest holds
///           no block; QUIRE_BUSY turns hold more after wait_us
/// Lifetime: may outlive the engine's handle, which lives until then
quire_code quire_engine_lease(quire_engine* engine, const char* owner, uint64_t bytes,
                              uint64_t wait_us, quire_lease** lease, quire_error* error);
/// More or less bytes for the same lease. Errors: as quire_engine_lease
quire_code quire_lease_resize(quire_lease* lease, uint64_t bytes, uint64_t wait_us,
                              quire_error* error);
/// Gives the bytes back to the cache.
void quire_lease_free(quire_lease* lease);

/// Statistics of engine, cache and store, as one JSON object {"engine", "cache", "store",
/// "leases"}; no store: null. Text: as quire_engine_sessions_json
quire_code quire_engine_stats_json(const quire_engine* engine, char* text, size_t text_bytes,
                                   size_t* length, quire_error* error);
/// The requests and sessions of the engine and what each holds of the cache, as a JSON array of
/// {"request", "session", "session_name", "tenant", "stage" ("waiting", "loading", "reading",
/// "generating", "idle"), "priority", "age_ms", "text_tokens", "generated_tokens", "held_tokens",
/// "blocks_shared", "blocks_own", "bytes", "tokens_streamed", "tokens_approximate",
/// "approximate_error"}. Text: as quire_engine_sessions_json
quire_code quire_engine_sequences_json(const quire_engine* engine, char* text, size_t text_bytes,
                                       size_t* length, quire_error* error);
/// As quire_cache_entries_json, quire_cache_block_map and quire_cache_free_json, of the engine's
/// cache.
quire_code quire_engine_entries_json(const quire_engine* engine, uint64_t entries_max, char* text,
                                     size_t text_bytes, size_t* length, quire_error* error);
quire_code quire_engine_block_map(const quire_engine* engine, char* text, size_t text_bytes,
                                  size_t* length, quire_error* error);
quire_code quire_engine_free_json(const quire_engine* engine, char* text, size_t text_bytes,
                                  size_t* length, quire_error* error);
/// Reads a LoRA adapter as PEFT writes it (docs/lora.md): calls and sessions may name it then.
///
/// Errors: QUIRE_NOT_FOUND, QUIRE_CORRUPT, QUIRE_UNSUPPORTED of its files, naming the field or the
///         tensor; QUIRE_INVALID_ARGUMENT the name; QUIRE_BUSY one of that name is loaded;
///         QUIRE_NO_SPACE, QUIRE_TOO_LARGE 64 adapters, or 4 GiB of them
quire_code quire_engine_load_adapter(quire_engine* engine, const char* name, const char* directory,
                                     quire_error* error);
/// No new turn finds it. Those that run with it end with it.
/// Errors: QUIRE_NOT_FOUND
quire_code quire_engine_unload_adapter(quire_engine* engine, const char* name, quire_error* error);
/// Those that are loaded, by name, as a JSON array of {"name", "rank", "modules", "bytes"}. Text:
/// as quire_engine_sessions_json
quire_code quire_engine_adapters_json(const quire_engine* engine, char* text, size_t text_bytes,
                                      size_t* length, quire_error* error);
/// The sessions, open or in the store, in the order of their names, as a JSON array of {"name",
/// "tokens", "open", "unusable" (why it cannot continue here, or null)}.
///
/// Text: with its NUL, if text_bytes is enough; *length is set in any case, without the NUL.
///       text_bytes 0 only asks for that
quire_code quire_engine_sessions_json(const quire_engine* engine, char* text, size_t text_bytes,
                                      size_t* length, quire_error* error);

typedef struct quire_session_options {
  size_t size;        // sizeof(quire_session_options)
  const char* name;   // 1 to 64 of A-Z a-z 0-9 _ -; NULL: one is made
  uint64_t seed;      // same seed, same answers
  float temperature;  // 0: the most likely token
  float top_p;        // 0 or 1: all
  uint32_t top_k;     // 0: all
  float min_p;        // none less likely than this share of the likeliest; 0: all
  // That all its turns are computed with; a turn fails with QUIRE_NOT_FOUND while none of that name
  // is loaded, and with QUIRE_UNSUPPORTED while it has other weights. NULL: the base model.
  const char* adapter;
} quire_session_options;

/// A new session. With a store it is durable when this returns.
///
/// `options` may be NULL.
/// Errors: QUIRE_INVALID_ARGUMENT the name is none, or taken; QUIRE_NOT_FOUND the adapter;
///         QUIRE_NO_SPACE; QUIRE_IO
quire_code quire_session_open(quire_engine* engine, const quire_session_options* options,
                              quire_session** session, quire_error* error);
/// Continues a session of the store, as it was after its last whole turn.
///
/// Errors: QUIRE_NOT_FOUND; QUIRE_BUSY it is open; QUIRE_UNSUPPORTED another model's, or a newer
///         version's; QUIRE_CORRUPT. A damaged text is found by its first turn
quire_code quire_session_reopen(quire_engine* engine, const char* name, quire_session** session,
                                quire_error* error);
/// A second session with the same text and sampler. With a store it is durable when this returns.
///
/// `name` may be NULL.
/// Errors: as quire_session_open; QUIRE_BUSY a turn is under way
quire_code quire_session_fork(quire_session* session, const char* name, quire_session** fork,
                              quire_error* error);
/// Its name, for quire_session_reopen. Text: as quire_engine_sessions_json
quire_code quire_session_name(const quire_session* session, char* text, size_t text_bytes,
                              size_t* length, quire_error* error);
/// Erases the session: its file is overwritten and removed when this returns. Afterwards the handle
/// can only be freed.
///
/// Errors: QUIRE_IO its file may come back after a crash
quire_code quire_session_end(quire_session* session, quire_error* error);
/// A turn that is under way is undone. With a store the session can be opened again; else it ends.
void quire_session_free(quire_session* session);

typedef struct quire_logit_bias {
  int32_t token;
  float bias;  // added to its logit
} quire_logit_bias;

/// Fields that are 0 change nothing.
typedef struct quire_turn_options {
  size_t size;            // sizeof(quire_turn_options)
  const int32_t* tokens;  // [token_count] fed first; NULL: none
  uint64_t token_count;
  const char* text;            // then fed; NULL: none
  const int32_t* stop_tokens;  // [stop_count] that end the answer; NULL: the model's own
  uint64_t stop_count;
  uint32_t max_tokens;  // 0: nothing is generated; the fed tokens are only read
  uint32_t no_stop;     // not 0: no token ends the answer before max_tokens
  // How the answer's tokens are drawn (docs/numerics.md section 4). All text before the answer
  // counts as its prompt.
  float repetition_penalty;            // of tokens in prompt or answer; 0: 1, which changes nothing
  float presence_penalty;              // of tokens in the answer
  float frequency_penalty;             // the same, for each time
  uint32_t min_tokens;                 // before so many no stop token is drawn
  const quire_logit_bias* logit_bias;  // [logit_bias_count]; NULL: none
  uint64_t logit_bias_count;
  // Where memory has no room: QUIRE_REJECT (0), it waits and may be preempted; QUIRE_HALT, it ends;
  // QUIRE_SPILL, it streams from the store until there is room (needs resident_tokens).
  quire_on_full on_full;
  uint64_t timeout_us;  // a turn that has not ended after so long fails; 0: never
  // If several turns wait or memory is short, turns with lower values run first: -50 to 50.
  int32_t priority;
  int32_t reserved0;
  // For quire_engine_ask only: once its prompt was read, it continues with this share of the
  // prompt's blocks, above 0 to 1 (0: all); the answer is then an approximation, and its blocks are
  // not shared.
  double keep_share;
  const char* keep_by;  // which ones: "observed" (NULL), "accumulated", "recent" (docs/policies.md)
  // For a text that will be used again: its first retain_tokens (0: all, with the answer) are kept
  // in memory so long, at most an hour, within a quarter of the cache. 0: no.
  uint64_t retain_us;
  uint64_t retain_tokens;
  // For quire_engine_ask only: it never holds more than so many blocks, at least 8: when they are
  // full, an eighth is dropped, by "accumulated" (NULL) or "recent" in keep_by. 0: no limit.
  uint64_t keep_blocks;
  // Of quire_engine_ask and quire_engine_demote alone: a session has its own. NULL: the base model.
  const char* adapter;
  // With a ladder: the largest relative error of blocks in the lower precision that it may begin
  // with. 0: none, the answer is exact.
  float approximate_error_max;
  int32_t reserved1;
} quire_turn_options;

/// One prompt and its answer, in no session: only cached blocks of its text stay. The handle can be
/// used with quire_session_next, quire_session_cancel and quire_session_free.
///
/// `sampling` may be NULL; its name and adapter are not read.
/// Errors: as quire_session_begin; QUIRE_INVALID_ARGUMENT there is no token, or keep_share or
///         keep_by are none; QUIRE_UNSUPPORTED QUIRE_SPILL without resident_tokens;
///         QUIRE_NOT_FOUND the adapter
quire_code quire_engine_ask(quire_engine* engine, const quire_turn_options* options,
                            const quire_session_options* sampling, quire_session** call,
                            quire_error* error);
/// Moves the whole blocks of a text from memory to the store now; *blocks left memory.
///
/// `tokens` and `text` as in quire_turn_options, one of them
/// Errors: as quire_demote; QUIRE_UNSUPPORTED text for a model without tokenizer
quire_code quire_engine_demote(quire_engine* engine, const quire_turn_options* prompt,
                               uint64_t* blocks, quire_error* error);
/// Begins a turn; quire_session_next reports its progress.
///
/// Errors: QUIRE_BUSY one is under way; QUIRE_INVALID_ARGUMENT, of a penalty or a bias with its
///         name; QUIRE_UNSUPPORTED text for a model without tokenizer
quire_code quire_session_begin(quire_session* session, const quire_turn_options* options,
                               quire_error* error);

typedef int32_t quire_event_kind;
enum {
  QUIRE_EVENT_PROGRESS = 1,  // prompt_done of prompt_tokens are read
  QUIRE_EVENT_TOKEN = 2,     // `token` was generated; `text` are the characters it completes
  QUIRE_EVENT_DONE = 3       // the turn is over and, with a store, durable
};

typedef int32_t quire_finish;
enum {
  QUIRE_FINISH_LENGTH = 1,    // max_tokens
  QUIRE_FINISH_STOP = 2,      // a stop token
  QUIRE_FINISH_NO_SPACE = 3,  // memory is full, and on_full is QUIRE_HALT; the tokens so far stay
  QUIRE_FINISH_CANCELLED = 4  // the session is as before the turn
};

typedef struct quire_event {
  size_t size;  // sizeof(quire_event)
  quire_event_kind kind;
  int32_t token;           // QUIRE_EVENT_TOKEN
  const char* text;        // UTF-8 with a NUL, until the next call; never NULL
  uint64_t prompt_done;    // QUIRE_EVENT_PROGRESS
  uint64_t prompt_tokens;  // of both others: the session's text before the answer
  uint64_t reused_tokens;  // QUIRE_EVENT_DONE, as the following: of these, not computed
  uint64_t loaded_tokens;  // of these, from the store
  uint64_t generated_tokens;
  quire_finish finish;
  int32_t reserved0;
  uint64_t dropped_tokens;         // of the prompt, by keep_share
  uint64_t retained_tokens;        // of the text, by retain_us: whole blocks
  uint64_t approximate_tokens;     // of the text, in the lower precision of a ladder
  uint64_t approximate_error_ppm;  // the largest of theirs, in millionths, rounded up
} quire_event;

/// Waits for the next event of a turn.
///
/// Errors: QUIRE_NOT_FOUND no turn is under way. Errors of the turn itself: it is over then, and
///         the session is as before it
quire_code quire_session_next(quire_session* session, quire_event* event, quire_error* error);
/// Ends the turn, if one is under way: QUIRE_EVENT_DONE follows.
///
/// Threads: any, beside one that waits in quire_session_next
quire_code quire_session_cancel(quire_session* session, quire_error* error);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
// NOLINTEND(readability-identifier-naming)

#endif  // QUIRE_ENGINE_H_
