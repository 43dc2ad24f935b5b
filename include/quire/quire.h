// The C interface: the cache, and a store of blocks, for programs that are not C++. C99, standard
// headers only.
//
//   quire_cache_options options = {.size = sizeof options, .layers = 28, .kv_heads = 8,
//                                  .head_dim = 128, .codec = QUIRE_F16, .hot_bytes = 4000000000};
//   quire_cache_create(&options, &cache, &error);
//   quire_acquire(cache, &request, &plan, &error);           // pins the longest cached prefix
//   quire_open(plan, NULL, &sequence, &error);
//   // compute tokens [quire_sequence_length(sequence), n): for each layer
//   quire_sequence_append(sequence, layer, &key, &value, count, &error);
//   quire_attend(attention, &attend, &error);
//   quire_sequence_commit(sequence, tokens, count, &error);  // visible; whole blocks are shared
//
// The common rules, which single functions do not repeat:
//   Errors:   a function that can fail returns a quire_code and leaves it with a message in `error`
//             (NULL: not wanted). A NULL handle, pointer or out-parameter is
//             QUIRE_INVALID_ARGUMENT. After a failure the objects are as before and out-parameters
//             are not written; only QUIRE_NO_MEMORY and QUIRE_INTERNAL leave a handle that can only
//             be freed. Nothing is thrown.
//   Threads:  as in C++: a cache may be used from any thread; a sequence has one writer at a time;
//             an attention handle runs one call at a time; a store takes any call from any thread.
//             Each comment says what differs.
//   Lifetime: handles may be freed in any order: an object that another one needs lives until that
//             one ends. Freeing NULL does nothing. Pointers passed in are read during the call
//             only.
//   Growth:   structs that begin with `size` may get longer at their end; the caller sets it to
//             sizeof. Fields that an older, shorter struct lacks count as zero and are not filled.
//             A newer, longer one may be read if all fields that this library does not know are
//             zero (else QUIRE_UNSUPPORTED); when it is filled these fields stay as they are.
//             `size` itself is never written. Shorter than the struct's first version, or above
//             4,096 bytes, is QUIRE_INVALID_ARGUMENT, and nothing is written. No other struct
//             changes.
//   Numbers:  every constant is frozen. Zero in an options struct means the default.
#ifndef QUIRE_QUIRE_H_
#define QUIRE_QUIRE_H_

#include <stddef.h>
#include <stdint.h>

// NOLINTBEGIN(readability-identifier-naming): the names are C's.
#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/// The library's version, "0.2.0". Never NULL, never freed.
const char* quire_version(void);

// ---- Errors -------------------------------------------------------------------------------------

typedef int32_t quire_code;
enum {
  QUIRE_OK = 0,
  QUIRE_INVALID_ARGUMENT = 1,  // the caller passed something that can never work
  QUIRE_NOT_FOUND = 2,         // the named object does not exist (a cache miss is not an error)
  QUIRE_NO_SPACE = 3,          // a hard budget refuses it; nothing was taken
  QUIRE_BUSY = 4,              // held by a lease or another owner
  QUIRE_CORRUPT = 5,           // bytes from outside do not have the promised form
  QUIRE_IO = 6,                // the operating system or a peer failed
  QUIRE_UNSUPPORTED = 7,       // well formed, but not something this build or machine can do
  QUIRE_CANCELLED = 8,         // the caller asked to stop
  QUIRE_DEADLINE = 9,          // it did not finish in the time given
  QUIRE_TOO_LARGE = 10,        // a hard budget can never hold it: do not try again
  QUIRE_NO_MEMORY = 64,        // the system has no memory for bookkeeping
  QUIRE_INTERNAL = 65          // an unexpected failure; the message says which
};

typedef struct quire_error {
  quire_code code;
  char message[508];  // names the object and the numbers; ends with NUL; cut if longer
} quire_error;

/// Name of a code as in logs and JSON, for example "no_space"; "unknown" for any other number.
const char* quire_code_name(quire_code code);

// ---- Words --------------------------------------------------------------------------------------

typedef int32_t quire_codec;
enum {
  QUIRE_F32 = 1,
  QUIRE_F16 = 2,
  QUIRE_BF16 = 3,
  // These encode (docs/codecs.md): caches only. Rows, views and own kernels have the above.
  QUIRE_FP8_E4M3 = 4,
  QUIRE_FP8_E5M2 = 5,
  QUIRE_INT8 = 6,
  QUIRE_INT4 = 7,
  QUIRE_NF4 = 8,
  QUIRE_FP4 = 9,
  QUIRE_Q25 = 10
};

typedef int32_t quire_role;
enum { QUIRE_KEY = 1, QUIRE_VALUE = 2, QUIRE_LATENT = 3 };

typedef int32_t quire_layer_kind;
enum { QUIRE_FULL = 1, QUIRE_WINDOW = 2 };

typedef int32_t quire_layout;
enum { QUIRE_BLOCK_MAJOR = 1, QUIRE_LAYER_MAJOR = 2, QUIRE_HEAD_MAJOR = 3 };

typedef int32_t quire_placement;  // which free slots an allocation gets
enum { QUIRE_FREE_LIST = 0, QUIRE_FIRST_FIT = 1, QUIRE_BEST_FIT = 2, QUIRE_BUDDY = 3 };

typedef int32_t quire_axis;  // which axis of a [token, dim] plane is contiguous
enum { QUIRE_AXIS_TOKEN = 1, QUIRE_AXIS_DIM = 2 };

typedef int32_t quire_compute;  // type of weights and activations
enum { QUIRE_COMPUTE_F32 = 1, QUIRE_COMPUTE_F16 = 2, QUIRE_COMPUTE_BF16 = 3 };

typedef int32_t quire_on_full;
enum {
  QUIRE_REJECT = 1,    // evicts unleased blocks, then refuses
  QUIRE_HALT = 2,      // reserves the prompt; growing may fail, the sequence stays usable
  QUIRE_NO_EVICT = 3,  // as QUIRE_REJECT, but takes free room only
  QUIRE_FEWER = 4,     // reserves as much as there is room for, at least the prompt
  QUIRE_SPILL = 5      // of an engine's turns: it streams from the store
};

typedef int32_t quire_eviction_batch;  // how many bytes are evicted when room is needed
enum {
  QUIRE_EXACT = 1,    // the bytes that are needed
  QUIRE_ADAPTIVE = 2  // and the more in advance, the more of the latest requests had to evict
};

typedef int32_t quire_reason;  // why not all of a prompt was found
enum {
  QUIRE_NEVER_SEEN = 1,     // no published block continues the prompt here
  QUIRE_PARTIAL_BLOCK = 2,  // only the last, incomplete block (or the last token) is left
  QUIRE_DAMAGED = 3,        // the next block failed a re-check and is quarantined
  QUIRE_NOT_ASKED = 4,      // the request said no_reuse
  QUIRE_WINDOW_PASSED = 5,  // known, but the bytes that windowed layers need here are gone
  QUIRE_EVICTED = 6,        // it was here, and went because others needed the room
  QUIRE_OTHER_PROFILE = 7,  // here under other weights, adapter, version or position encoding
  QUIRE_EXPIRED = 8,        // it was here, and was not used for the tenant's ttl
  QUIRE_QUOTA = 9,          // it was here, and went because the tenant's own quota was full
  QUIRE_NO_TWIN = 10,       // here, but not the open forms that residual_tokens would read
  // 11 is reserved: it was QUIRE_SPILLED until 0.2.
  QUIRE_NOT_LOADED = 12,   // the store has it, and it was not loaded
  QUIRE_LOAD_FAILED = 13,  // it did not come: damaged, gone, or the disk or the device failed
  QUIRE_LOAD_LATE = 14,    // it did not come in time
  QUIRE_APPROXIMATE = 15   // here, but in the lower precision of a ladder, which was not accepted
};

typedef struct quire_cache quire_cache;
typedef struct quire_plan quire_plan;
typedef struct quire_sequence quire_sequence;
typedef struct quire_view quire_view;
typedef struct quire_attention quire_attention;

// ---- Cache --------------------------------------------------------------------------------------

typedef struct quire_stream {
  quire_role role;
  uint32_t heads;
  uint32_t dim;
} quire_stream;

typedef struct quire_layer_group {
  quire_layer_kind kind;
  uint32_t window_tokens;  // QUIRE_WINDOW only
  uint32_t sink_tokens;    // QUIRE_WINDOW only
  uint32_t layer_count;
  const uint32_t* layers;  // [layer_count], absolute numbers, ascending
  uint32_t stream_count;
  const quire_stream* streams;  // [stream_count]: key and value, or one latent
} quire_layer_group;

/// Where a cache keeps blocks below memory; see "The store below a cache".
typedef struct quire_disk_store quire_disk_store;

typedef struct quire_cache_options {
  size_t size;
  // The model: either one full-attention group with key and value streams ...
  uint32_t layers;
  uint32_t kv_heads;
  uint32_t head_dim;
  // ... or groups, with the three above zero.
  uint32_t group_count;
  const quire_layer_group* groups;  // [group_count]
  // How numbers are made and kept. All of it is part of every block's identity.
  quire_codec codec;          // of keys and latents; 0: QUIRE_F16
  quire_codec value_codec;    // 0: as codec
  uint32_t block_tokens;      // 0: 16
  quire_compute compute;      // 0: QUIRE_COMPUTE_F32
  const char* arithmetic;     // class of the kernels that compute K and V; NULL: "fma32"
  quire_layout layout;        // 0: QUIRE_BLOCK_MAJOR
  int32_t huge_pages;         // not 0: transparent huge pages for the arena; block-major only
  quire_placement placement;  // all but the free list can hold contiguous sequences
  uint64_t hot_bytes;         // hard budget
  uint64_t tokens_max;        // longest sequence; 0: 1,048,576
  uint64_t hot_bytes_max;     // most that quire_cache_resize may ask for; 0: hot_bytes
  const char* policy;         // which block goes first (docs/policies.md); NULL: "lru"
  quire_eviction_batch eviction_batch;  // 0: QUIRE_EXACT
  // With codecs that encode: the last tokens before a query's block that it reads as they were
  // written, rounded up to blocks (docs/cache.md, Twins). Or QUIRE_PRECISION_LADDER: what grows
  // cold stays in `codec` alone (docs/ladder.md).
  uint64_t residual_tokens;
  quire_codec open_codec;  // of what is not encoded yet: QUIRE_F32 to QUIRE_BF16; 0: QUIRE_F16
  // Not 0: a codec that quire_attend, the layout or a stream does not take gives way to one that
  // they do (fp8 to int8 to f16), with a warning on stderr; quire_cache_get_codecs says which.
  // 0: it is refused.
  int32_t codec_fallback;
  const void* reserved[2];  // NULL; they were the spill's until 0.2
  // Published blocks are written there, and found by a later process. NULL: nowhere.
  quire_disk_store* disk_store;
  // Where KV events are published while the cache lives, where subscribers ask for what they
  // missed, and the first frame of each message (docs/events.md). NULL: none.
  const char* events;
  const char* events_replay;
  const char* events_topic;
  quire_codec store_codec;  // with QUIRE_PRECISION_LADDER: what a store is given; 0: as codec
} quire_cache_options;

/// As quire_cache_options::residual_tokens.
#define QUIRE_PRECISION_LADDER UINT32_MAX

/// Makes a cache.
/// Errors: QUIRE_INVALID_ARGUMENT names the field; QUIRE_NO_SPACE hot_bytes cannot hold one block;
///         QUIRE_UNSUPPORTED a codec or layout that this build lacks, or events without libzmq;
///         QUIRE_IO an endpoint of events cannot be bound
quire_code quire_cache_create(const quire_cache_options* options, quire_cache** cache,
                              quire_error* error);
void quire_cache_free(quire_cache* cache);

/// The codecs that a cache uses, after any fallback.
typedef struct quire_cache_codecs {
  size_t size;
  quire_codec key;           // of keys, or of latents
  quire_codec value;         // the key's again where layers store latents
  quire_codec open;          // of what is not encoded yet
  uint32_t residual_tokens;  // 0 where nothing is encoded
  uint64_t fallbacks;        // streams whose codec gave way
} quire_cache_codecs;

/// Fills *codecs.
quire_code quire_cache_get_codecs(const quire_cache* cache, quire_cache_codecs* codecs,
                                  quire_error* error);

/// One class of slots.
typedef struct quire_slot_stats {
  uint64_t slot_bytes;
  uint64_t slots_max;
  uint64_t slots_used;
  uint64_t slots_used_peak;
} quire_slot_stats;

/// Counters since the cache was made; numbers of the allocator and the ledger, not of formulas.
typedef struct quire_cache_stats {
  size_t size;
  uint64_t hot_bytes_limit;
  uint64_t hot_bytes_used;
  uint64_t hot_bytes_peak;
  quire_slot_stats sealed;
  quire_slot_stats
      sealed_second;          // of the other layers, where full attention and a window are mixed
  quire_slot_stats open;      // zero slots when every codec stores values as they are
  uint64_t published_blocks;  // in the index now
  uint64_t evictable_blocks;  // published and not leased
  uint64_t passed_blocks;     // leased, but windows have passed them and some bytes may go
  uint64_t hollow_blocks;     // of which windows kept nothing
  uint64_t sequences;
  uint64_t lookups;
  uint64_t lookup_tokens;
  uint64_t hit_tokens;
  uint64_t published_total;
  uint64_t deduplicated_total;
  uint64_t evicted_total;
  uint64_t evicted_passed_total;
  uint64_t refused_total;
  uint64_t reserved[4];  // 0; they were the spill's until 0.2
} quire_cache_stats;

/// Fills *stats.
quire_code quire_cache_get_stats(const quire_cache* cache, quire_cache_stats* stats,
                                 quire_error* error);
/// The same as one JSON object, ended by NUL. *length gets its bytes without the NUL, also when
/// they do not fit; text_bytes 0 only asks for that number.
/// Errors: QUIRE_INVALID_ARGUMENT text_bytes is neither 0 nor enough
quire_code quire_cache_stats_json(const quire_cache* cache, char* text, size_t text_bytes,
                                  size_t* length, quire_error* error);
/// The published blocks that lookups of a tenant may find, as a JSON array of at most `entries_max`
/// objects {"key", "parent_key" (null: the first of its path), "account", "first_token", "holders",
/// "pinned", "in_memory", "in_store", "age_s", "idle_s"} (docs/embedding.md). The number may change
/// between two calls: give room for more than the first one returned.
///
/// `tenant` may be NULL: the blocks of all tenants. Text: as quire_cache_stats_json
/// Errors: QUIRE_NOT_FOUND no such tenant
quire_code quire_cache_entries_json(quire_cache* cache, const uint32_t* tenant,
                                    uint64_t entries_max, char* text, size_t text_bytes,
                                    size_t* length, quire_error* error);
/// One character per slot: '.' free, 'p' private, 's' published, 'S' published and in use, 'w' a
/// window has passed it. Text: as quire_cache_stats_json
quire_code quire_cache_block_map(const quire_cache* cache, char* text, size_t text_bytes,
                                 size_t* length, quire_error* error);
/// How free slots lie, as a JSON array of {"slots", "free_slots", "runs", "largest",
/// "fragmentation"} of each slot class: 0 where they are one run, towards 1 where they are
/// scattered. Text: as quire_cache_stats_json
quire_code quire_cache_free_json(const quire_cache* cache, char* text, size_t text_bytes,
                                 size_t* length, quire_error* error);
/// Recomputes every published block's checksum; damaged ones are never found again.
quire_code quire_cache_verify(quire_cache* cache, uint64_t* blocks, uint64_t* damaged,
                              quire_error* error);
/// Evicts up to `blocks` unleased blocks, least recently used first; *evicted is how many were
/// evicted.
quire_code quire_cache_evict(quire_cache* cache, uint64_t blocks, uint64_t* evicted,
                             quire_error* error);
/// Returns free slots' pages to the system; *bytes says how many bytes.
quire_code quire_cache_trim(quire_cache* cache, uint64_t* bytes, quire_error* error);
/// Changes the hard budget while sequences live. Growing commits memory; shrinking evicts blocks
/// over the new budget, moves cached blocks that are not in use, pinned ones too, out of the
/// removed slots, and gives their memory back. Slots that sequences, plans and views hold never
/// move.
/// Errors: QUIRE_TOO_LARGE above hot_bytes_max; QUIRE_NO_SPACE the system refuses, or it holds no
///         block, or less than the tenants' floors; QUIRE_BUSY slots that would go are held: names
///         the holders, and how low it can go now
quire_code quire_cache_resize(quire_cache* cache, uint64_t hot_bytes, quire_error* error);

// ---- Tenants ------------------------------------------------------------------------------------

/// A party that pays for its blocks and reads only its own; or a domain.
typedef struct quire_tenant_options {
  size_t size;
  const char* name;      // not empty, unique in the cache
  const char* domain;    // shares with all that name the same; NULL or "": private
  uint64_t quota_bytes;  // most it may hold; 0: as much as the budget
  uint64_t floor_bytes;  // the needs of others never evict it below this
  uint64_t ttl_us;       // blocks that were not used for so long are evicted; 0: never
  int32_t shared;        // not 0: this is a domain for tenants to name
  // The same two limits in the store, in whole segments of it; without one they say nothing.
  uint64_t store_quota_bytes;  // 0: as much as the store
  uint64_t store_floor_bytes;
} quire_tenant_options;

/// Makes a tenant; *tenant is what quire_acquire_as takes.
/// Errors: QUIRE_INVALID_ARGUMENT the name is empty or taken, the floor is above the quota;
///         QUIRE_NOT_FOUND no such domain; QUIRE_NO_SPACE the floors do not fit the budget
quire_code quire_cache_add_tenant(quire_cache* cache, const quire_tenant_options* options,
                                  uint32_t* tenant, quire_error* error);
/// Erases all blocks that a tenant published or wrote, and zeroes them; *pending_slots is how many
/// slots are still held, and zeroed when their holders end ("erase_pending_slots" in its
/// statistics).
/// Errors: QUIRE_NOT_FOUND; QUIRE_INVALID_ARGUMENT it is a domain
quire_code quire_cache_erase_tenant(quire_cache* cache, uint32_t tenant, uint64_t* pending_slots,
                                    quire_error* error);
/// Gives a tenant or domain another quota (0: as much as the budget) and floor while sequences
/// live; its cached blocks beyond the new quota are evicted.
/// Errors: QUIRE_NOT_FOUND; QUIRE_INVALID_ARGUMENT the floor is above the quota; QUIRE_NO_SPACE the
///         floors do not fit the budget; QUIRE_BUSY it holds more than that: the limits stay
quire_code quire_cache_set_limits(quire_cache* cache, uint32_t tenant, uint64_t quota_bytes,
                                  uint64_t floor_bytes, quire_error* error);
/// Removes a tenant or domain: erases what it published, and gives its quota and floor back. Its
/// name may be given to another one; its number is never used again.
/// Errors: QUIRE_NOT_FOUND; QUIRE_INVALID_ARGUMENT the default tenant; QUIRE_BUSY a domain with
///         members, or sequences, plans or views still hold slots of it: it stays, erased
quire_code quire_cache_remove_tenant(quire_cache* cache, uint32_t tenant, quire_error* error);
/// A tenant's statistics as one JSON object, as quire_cache_stats_json does it.
/// Errors: QUIRE_NOT_FOUND; QUIRE_INVALID_ARGUMENT text_bytes is neither 0 nor enough
quire_code quire_cache_tenant_json(const quire_cache* cache, uint32_t tenant, char* text,
                                   size_t text_bytes, size_t* length, quire_error* error);

// ---- A prompt -----------------------------------------------------------------------------------

/// Everything that decides the bits of K and V besides the tokens: equal identity and equal tokens
/// mean equal bytes. Texts end with NUL; NULL is the empty text.
typedef struct quire_identity {
  size_t size;
  uint8_t weights[32];            // fingerprint of every weight byte and the config
  const char* adapter;            // LoRA name
  uint64_t adapter_version;       // moves at every training step
  const char* position_encoding;  // for example "rope:theta=1000000"
  const char* domain;             // tenants that agreed to share
  uint8_t domain_secret[32];      // keys the identity hash; never logged
  uint64_t domain_epoch;          // raised by an erasure: nothing older matches
} quire_identity;

typedef struct quire_acquire_request {
  size_t size;
  const quire_identity* identity;
  const int32_t* tokens;  // [token_count], the whole prompt
  size_t token_count;
  int32_t no_reuse;  // not 0: plan a sequence that shares nothing
  int32_t reserved0;
  // With a precision ladder: the largest relative error of blocks in the lower precision that the
  // request accepts. What a sequence computes after them is published for requests that accept it,
  // too. 0: none, it is exact.
  float approximate_error_max;
  int32_t reserved1;
} quire_acquire_request;

/// Pins the longest cached prefix of a prompt; at least one token is left to compute.
/// Errors:   QUIRE_INVALID_ARGUMENT no identity, no tokens, or more than tokens_max
/// Lifetime: the blocks stay until the plan is opened or freed
quire_code quire_acquire(quire_cache* cache, const quire_acquire_request* request,
                         quire_plan** plan, quire_error* error);
/// The same for a tenant. quire_acquire is for tenant 0, which is always there.
/// Errors: also QUIRE_NOT_FOUND no such tenant; QUIRE_INVALID_ARGUMENT it is a domain
quire_code quire_acquire_as(quire_cache* cache, uint32_t tenant,
                            const quire_acquire_request* request, quire_plan** plan,
                            quire_error* error);
/// For an expected request: begins to read the blocks of its prompt from the cache's store. Loaded
/// blocks are cached and not held. *tokens: being read; 0: there is nothing to read. It is no
/// lookup.
/// Errors: as quire_acquire_as; QUIRE_NO_SPACE no free slots for it
quire_code quire_prefetch(quire_cache* cache, uint32_t tenant, const quire_acquire_request* request,
                          uint64_t* tokens, quire_error* error);
/// Moves the whole blocks of request->tokens from memory to the cache's store now; *blocks left
/// memory, from the last one on, up to one that is in use, pinned or continued by another prompt.
/// Errors: as quire_acquire_as; QUIRE_UNSUPPORTED there is no store; QUIRE_NO_SPACE and QUIRE_IO
///         none left, because the store took nothing
quire_code quire_demote(quire_cache* cache, uint32_t tenant, const quire_acquire_request* request,
                        uint64_t* blocks, quire_error* error);
/// Keeps the whole blocks of request->tokens in the cache, in use or not, for ttl_us (0: until
/// quire_unpin); *blocks says how many. Pins of one path by one tenant are counted.
/// Errors: QUIRE_INVALID_ARGUMENT as quire_acquire_as, or there is no whole block; QUIRE_NOT_FOUND
///         no such tenant, or not all of it is cached; QUIRE_NO_SPACE over the tenant's quota, or
///         what the floors of others leave
quire_code quire_pin(quire_cache* cache, uint32_t tenant, const quire_acquire_request* request,
                     uint64_t ttl_us, uint64_t* blocks, quire_error* error);
/// Takes one pin back.
/// Errors: as quire_pin; QUIRE_NOT_FOUND the tenant has no pin that ends with these blocks
quire_code quire_unpin(quire_cache* cache, uint32_t tenant, const quire_acquire_request* request,
                       quire_error* error);
/// Tokens found and pinned, a multiple of block_tokens; 0 for NULL.
uint64_t quire_plan_resident_tokens(const quire_plan* plan);
/// Tokens of the prompt that must be computed; 0 for NULL only.
uint64_t quire_plan_missing_tokens(const quire_plan* plan);
/// Of the missing tokens, those that quire_load can bring. 0 for NULL.
uint64_t quire_plan_loadable_tokens(const quire_plan* plan);
/// Of the tokens found, those in the lower precision of a ladder, and the largest error of theirs.
/// 0 for NULL.
uint64_t quire_plan_approximate_tokens(const quire_plan* plan);
float quire_plan_approximate_error(const quire_plan* plan);
/// 0 for NULL only.
quire_reason quire_plan_reason(const quire_plan* plan);
/// The first token of the prompt that differs from the cached block behind the equal tokens. 0: no
/// cached block follows there, and *token stays as it is.
int32_t quire_plan_differs_at(const quire_plan* plan, uint64_t* token);
/// Name of a reason as in JSON, for example "never_seen"; "unknown" for any other number.
const char* quire_reason_name(quire_reason reason);
/// Reads a plan's loadable blocks from the store and waits for them, at most `timeout_us` (0: as
/// long as it takes). `loaded` is the plan with the loaded blocks; its reason says why others did
/// not come. `plan` is used up, also when this fails.
/// Errors: QUIRE_NO_SPACE no free slots for it
quire_code quire_load(quire_plan* plan, uint64_t timeout_us, quire_plan** loaded,
                      quire_error* error);
void quire_plan_free(quire_plan* plan);

typedef struct quire_sequence_options {
  size_t size;
  uint64_t reserve_tokens;  // prompt and expected output; 0: the prompt
  uint64_t step_tokens;     // most tokens appended between two commits; 0: 512
  quire_on_full on_full;    // 0: QUIRE_REJECT, which reserves all of it or refuses
  int32_t private_blocks;   // not 0: its blocks are never shared
  // Not 0: its blocks are consecutive slots, so that views of it are one array. It shares nothing,
  // so its plan must be one with no_reuse; it takes free slots only and grows in place or not at
  // all.
  int32_t contiguous;
  // With resident_tokens: heads that query a layer.
  uint32_t query_heads;
  // For a context that the budget does not hold: at least so many of its last tokens stay in
  // memory, blocks before them leave it once the cache's store has them, and quire_attend reads
  // them back, with the same bits (docs/streaming.md). Open takes all the room that it needs. 0:
  // the whole context stays in memory.
  uint64_t resident_tokens;
} quire_sequence_options;

/// Makes a sequence that starts with the plan's resident tokens. The plan is used up, also when
/// this fails. `options` may be NULL.
/// Errors: QUIRE_NO_SPACE names shared, own and available blocks, or the tenant whose quota is
///         full; QUIRE_TOO_LARGE it can never fit; QUIRE_INVALID_ARGUMENT past tokens_max,
///         contiguous with a plan that shares blocks, resident_tokens without query_heads;
///         QUIRE_UNSUPPORTED contiguous or resident_tokens where the cache cannot
quire_code quire_open(quire_plan* plan, const quire_sequence_options* options,
                      quire_sequence** sequence, quire_error* error);

// ---- Sequence -----------------------------------------------------------------------------------

/// Frees the sequence and every slot that only it held.
void quire_sequence_free(quire_sequence* sequence);

/// Committed tokens; 0 for NULL.
/// Threads: any
uint64_t quire_sequence_length(const quire_sequence* sequence);
/// Tokens written in `layer`, committed or not.
/// Threads: any
quire_code quire_sequence_cursor(const quire_sequence* sequence, uint32_t layer, uint64_t* tokens,
                                 quire_error* error);

typedef struct quire_sequence_stats {
  size_t size;
  uint64_t tokens_used;            // committed
  uint64_t tokens_reserved;        // room in the blocks it holds
  uint32_t blocks_shared;          // published blocks it leases
  uint32_t blocks_own;             // private blocks
  uint64_t bytes;                  // of all slots it holds, shared ones included
  uint64_t tokens_streamed;        // of tokens_used, those that are read back from the store
  uint64_t tokens_approximate;     // of tokens_used, those in the lower precision of a ladder
  uint64_t approximate_error_ppm;  // the largest of theirs, in millionths, rounded up
} quire_sequence_stats;

/// Fills *stats.
/// Threads: any
quire_code quire_sequence_get_stats(const quire_sequence* sequence, quire_sequence_stats* stats,
                                    quire_error* error);

/// Makes room for `tokens` tokens in all; all or nothing.
/// Errors: QUIRE_NO_SPACE; QUIRE_INVALID_ARGUMENT past tokens_max
quire_code quire_sequence_reserve(quire_sequence* sequence, uint64_t tokens, quire_error* error);

/// Rows as an engine has them: element (token, head, dim) is the one at
/// token * token_stride + head * head_stride + dim, strides in elements.
typedef struct quire_rows {
  const void* data;
  quire_codec dtype;
  int64_t token_stride;
  int64_t head_stride;
} quire_rows;

/// Writes the next `tokens` rows of one layer.
/// Shape:   key [tokens, heads, dim], value likewise; a latent model's rows are `key`, `value` NULL
/// Errors:  QUIRE_INVALID_ARGUMENT bad layer, stream, dtype or stride; QUIRE_NO_SPACE
/// Threads: different layers at once, once room is reserved
quire_code quire_sequence_append(quire_sequence* sequence, uint32_t layer, const quire_rows* key,
                                 const quire_rows* value, uint32_t tokens, quire_error* error);

/// Makes the next tokens visible; every layer must be written that far. Publishes whole blocks.
/// Errors: QUIRE_INVALID_ARGUMENT names the layer that is behind
quire_code quire_sequence_commit(quire_sequence* sequence, const int32_t* tokens,
                                 size_t token_count, quire_error* error);
/// Cuts to `tokens` tokens, committed or not.
/// Errors: QUIRE_INVALID_ARGUMENT more than were written, inside a block that cannot be cut, or
///         before what a window kept; QUIRE_NO_SPACE no room for the copy of a shared block
quire_code quire_sequence_rollback(quire_sequence* sequence, uint64_t tokens, quire_error* error);
/// A second sequence with the same committed tokens; shares whole blocks.
/// Errors: QUIRE_NO_SPACE
quire_code quire_sequence_fork(quire_sequence* sequence, quire_sequence** fork, quire_error* error);
typedef struct quire_retention {
  size_t size;
  uint64_t begin_token;
  uint64_t end_token;  // after the last; 0: to the end, however far that will be
  int32_t priority;    // 0 to 100: the lowest goes first. 50 is usual, 0 is no default
  uint64_t ttl_us;     // then the priority is 50 again; 0: for good
} quire_retention;

/// Gives the blocks of a range of tokens a priority, those published already and those that will
/// be. Callers that share a block: the highest priority and the latest end count.
/// Errors: QUIRE_INVALID_ARGUMENT an empty range, or the priority; QUIRE_UNSUPPORTED the cache's
///         policy is not "priority"
quire_code quire_sequence_retain(quire_sequence* sequence, const quire_retention* retention,
                                 quire_error* error);
/// Back to zero tokens; slots that only it held are free again.
quire_code quire_sequence_reset(quire_sequence* sequence, quire_error* error);
/// Of a sequence of quire_ticket_arriving: returns when a layer of what is loaded is there. Until
/// all layers are, the sequence is appended to and nothing else. Others have all layers.
/// Errors: QUIRE_DEADLINE not within this time; QUIRE_NOT_FOUND the load has ended without some of
///         it: nothing of the sequence is to be used, begin with the plan of quire_ticket_take
quire_code quire_sequence_await_layer(quire_sequence* sequence, uint32_t layer, uint64_t timeout_us,
                                      quire_error* error);

/// Copies tokens [begin, end) of one stream, widened to f32.
/// Shape:   out [heads, end - begin, dim]; out_values is what it has room for
/// Errors:  QUIRE_INVALID_ARGUMENT a range past what is written, no such stream, or no room;
///          QUIRE_NOT_FOUND the layer's window has passed a block of the range
/// Threads: any
quire_code quire_sequence_gather(const quire_sequence* sequence, uint32_t layer, quire_role role,
                                 uint64_t begin, uint64_t end, float* out, size_t out_values,
                                 quire_error* error);

/// Where one stream of one layer lies inside a slot: [head][plane], plane as `inner` says.
typedef struct quire_stream_layout {
  quire_codec codec;
  quire_axis inner;
  uint32_t heads;
  uint32_t dim;
  uint32_t block_tokens;
  uint32_t reserved;           // 0
  uint64_t offset_bytes;       // of head 0 from the slot's first byte
  uint64_t head_stride_bytes;  // from one head's plane to the next
} quire_stream_layout;

/// As an index: the block has no slot.
#define QUIRE_NO_SLOT UINT32_MAX

/// What a kernel of one's own needs for one layer: where its blocks lie, by index and (as before
/// 0.2) by pointer.
typedef struct quire_layer_blocks {
  size_t size;
  // [block_count]; NULL: the layer's window has passed that block
  const void* const* sealed;  // read for every block but the query's own
  const void* const* open;    // read for the query's own block
  uint64_t block_count;
  quire_stream_layout key;
  quire_stream_layout value;  // the key's again when the layer stores one latent
  uint64_t tokens;            // written in this layer
  // From 0.2 on. Block b is in slot slots[b], and slot i begins at base + i * slot_stride_bytes;
  // all sequences of a cache have the same base for a layer.
  const void* base;
  uint64_t slot_stride_bytes;
  const uint32_t* slots;  // [block_count]; QUIRE_NO_SLOT: the window has passed that block
} quire_layer_blocks;

/// Errors:   QUIRE_INVALID_ARGUMENT no such layer; QUIRE_UNSUPPORTED the cache encodes its blocks
///           (quire_attend reads them)
/// Lifetime: until the next call that writes to this sequence; pinned by the sequence alone
quire_code quire_sequence_blocks(const quire_sequence* sequence, uint32_t layer,
                                 quire_layer_blocks* blocks, quire_error* error);

// ---- Views --------------------------------------------------------------------------------------

/// The blocks of one stream, in place and pinned until the view, and every DLPack tensor made of
/// it, is gone.
/// Errors:  QUIRE_INVALID_ARGUMENT no such layer or stream
/// Threads: any; one view is used by one thread at a time
quire_code quire_view_open(const quire_sequence* sequence, uint32_t layer, quire_role role,
                           quire_view** view, quire_error* error);
void quire_view_free(quire_view* view);
/// Tokens that can be read; the last block may hold fewer than block_tokens. 0 for NULL.
uint64_t quire_view_tokens(const quire_view* view);
uint64_t quire_view_block_count(const quire_view* view);

typedef struct quire_tensor {
  size_t size;
  const void* data;  // read-only
  quire_codec dtype;
  uint32_t rank;
  int64_t shape[5];    // [rank]
  int64_t strides[5];  // [rank], in elements
} quire_tensor;

/// As an index: all blocks as one array.
#define QUIRE_ALL_BLOCKS UINT64_MAX

/// Block `index` as [heads, tokens in this block, dim]; or all of them where they lie equally far
/// apart, as in a contiguous sequence: [heads, tokens, dim] in a head-major arena, elsewhere
/// [blocks, heads, block_tokens, dim], of whose last block only tokens % block_tokens may be
/// written. Nothing is ever copied.
/// Errors:   QUIRE_INVALID_ARGUMENT index; QUIRE_NOT_FOUND the layer's window has passed the block;
///           QUIRE_UNSUPPORTED all blocks, but they do not lie so
/// Lifetime: the view's
quire_code quire_view_tensor(const quire_view* view, uint64_t index, quire_tensor* tensor,
                             quire_error* error);

// From quire/dlpack.h, or from a dlpack.h of one's own.
struct DLManagedTensorVersioned;
struct DLManagedTensor;

/// The same as a DLPack 1.x tensor, flagged read-only. Its deleter must be called once.
/// Errors: as quire_view_tensor; QUIRE_UNSUPPORTED a codec that is no plain number
quire_code quire_view_dlpack(const quire_view* view, uint64_t index,
                             struct DLManagedTensorVersioned** tensor, quire_error* error);
/// The same for consumers of DLPack before 1.0, whose form has no read-only flag. The bytes are.
quire_code quire_view_dlpack_legacy(const quire_view* view, uint64_t index,
                                    struct DLManagedTensor** tensor, quire_error* error);

// ---- Attention ----------------------------------------------------------------------------------

typedef struct quire_attention_options {
  size_t size;
  uint32_t threads;  // that run at once, the caller included; 0: 1. The bits do not depend on it
} quire_attention_options;

/// The CPU's attention kernels with threads and scratch. `options` may be NULL.
/// Errors: QUIRE_UNSUPPORTED a processor without fused multiply-add
quire_code quire_attention_create(const quire_attention_options* options,
                                  quire_attention** attention, quire_error* error);
void quire_attention_free(quire_attention* attention);

/// Consecutive query rows of one sequence; row r stands at first_position + r and sees the tokens
/// up to and including its own.
typedef struct quire_attend_task {
  const quire_sequence* sequence;
  const float* queries;  // [rows, query_heads, key dim]
  float* out;            // [rows, query_heads, value dim]
  uint32_t rows;
  uint64_t first_position;
} quire_attend_task;

typedef struct quire_attend_request {
  size_t size;
  uint32_t layer;
  uint32_t query_heads;  // a multiple of the KV heads
  float scale;           // multiplies q; 0: 1 / sqrt(key dim)
  uint32_t task_count;
  const quire_attend_task* tasks;  // [task_count], sequences of one cache
  // A logit of each head that takes part in its softmax and has no value (-INFINITY: the head has
  // none); ALiBi's slope of each head, times (key position - query position) added to its scores.
  const float* sink_logits;   // [query_heads]; NULL: none
  const float* alibi_slopes;  // [query_heads]; NULL: none
} quire_attend_request;

/// Computes attention over what is written in a layer, in place (docs/numerics.md). The layer's
/// window and sinks are those of the cache's geometry.
/// Errors:  QUIRE_INVALID_ARGUMENT a row past what is written, or before what its window or its
///          open form kept, sequences of two caches, heads that do not divide; QUIRE_UNSUPPORTED a
///          shape the kernels lack. Nothing is computed then.
///          Of a sequence with resident_tokens: QUIRE_NO_SPACE more rows than step_tokens, or more
///          heads than query_heads; QUIRE_INVALID_ARGUMENT it is in two tasks, or a row lies in
///          tokens that memory does not hold; QUIRE_CORRUPT, QUIRE_NOT_FOUND, QUIRE_IO,
///          QUIRE_DEADLINE the store did not give a block, which is named. It stays as it is, and
///          opened anew it begins before that block
/// Threads: one call at a time per handle, and per sequence with resident_tokens; no writer on
///          these sequences meanwhile
quire_code quire_attend(quire_attention* attention, const quire_attend_request* request,
                        quire_error* error);

// ---- The store below a cache --------------------------------------------------------------------
//
// quire_cache_options::disk_store names one, and several caches may share it. It writes their
// published blocks in the background; quire_load reads them back. docs/durability.md. One process
// at a time owns a directory. Freed while caches name it, it lives until they end.

typedef struct quire_disk_store_options {
  size_t size;
  const char* directory;        // made if there is none; empty: nothing is on disk, see warm_bytes
  uint64_t bytes_cap;           // of all files together, never exceeded; 0: 8 GiB
  uint64_t commit_interval_us;  // what a crash may lose; 0: 1,000,000
  uint64_t staging_bytes;       // memory for bytes under way; 0: 64 MiB
  // Memory in front of the disk, for caches whose blocks are on a device; 0: none. It keeps the
  // records written or read last.
  uint64_t warm_bytes;
  uint64_t scrub_bytes_per_s;  // read again in the background; 0: 8 MiB, UINT64_MAX: nothing
  // A service that machines share, behind the disk or alone: redis://, rediss:// or s3://
  // (docs/remote.md); null or empty: none.
  const char* remote;
  const char* fleet_key_file;  // 32 bytes that they have in common; null: nothing is shared
  uint32_t remote_writes_all;  // not 0: all is written there, not only what is used again
  // Of an encrypted directory, at most one of these (docs/encryption.md): a file of 32 bytes; a
  // command that wraps and unwraps; 32 bytes. NULL: none.
  const char* keys_file;
  const char* keys_command;
  const uint8_t* key;
} quire_disk_store_options;

/// Opens the store in a directory, or makes one.
/// Errors: QUIRE_INVALID_ARGUMENT sizes that no store can have, an address that is none; QUIRE_BUSY
///         another process has it; QUIRE_UNSUPPORTED a newer version wrote it; QUIRE_NOT_FOUND a
///         file that opens the remote; QUIRE_NO_SPACE; QUIRE_IO
quire_code quire_disk_store_open(const quire_disk_store_options* options, quire_disk_store** store,
                                 quire_error* error);
void quire_disk_store_free(quire_disk_store* store);
/// Returns when every block published before is durable. Blocks that were not flushed may be lost
/// when the store ends.
/// Errors: QUIRE_NO_SPACE or QUIRE_IO some of it could not be written
quire_code quire_disk_store_flush(quire_disk_store* store, quire_error* error);
/// A secret for quire_identity::domain_secret, kept beside the store in a file of mode 0600.
/// Errors: QUIRE_CORRUPT the file is not what was written; QUIRE_NO_SPACE; QUIRE_IO
quire_code quire_disk_store_secret(const quire_disk_store* store, uint8_t secret[32],
                                   quire_error* error);
/// As quire_cache_stats_json.
quire_code quire_disk_store_stats_json(const quire_disk_store* store, char* text, size_t text_bytes,
                                       size_t* length, quire_error* error);

// A load that its caller does not wait for. Loaded blocks are held until its ticket ends. A ticket
// keeps its cache, and is used by one thread at a time.

typedef struct quire_ticket quire_ticket;

typedef struct quire_load_options {
  size_t size;
  uint64_t timeout_us;  // blocks that are not there by then count as not loaded; 0: no limit
  // Not 0: the last block is read first, for a caller that computes from the beginning meanwhile,
  // on a sequence of quire_ticket_front, and reports its progress with quire_ticket_meet. Loaded
  // blocks are found once they follow on computed ones.
  int32_t from_end;
  // Not 0: in so many slices (2 to 8) the first layers of all blocks are read, then the next ones,
  // for a caller that computes what follows meanwhile, on a sequence of quire_ticket_arriving. Not
  // with from_end. Where layers cannot be read by themselves it comes as from the front.
  uint32_t by_layer;
  // Called once with `done_data` when the load has ended, maybe before quire_load_begin returns, on
  // a thread of the store. That thread, and the end of the ticket, wait for it: it may not use the
  // ticket. NULL: nothing is called.
  void (*on_done)(void* done_data);
  void* done_data;
} quire_load_options;

typedef struct quire_load_progress {
  size_t size;
  uint64_t blocks;        // to be loaded
  uint64_t blocks_ready;  // loaded and verified, all layers
  uint64_t bytes;         // of all blocks but those that another load brought
  uint64_t
      meet_tokens;      // from_end: tokens before what has come; computing on from there is useless
  uint64_t elapsed_us;  // to its end
  uint64_t done;        // 1: it has ended
  uint64_t layers_ready;  // by_layer: the first so many are there, of all blocks that come
} quire_load_progress;

/// Begins what quire_load does. `options` may be NULL. The plan is used up, also when this fails.
/// Errors: QUIRE_NO_SPACE no free slots for it; QUIRE_UNSUPPORTED from_end where layers have a
///         window, or with residual_tokens; QUIRE_INVALID_ARGUMENT by_layer above 8, or with
///         from_end
quire_code quire_load_begin(quire_plan* plan, const quire_load_options* options,
                            quire_ticket** ticket, quire_error* error);
/// Fills a struct whose `size` is set.
quire_code quire_ticket_progress(const quire_ticket* ticket, quire_load_progress* progress,
                                 quire_error* error);
/// Returns when the load has ended.
/// Errors: QUIRE_DEADLINE not in time, it goes on
quire_code quire_ticket_wait(const quire_ticket* ticket, uint64_t timeout_us, quire_error* error);
/// For a load from the end: a plan of the first `tokens` of the prompt, to compute from, with the
/// blocks that were resident when the load began, pinned once more. At least one token is missing.
/// Errors: QUIRE_INVALID_ARGUMENT the load is from the front
quire_code quire_ticket_front(const quire_ticket* ticket, uint64_t tokens, quire_plan** front,
                              quire_error* error);
/// For a load from the end: the first `tokens` of the prompt are computed and published, and the
/// caller holds them until the ticket ends. Blocks that end there are not read any more; the load
/// is done when all later blocks have come. Fewer tokens than before change nothing.
/// Errors: QUIRE_INVALID_ARGUMENT the load is from the front
quire_code quire_ticket_meet(quire_ticket* ticket, uint64_t tokens, quire_error* error);
/// For a load by layer some of whose layers are ready: a plan that has the blocks on their way as
/// resident ones, pinned. A sequence that is opened from it has the tokens of a layer when
/// quire_sequence_await_layer says so.
/// Errors: QUIRE_UNSUPPORTED the load is not by layer; QUIRE_BUSY no layer is ready, or the load
///         has ended or fails: wait for its end
quire_code quire_ticket_arriving(const quire_ticket* ticket, quire_plan** arriving,
                                 quire_error* error);
/// Cancels reading: blocks that have not come will not be waited for.
quire_code quire_ticket_cancel(quire_ticket* ticket, quire_error* error);
/// Waits for the end. Returns the plan that the load was made from, with the loaded blocks; its
/// reason says why others did not come. The ticket is used up.
quire_code quire_ticket_take(quire_ticket* ticket, quire_plan** loaded, quire_error* error);
/// Cancels the blocks that have not come.
void quire_ticket_free(quire_ticket* ticket);

// ---- Store --------------------------------------------------------------------------------------
//
// A store of opaque blocks on a local disk: bytes by (namespace, key), under a hard cap, found
// again after a restart. It has nothing to do with caches. docs/embedding.md, "A store of blocks".
//
//   quire_store_put(store, "model", blocks, count, &batch, &error);   // returns at once
//   quire_store_wait(store, batch, QUIRE_FOREVER, results, count, &error);
//
// A call hands in a batch and gets its number. The memory behind `data` and `out` is used until the
// batch ends: in quire_store_wait by its number, else in quire_store_next. A batch ends for one
// taker. Batches that are under way at the same time take effect in any order.

typedef struct quire_store quire_store;

#define QUIRE_FOREVER UINT64_MAX
/// Most blocks of one batch.
#define QUIRE_STORE_BATCH_MAX 1048576

typedef struct quire_store_options {
  size_t size;
  // Made when it does not exist; its parent must. "unix:PATH": the store that another process
  // serves at this socket (`quire store serve`), whose choice everything below is then
  const char* directory;
  uint64_t bytes_cap;           // of all files together, never exceeded; 0: 8 GiB
  uint64_t block_bytes_max;     // longest block; 0: 64 MiB, or a sixteenth of the cap if less
  uint64_t commit_interval_us;  // what a crash may lose; 0: 20,000
  uint64_t scrub_bytes_per_s;   // read again in the background; 0: 8 MiB, UINT64_MAX: nothing
  uint32_t disk_requests_max;   // that the disk works on at the same time; 0: 64
  // 1: a put ends when its block can be found, in memory, if it has room there. It becomes durable
  // soon after; when a later flush ends it is, or the disk did not take it (puts_lost).
  // 0: a put ends when it is durable
  uint32_t accepts_puts;
  // Of the blocks that were put or read last, which are kept in memory too; 0: 256 MiB, UINT64_MAX:
  // none
  uint64_t memory_bytes;
  // Of an encrypted directory, at most one of these (docs/encryption.md): a file of 32 bytes; a
  // command that wraps and unwraps; 32 bytes. NULL: none.
  const char* keys_file;
  const char* keys_command;
  const uint8_t* key;
} quire_store_options;

/// Opens the store in a directory, or makes one; or connects to the process that serves one.
/// Errors: QUIRE_INVALID_ARGUMENT sizes that no store can have; QUIRE_BUSY another process has it,
///         or its owner serves as many clients as it may; QUIRE_UNSUPPORTED a newer version wrote
///         it, or serves it; QUIRE_NOT_FOUND no such socket; QUIRE_NO_SPACE; QUIRE_IO
quire_code quire_store_open(const quire_store_options* options, quire_store** store,
                            quire_error* error);
/// quire_store_close, and the end of the handle.
/// Threads: no other call on the store meanwhile
void quire_store_free(quire_store* store);
/// Ends all batches, makes everything durable and lets go of the directory. Batches that ended can
/// still be taken; those handed in from now on end with QUIRE_BLOCK_CLOSED.
quire_code quire_store_close(quire_store* store, quire_error* error);

typedef int32_t quire_block_outcome;  // how a request about one block ended
enum {
  QUIRE_BLOCK_OK = 0,         // put: durable, or accepted. remove: durable. get: verified and
                              // copied. exists: there
  QUIRE_BLOCK_PRESENT = 1,    // put: it was there, or is being written, and stays as it is
  QUIRE_BLOCK_ABSENT = 2,     // get, exists, remove: it is not there
  QUIRE_BLOCK_DAMAGED = 3,    // get: the bytes were not those of the block, which is forgotten: a
                              // miss
  QUIRE_BLOCK_TOO_SMALL = 4,  // get: it is longer than `out`
  QUIRE_BLOCK_TOO_LARGE = 5,  // longer than block_bytes_max; a key that no socket takes
  QUIRE_BLOCK_NO_SPACE = 6,   // put: the disk is full, or the quota too small for any block
  QUIRE_BLOCK_IO = 7,         // the disk failed
  QUIRE_BLOCK_CLOSED = 8,     // the store was closed before
  // The process that serves the store went away, or is not there. What was to be changed may have
  // been.
  QUIRE_BLOCK_UNREACHABLE = 9
};
/// Name of an outcome, for example "absent"; "unknown" for any other number.
const char* quire_block_outcome_name(quire_block_outcome outcome);

typedef struct quire_block_result {
  quire_block_outcome outcome;
  uint32_t reserved;  // 0
  // get: the block's length, also when it is too small. exists: most that it may have, at most
  // 4,095 above its length.
  uint64_t bytes;
} quire_block_result;

// Keys are any bytes, of any length.
typedef struct quire_block_key {
  const void* key;
  size_t key_bytes;
} quire_block_key;

typedef struct quire_put_block {
  const void* key;
  size_t key_bytes;
  const void* data;  // read until the batch ends
  size_t data_bytes;
} quire_put_block;

typedef struct quire_get_block {
  const void* key;
  size_t key_bytes;
  void* out;  // written until the batch ends; holds the block only with QUIRE_BLOCK_OK
  size_t out_bytes;
} quire_get_block;

/// Writes blocks. They can be found when the batch ends. A key names its bytes for good: a block
/// that is there stays as it is. `name_space` ends with NUL; NULL is the empty one.
quire_code quire_store_put(quire_store* store, const char* name_space,
                           const quire_put_block* blocks, size_t count, uint64_t* batch,
                           quire_error* error);
quire_code quire_store_get(quire_store* store, const char* name_space,
                           const quire_get_block* blocks, size_t count, uint64_t* batch,
                           quire_error* error);
/// Looks into the index alone. Without a socket the batch ends before this returns.
quire_code quire_store_exists(quire_store* store, const char* name_space,
                              const quire_block_key* keys, size_t count, uint64_t* batch,
                              quire_error* error);
quire_code quire_store_remove(quire_store* store, const char* name_space,
                              const quire_block_key* keys, size_t count, uint64_t* batch,
                              quire_error* error);
/// Forgets everything in a namespace, for good. The batch has one result: QUIRE_BLOCK_OK when that
/// is durable. A later flush ends when the bytes are overwritten.
quire_code quire_store_erase(quire_store* store, const char* name_space, uint64_t* batch,
                             quire_error* error);
/// A batch without results that ends when every batch handed in before is durable or failed.
quire_code quire_store_flush(quire_store* store, uint64_t* batch, quire_error* error);

/// Waits for the end of one batch and takes it. results [count], one for each block, in their
/// order.
/// Errors: QUIRE_DEADLINE not in time, it goes on; QUIRE_NOT_FOUND no such batch, or it was taken;
///         QUIRE_INVALID_ARGUMENT the batch has another count: it is lost
quire_code quire_store_wait(quire_store* store, uint64_t batch, uint64_t timeout_us,
                            quire_block_result* results, size_t count, quire_error* error);
/// Takes a batch that ended and that no call waits for: its number, 0 if there is none, and how
/// many results it has. Only the first results_max of these are written.
quire_code quire_store_next(quire_store* store, uint64_t* batch, quire_block_result* results,
                            size_t results_max, size_t* count, quire_error* error);
/// A descriptor for poll and event loops: readable when quire_store_next may have something. Call
/// that until it has nothing. It is the store's: do not read or close it. -1 for NULL.
int32_t quire_store_event_fd(const quire_store* store);

/// Numbers of a store; counters are of this opening.
typedef struct quire_store_stats {
  size_t size;
  uint64_t blocks;
  uint64_t bytes;  // of all files, what is preallocated included
  uint64_t bytes_cap;
  uint64_t bytes_live;       // that blocks take on disk
  uint64_t block_bytes_max;  // longest block
  uint64_t memory_bytes;     // index, staging, and blocks in memory
  uint64_t bytes_written;    // to the disk
  uint64_t bytes_read;       // from the disk
  uint64_t evicted;          // blocks that made room for others
  uint64_t damaged;          // blocks that were found damaged, and forgotten
  uint64_t puts;             // that ended with QUIRE_BLOCK_OK
  uint64_t puts_present;
  uint64_t puts_failed;
  uint64_t hits;
  uint64_t misses;  // QUIRE_BLOCK_ABSENT, QUIRE_BLOCK_DAMAGED
  uint64_t gets_failed;
  uint64_t removed;
  uint64_t disk_full;    // not 0: no more files can be made
  uint64_t puts_lost;    // that were accepted, and which the disk did not take
  uint64_t memory_hits;  // of `hits`: out of memory
  uint64_t clients;      // connected to the process that serves it; 0: it is not served
} quire_store_stats;

/// Fills *stats: of a store that is served those of its owner, over all its clients.
quire_code quire_store_get_stats(const quire_store* store, quire_store_stats* stats,
                                 quire_error* error);

/// Limits a namespace, as long as its directory stays open: it has at most quota_bytes of files (0:
/// no limit), and others leave it floor_bytes. Both are rounded down to what the store recycles at
/// once. What it has beyond its quota goes when it is written to again.
/// Errors: QUIRE_INVALID_ARGUMENT the store is closed; QUIRE_IO, QUIRE_DEADLINE its owner does not
///         answer
quire_code quire_store_set_limits(quire_store* store, const char* name_space, uint64_t quota_bytes,
                                  uint64_t floor_bytes, quire_error* error);

/// What one namespace has on disk.
typedef struct quire_store_usage {
  size_t size;
  uint64_t blocks;      // that can be found
  uint64_t bytes_live;  // of these
  uint64_t bytes;       // of the files that are its own: what limits are compared with
} quire_store_usage;

/// Errors: as quire_store_set_limits
quire_code quire_store_get_usage(const quire_store* store, const char* name_space,
                                 quire_store_usage* usage, quire_error* error);

// ---- Owners: inference and training runs on one budget ------------------------------------------

/// The C form of quire/registry.h: owners by name, whose caches pay from one budget.
typedef struct quire_registry quire_registry;
typedef struct quire_owner quire_owner;

/// `options` are those of each owner's cache: hot_bytes is the budget over all of them. A store and
/// codec_fallback are refused.
/// Errors: as quire_cache_create
quire_code quire_registry_create(const quire_cache_options* options, quire_registry** registry,
                                 quire_error* error);
/// It ends with its last owner's handle.
void quire_registry_free(quire_registry* registry);

/// The name of an owner, and the options it is made with.
typedef struct quire_owner_options {
  size_t size;                        // sizeof(quire_owner_options)
  const char* adapter;                // of a training run, which is never evicted; NULL: inference
  uint64_t id;                        // of inference, below 2^63; of training: the run
  uint64_t version;                   // of the adapter of a training run
  const quire_identity* identity;     // of an inference owner; NULL: no weights are named
  uint64_t tokens_max;                // longest; 0: the registry's
  const uint32_t* checkpoint_layers;  // [checkpoint_count], ascending: recomputed, never cached
  uint64_t checkpoint_count;
  quire_codec codec;  // of K and V; 0: the registry's
  int32_t reserved0;
} quire_owner_options;

/// The owner's cache, made if there is none. An inference owner starts with the cached blocks of
/// the prompt (NULL: none); a training run starts empty and never publishes.
/// Errors: QUIRE_INVALID_ARGUMENT it exists with other options, or these name layers that do not
///         exist; QUIRE_NO_SPACE all that may be evicted is
/// Lifetime: the handle may outlive the owner, which is then QUIRE_NOT_FOUND
quire_code quire_registry_owner(quire_registry* registry, const quire_owner_options* options,
                                const int32_t* prompt, size_t prompt_tokens, quire_owner** owner,
                                quire_error* error);
void quire_owner_free(quire_owner* owner);
/// Ends an owner, also a training run; its published blocks stay cached. *released: whether it
/// existed. Only the name in `options` is read.
quire_code quire_registry_release(quire_registry* registry, const quire_owner_options* options,
                                  int32_t* released, quire_error* error);
/// Brings the bytes in use down to `bytes`: first cached blocks that are not in use, then the least
/// recently used inference owners. Never a training run.
quire_code quire_registry_evict_to(quire_registry* registry, uint64_t bytes, uint64_t* bytes_used,
                                   quire_error* error);
/// Moves the budget, up to hot_bytes_max.
/// Errors: as quire_cache_resize
quire_code quire_registry_resize(quire_registry* registry, uint64_t hot_bytes, quire_error* error);
/// {"budget_bytes", "bytes_used", "owners": [{"owner", "kind", "tokens", "bytes", "last_access_us",
/// "evictable"}]}. Text: as quire_cache_stats_json
quire_code quire_registry_stats_json(const quire_registry* registry, char* text, size_t text_bytes,
                                     size_t* length, quire_error* error);

/// Committed tokens; 0 after the owner's end, and for NULL.
uint64_t quire_owner_length(const quire_owner* owner);
/// As quire_sequence_append, _commit and _gather; different threads may append to different layers
/// at once. Layers are the model's; a checkpoint layer is QUIRE_INVALID_ARGUMENT.
/// Errors: QUIRE_NOT_FOUND it was evicted or released
quire_code quire_owner_append(quire_owner* owner, uint32_t layer, const quire_rows* key,
                              const quire_rows* value, uint32_t tokens, quire_error* error);
quire_code quire_owner_commit(quire_owner* owner, const int32_t* tokens, size_t token_count,
                              quire_error* error);
quire_code quire_owner_gather(const quire_owner* owner, uint32_t layer, quire_role role,
                              uint64_t begin, uint64_t end, float* out, size_t out_values,
                              quire_error* error);
/// As quire_view_open. The blocks stay until the view is freed, also after the owner's end.
quire_code quire_owner_view_open(const quire_owner* owner, uint32_t layer, quire_role role,
                                 quire_view** view, quire_error* error);
/// As quire_attend, of one owner: the `sequence` of each task is NULL.
/// Errors:  QUIRE_NOT_FOUND it was evicted or released
/// Threads: appends to this layer wait meanwhile
quire_code quire_owner_attend(quire_attention* attention, const quire_owner* owner,
                              const quire_attend_request* request, quire_error* error);
/// Back to zero tokens; slots that only it held are free again.
quire_code quire_owner_clear(quire_owner* owner, quire_error* error);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}  // extern "C"
#endif
// NOLINTEND(readability-identifier-naming)

#endif  // QUIRE_QUIRE_H_
