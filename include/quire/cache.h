// The cache: paged, shared by prefix, within a hard budget. Start reading here.
//
//   auto cache = Cache::Create({.geometry = ..., .profile = ..., .hot_bytes = 4'000'000'000});
//   auto plan = (*cache)->Acquire({.identity = &identity, .tokens = prompt});  // pins what it has
//   auto sequence = (*cache)->Open(std::move(*plan), {.reserve_tokens = prompt.size() + 128});
//   // compute tokens [sequence->length(), n): Append every layer, attend over Blocks(), Commit
#ifndef QUIRE_CACHE_H_
#define QUIRE_CACHE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/disk_store.h"
#include "quire/env.h"
#include "quire/error.h"
#include "quire/geometry.h"
#include "quire/identity.h"
#include "quire/sequence.h"
#include "quire/stats.h"

namespace quire::cache {
struct BudgetState;
struct PlanState;
}  // namespace quire::cache

namespace [[gnu::visibility("default")]] quire {

class AttentionBackend;
class BlockOps;
class ChangeFeed;

/// How many bytes are evicted when room is needed.
enum class EvictionBatch : uint8_t {
  kExact = 1,  // the bytes that are needed
  // Those, and the more of the latest requests had to evict, the closer to another request's need
  // in advance: at most an eighth of the cache, and nothing that a floor keeps for others.
  kAdaptive = 2,
};

/// A hard budget that several caches share, besides a budget of their own: all of them together
/// never charge more than this. A cache can use what the others have left.
///
/// Units:    bytes
/// Threads:  any; caches charge it without a lock
/// Lifetime: must outlive the caches
class SharedBudget {
 public:
  /// `bytes_max`: the most that Resize may raise it to; 0: bytes.
  explicit SharedBudget(uint64_t bytes, uint64_t bytes_max = 0);
  ~SharedBudget();
  SharedBudget(const SharedBudget&) = delete;
  SharedBudget& operator=(const SharedBudget&) = delete;

  uint64_t bytes() const;
  /// The bytes charged now, never more than bytes().
  uint64_t used_bytes() const;
  /// Evicts nothing: call Cache::Evict first where the budget gets smaller.
  ///
  /// Errors: kTooLarge above bytes_max; kBusy more is charged. Nothing changes then
  Result<void> Resize(uint64_t bytes);

 private:
  friend class cache::Core;
  const std::unique_ptr<cache::BudgetState> state_;
};

struct CacheOptions {
  Geometry geometry{};
  NumericProfile profile{};
  ArenaLayout layout = ArenaLayout::kBlockMajor;
  Placement placement =
      Placement::kFreeList;  // all but the free list can hold sequences in one run
  uint64_t hot_bytes = 0;    // hard budget: slots in use and their metadata
  // Most that Resize may raise hot_bytes to: addresses are reserved for so much, and nothing moves
  // when it grows. 0: hot_bytes.
  uint64_t hot_bytes_max = 0;
  // Pays for this cache too, besides hot_bytes. Then a request may be refused after an eviction:
  // another cache took the freed bytes. Null: hot_bytes alone.
  SharedBudget* shared_budget = nullptr;
  uint64_t tokens_max = 1 << 20;  // longest sequence
  bool huge_pages = false;        // transparent huge pages for the arena; block-major host memory
  // The memory of the arenas, and the operations that read and change their bytes
  // (quire/block_ops.h). Null: host memory that the cache makes, and the host's operations. Memory
  // that the host cannot reach needs operations of its own. Must outlive the cache.
  DeviceMemory* memory = nullptr;
  BlockOps* ops = nullptr;
  const Clock* clock = nullptr;  // dates evictions; null: the machine's. Must outlive the cache
  /// Which whole block goes first when room is needed: lru, priority, token_limit, quire
  /// (docs/policies.md).
  std::string policy = "lru";
  EvictionBatch eviction_batch = EvictionBatch::kExact;
  // The kernels that will read the cache. A codec that they, the layout or a stream do not support
  // is replaced by one that they do (fp8 by int8 by f16), with a warning and a count in the
  // statistics. Null: it is refused. Used by Create alone; options().profile has the result.
  const AttentionBackend* fallback_kernels = nullptr;
  // Where published blocks are kept below memory (quire/disk_store.h); tenants with a ttl are kept
  // in memory alone. Null: nowhere. Must outlive the cache.
  DiskStore* store = nullptr;
  // Keeps account of what changes, for Cache::changes and an EventPublisher (quire/events.h). Takes
  // about 100 bytes of the budget for each block.
  bool announce = false;
};

/// A tenant: it pays for its blocks and reads only its own; or, with `shared`, a domain.
struct TenantOptions {
  std::string name{};        // not empty, unique in the cache; part of the identity of its blocks
  uint64_t quota_bytes = 0;  // most it may hold; 0: as much as the budget
  uint64_t floor_bytes = 0;  // the needs of others never evict it below this
  // The domain it shares with other tenants that name it: its published blocks belong to that
  // domain and are charged to it. Empty: private.
  std::string domain{};
  bool shared = false;  // this is a domain for tenants to name; it makes no requests itself
  // Blocks that were not used for so long are evicted at the tenant's next lookup; 0: never. Its
  // blocks are not written to a store, which does not know of ttls.
  uint64_t ttl_us = 0;
  // The same two limits in the store, in whole segments of it; without a store they say nothing.
  // They hold for all caches on the store: the latest tenant of a name sets them.
  uint64_t store_quota_bytes = 0;  // 0: as much as the store
  uint64_t store_floor_bytes = 0;
};

/// The tenant of requests that name none: no quota, no floor, private.
[[gnu::visibility("hidden")]] inline constexpr TenantId kDefaultTenant = TenantId(0);

struct SequenceOptions;

struct AcquireRequest {
  TenantId tenant = kDefaultTenant;
  const Identity* identity = nullptr;
  std::span<const TokenId> tokens{};  // the whole prompt
  bool reuse = true;                  // false: plan a sequence that shares nothing
  // For a caller that waits while there is no room: the options that Open will get. Where Open
  // would refuse them with kNoSpace, Acquire does so itself, before anything is leased or counted:
  // no lookup, hit, miss or refusal, no use of a block. Such a request may be tried again at will.
  // Pin and Unpin do not read it.
  const SequenceOptions* open_as = nullptr;
  // With a precision ladder (NumericProfile::residual_tokens): the largest error of blocks in the
  // lower precision that the request accepts, relative, of K and V each, as it was measured when
  // they were encoded. What a sequence computes after such blocks is published for lookups that
  // accept it, too. 0: it accepts none, and its results are exact. Pin does not read it.
  float approximate_error_max = 0.0f;
};

/// The blocks that the cache has of a prompt. They stay pinned until the plan is opened or
/// destroyed.
class Plan {
 public:
  Plan(Plan&&) noexcept;
  Plan& operator=(Plan&&) noexcept;
  ~Plan();

  /// Tokens found and pinned: a multiple of block_tokens, less than the prompt.
  uint64_t resident_tokens() const;
  /// Prompt tokens that must be computed; never 0.
  uint64_t missing_tokens() const;
  /// Of the missing tokens, those that Cache::Load can bring. The others come after them.
  uint64_t loadable_tokens() const;
  /// Of these, the tokens of which a remote has not said whether it has them: Load asks.
  uint64_t uncertain_tokens() const;
  /// Bytes that Load reads.
  uint64_t loadable_bytes() const;
  /// Of the tokens found, those in the lower precision of a ladder, and the largest error of
  /// theirs.
  uint64_t approximate_tokens() const;
  float approximate_error() const;
  /// The reason of the first missing token.
  MissReason reason() const;
  /// All missing tokens in order, in runs with one reason each.
  std::span<const MissRun> missing() const;
  /// The first token of the prompt that differs from the cached block behind the equal tokens:
  /// often a date, an id or a blank that a template puts there. Nothing: no cached block follows
  /// there, as far as memory knows.
  std::optional<uint64_t> differs_at() const;

 private:
  friend struct cache::PlanState;
  explicit Plan(std::unique_ptr<cache::PlanState> state);
  std::unique_ptr<cache::PlanState> state_;
};

/// What happens when the budget or the tenant's quota has no room for a sequence. All but kNoEvict
/// evict unleased blocks first.
enum class OnFull : uint8_t {
  kReject = 1,  // Open reserves all of reserve_tokens or refuses
  kHalt = 2,  // Open reserves the prompt; growing fails with kNoSpace and the sequence stays usable
  kNoEvict = 3,  // as kReject, but takes free slots only, now and later
  kFewer = 4,  // Open reserves as much of reserve_tokens as there is room for, at least the prompt;
               // that is then the most the sequence may hold (SequenceStats::tokens_max)
};

struct SequenceOptions {
  uint64_t reserve_tokens = 0;  // prompt and expected output; 0: the prompt
  // Most tokens appended between two commits: windowed layers need room for them besides their
  // window. More is possible if there is room then.
  uint64_t step_tokens = 512;
  OnFull on_full = OnFull::kReject;
  bool publish = true;  // false: its blocks are never shared
  // Its blocks are consecutive slots, so that views of it are one array. It shares no prefix and
  // publishes nothing; it grows in place or not at all, and takes free slots only: cached blocks
  // are not evicted for it (see Evict). Needs a placement with runs, and layers without windows.
  bool contiguous = false;
  // For contexts that do not fit into the budget. At least so many of the last tokens stay in
  // memory; blocks before them are written to the store, leave memory once they are durable there,
  // and are read back piece by piece while layers attend (Sequence::streamed). The results are the
  // same, bit for bit. Later lookups find its blocks in the store, not in memory. Open takes all
  // the room it needs: for these tokens, a step, the pieces being read and lane states. 0: the
  // whole context stays in memory.
  uint64_t resident_tokens = 0;
  // With resident_tokens: heads that query a layer, for lane states of step_tokens rows.
  uint32_t query_heads = 0;
};

/// A sequence that streams, while the tokens that stay in memory are being read from the store.
///
/// Threads:  one at a time
/// Lifetime: the cache must outlive it. Without Take its end gives back what it took
class Opening {
 public:
  virtual ~Opening() = default;
  /// Moves it and the store on, and waits at most so long; whether Take would return at once.
  virtual bool IsDone(uint64_t wait_us) = 0;
  /// Waits for the end, and gives the sequence, once.
  ///
  /// Errors: as Cache::Open
  virtual Result<std::unique_ptr<Sequence>> Take() = 0;
};

/// What Erase did at once. Slots that are still held are zeroed when their last holders end:
/// TenantStats::erase_pending_slots.
struct EraseReport {
  uint64_t blocks = 0;         // published blocks that will never be found again
  uint64_t slots_zeroed = 0;   // free, or freed by this call
  uint64_t slots_pending = 0;  // still held by sequences, plans or views; zeroed when these end
};

/// The published blocks that a caller asks for.
struct EntriesRequest {
  TenantId tenant = TenantId::None();  // the tenant whose lookups may find them; none: those of all
                                       // tenants
  uint64_t entries_max = UINT64_MAX;
};

/// The result of one check of every published block.
struct VerifyReport {
  uint64_t blocks = 0;
  uint64_t damaged = 0;
};

/// Threads:  any, unless a method says otherwise. One lock (rank 20) for index and policy, one
///           (rank 30) for the pool; neither is held while bytes are copied or hashed, but for one
///           block at a time by Verify and Resize
/// Lifetime: must outlive its sequences, leases and views
class Cache {
 public:
  /// Errors: kInvalidArgument names the field; kNoSpace if hot_bytes cannot hold one block;
  ///         kUnsupported codec or layout this build lacks, or layers of more than two different
  ///         windows (full attention counts as one)
  static Result<std::unique_ptr<Cache>> Create(CacheOptions options);
  virtual ~Cache() = default;

  /// As it was made; hot_bytes after a Resize is stats().hot_bytes_limit.
  virtual const CacheOptions& options() const = 0;
  /// Bytes of one block, all layers, as stored.
  virtual uint64_t block_bytes() const = 0;

  /// Makes a tenant or a domain; RemoveTenant takes it out again.
  ///
  /// Errors: kInvalidArgument the name is empty or taken, the floor is above the quota, a domain
  ///         names a domain; kNotFound no such domain; kNoSpace the floors do not fit the budget
  virtual Result<TenantId> AddTenant(const TenantOptions& options) = 0;
  /// Errors: kNotFound
  virtual Result<TenantId> FindTenant(std::string_view name) const = 0;
  /// Statistics of one tenant or domain. They depend on how many bytes others hold (which may evict
  /// its blocks), never on which.
  ///
  /// Errors: kNotFound
  virtual Result<TenantStats> tenant_stats(TenantId tenant) const = 0;
  /// Erases all blocks that a tenant published or wrote: none from before this call is ever found
  /// again, nor, in a shared domain, are later blocks of others that continue them. Slots are
  /// zeroed, held ones when their last holder ends. Its open sequences continue and publish
  /// nothing. Its records in a store are never found again either, also after a restart; Erase
  /// returns when that is durable.
  ///
  /// Errors: kNotFound; kIo all is erased, but a restart may bring back records of the store: erase
  ///         again
  /// Cost:   O(published blocks), a few under the cache lock at a time, then one slot at a time
  virtual Result<EraseReport> Erase(TenantId tenant) = 0;
  /// Removes a tenant or domain: erases what it published, and gives its quota and floor back. Its
  /// name may be given to another one, whose blocks have other keys; its id is not used again.
  ///
  /// Errors: kNotFound; kInvalidArgument the default tenant; kBusy a domain with members, or
  ///         sequences, plans or views still hold slots of it: it stays, erased
  virtual Result<void> RemoveTenant(TenantId tenant) = 0;

  /// Pins the longest cached prefix of a prompt. Never computes the last token from cache: at least
  /// one token is left.
  ///
  /// Errors:  kInvalidArgument no identity, no tokens, or more than tokens_max, or the tenant is a
  ///          domain; kNotFound no such tenant; with open_as, kNoSpace as Open has no room now
  /// Effects: counts as a use of the blocks found (LRU)
  /// Cost:    O(tokens / block_tokens) node visits
  virtual Result<Plan> Acquire(const AcquireRequest& request) = 0;

  /// Keeps the whole blocks of request.tokens, in use or not, for `ttl_us` (0: until Unpin): a
  /// lease that the cache itself holds on their path. Pins of one path by one tenant are counted
  /// and end together, at the latest of their times. The bytes that a tenant's pins keep never
  /// exceed its quota, nor the budget less the floors of others; for members of a shared domain the
  /// domain's pins are counted. Returns the number of blocks of the path.
  ///
  /// Errors: kInvalidArgument and kNotFound as Acquire, or there is no whole block; kNotFound not
  ///         all of it is in the cache, or no twins at its end where residual_tokens reads them;
  ///         kNoSpace it would be too much. Nothing changes then
  virtual Result<uint64_t> Pin(const AcquireRequest& request, uint64_t ttl_us) = 0;
  /// Takes one pin back. The blocks stay as long as there is room.
  ///
  /// Errors: as Pin; kNotFound this tenant has no pin that ends with these blocks
  virtual Result<void> Unpin(const AcquireRequest& request) = 0;

  /// Begins to read the plan's loadable blocks from the store into free slots, which are taken at
  /// once; resident blocks stay pinned meanwhile. Each record is compared with its whole identity
  /// and its checksums first; blocks after one that cannot be loaded must be computed. A plan with
  /// nothing to load is done at once. From the front, where all layers see all of a prompt, what
  /// another load reads already is waited for and not read again. By layer, what has no layers of
  /// its own to read (ladders, runs, arenas that are not block-major or not the host's, layers with
  /// a window, residual_tokens), and what another load reads too, comes as from the front.
  ///
  /// Errors: kNoSpace as Open, for the slots; kInvalidArgument slices; kUnsupported
  ///         LoadOrder::kFromEnd where layers have a window, or with residual_tokens: queries there
  ///         do not see all of the prompt, so its beginning cannot be computed meanwhile. The
  ///         plan's pins are dropped then
  virtual Result<Ticket> Load(Plan plan, const LoadOptions& options) = 0;

  /// For an expected request: begins to read the blocks of its prompt that the store has and memory
  /// lacks. Loaded blocks are cached as if they were computed, and not held; the statistics count
  /// no lookup. Returns the number of tokens being read; 0: there is nothing to read.
  ///
  /// Errors: as Acquire; kNoSpace as Load
  virtual Result<uint64_t> Prefetch(const AcquireRequest& request) = 0;

  /// Makes a sequence that starts with the plan's resident tokens and has room for the rest.
  /// Errors: kNoSpace names shared, own and available blocks, or the tenant whose quota is full;
  ///         kTooLarge it can never fit; kInvalidArgument past tokens_max, or contiguous with a
  ///         plan that shares blocks;
  ///         kUnsupported contiguous or resident_tokens where the cache cannot, and what to do. The
  ///         plan's pins are dropped then
  virtual Result<std::unique_ptr<Sequence>> Open(Plan plan, const SequenceOptions& options) = 0;
  /// As Open with resident_tokens, which waits until the tokens that stay in memory have come from
  /// the store, for a caller that has other work meanwhile. Where memory has blocks of the prompt
  /// that are still being written to the store, the plan's pins stay and no room is taken until
  /// they are there, for a second at most.
  ///
  /// Errors: as Open; kInvalidArgument resident_tokens is 0. What is known later, Take says
  virtual Result<std::unique_ptr<Opening>> BeginOpen(Plan plan, const SequenceOptions& options) = 0;

  /// Evicts up to `blocks` blocks, least recently used first: whole unleased blocks, before each
  /// its twins, which count as one more; and of leased blocks the slots outside windows, or twins.
  /// Returns how many were evicted.
  virtual uint64_t Evict(uint64_t blocks) = 0;
  /// Returns free slots' pages to the system, and the end of the arena if a shrink could not move
  /// blocks that were looked up meanwhile. Returns the bytes of the pages.
  virtual uint64_t Trim() = 0;
  /// Changes the budget, and with it how many slots there are, while sequences live.
  ///
  /// Up: the memory of the new slots is committed. Down: blocks over the new budget are evicted, in
  /// the usual order and not below floors; published blocks that are not in use, pinned ones too,
  /// move from the removed slots to free ones, so they are still found; the memory of the removed
  /// slots is given back. Slots that sequences, plans and views hold never move. All layouts and
  /// placements can do it.
  ///
  /// Units:   bytes, as CacheOptions::hot_bytes
  /// Errors:  kTooLarge above hot_bytes_max; kNoSpace the system refuses to commit memory, or it
  ///          holds no block, or less than all floors, which are named; kBusy slots that would go
  ///          are held, or more bytes than would be left: names the default tenant's sequences,
  ///          counts those of others, plans and views, and says how low it can go now; or, up,
  ///          blocks that were looked up during a shrink are still held beyond the arena's end
  /// Effects: the *_peak counters begin anew; on error nothing changes, but blocks may have been
  ///          evicted
  /// Threads: any; calls take turns. No bytes move under the cache lock; a block that is leased
  ///          before it is moved stays where it is
  virtual Result<void> Resize(uint64_t hot_bytes) = 0;
  /// Recomputes the checksum of every published block. A damaged one is quarantined: never found
  /// again, dropped as soon as it has no lease and no descendant. Holds the cache lock for one
  /// block at a time.
  virtual VerifyReport Verify() = 0;

  virtual CacheStats stats() const = 0;
  /// Published blocks that a lookup could find now, in no order: where each is, what holds it, and
  /// since when. Each entry is as it was when it was looked at; blocks that come or go during the
  /// call are there or not, so an entry's parent may be missing.
  ///
  /// Errors: kNotFound no such tenant
  /// Cost:   O(published blocks), 128 under the cache lock at a time
  virtual Result<std::vector<CacheEntry>> Entries(const EntriesRequest& request) = 0;
  /// One character per slot: '.' free, 'p' private, 's' published, 'S'
  /// published and leased, 'w' a window has passed it, so it may go although its block is leased.
  virtual std::string BlockMap() const = 0;
  /// How free slots lie, class by class. Cost: O(slots), under the pool's lock
  virtual std::vector<FreeRuns> FreeSlots() const = 0;

  /// Moves the whole blocks of request.tokens from memory to the store now, without waiting until
  /// room is needed: blocks that the store lacks are written, and once they are durable the blocks
  /// leave memory, from the last one on, up to one that is in use, pinned or continued by another
  /// prompt. Returns how many left.
  ///
  /// Errors: as Acquire; kUnsupported there is no store; kNoSpace and kIo none left, because the
  ///         store took nothing: the disk is full, or failed
  virtual Result<uint64_t> Demote(const AcquireRequest& request) = 0;
  /// Gives a tenant or domain another quota (0: as much as the budget) and floor, while sequences
  /// live. Down: its cached blocks beyond the new quota are evicted, the least recently used first.
  ///
  /// Units:  bytes, as in TenantOptions
  /// Errors: kNotFound; kInvalidArgument the floor is above the quota; kNoSpace the floors do not
  ///         fit the budget; kBusy its sequences, plans, views and pins hold more than the quota.
  ///         The limits stay as they were then
  virtual Result<void> SetLimits(TenantId tenant, uint64_t quota_bytes, uint64_t floor_bytes) = 0;
  /// The changes of the blocks that every caller may know of: those of the default tenant, without
  /// an adapter. Null without CacheOptions::announce.
  virtual ChangeFeed* changes() = 0;
};

}  // namespace quire

#endif  // QUIRE_CACHE_H_
