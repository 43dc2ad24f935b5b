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

/// How much goes when room is needed.
enum class EvictionBatch : uint8_t {
  kExact = 1,  // what is needed
  // That, and the more of the latest requests had to evict, the closer to another one's need in
  // advance: at most an eighth of the cache, and nothing that a floor keeps for others.
  kAdaptive = 2,
};

/// A hard budget that several caches pay from, besides each its own: whatever they do, no more than
/// this is charged in all. A cache has at most what the others left of it.
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
  /// What is charged now, never more than bytes().
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
  // Pays for this cache too, besides hot_bytes. A refusal may come after an eviction then:
  // another cache took what that gave. Null: hot_bytes alone.
  SharedBudget* shared_budget = nullptr;
  uint64_t tokens_max = 1 << 20;  // longest sequence
  bool huge_pages = false;        // transparent huge pages for the arena; block-major host memory
  // Where the arenas lie, and what reads and changes their bytes (quire/block_ops.h). Null: host
  // memory that the cache makes, and the host's operations. Memory that the host cannot reach needs
  // operations of its own. Must outlive the cache.
  DeviceMemory* memory = nullptr;
  BlockOps* ops = nullptr;
  const Clock* clock = nullptr;  // dates evictions; null: the machine's. Must outlive the cache
  /// Which whole block goes first when room is needed: lru, priority, token_limit, quire
  /// (docs/policies.md).
  std::string policy = "lru";
  EvictionBatch eviction_batch = EvictionBatch::kExact;
  // What will read the cache. A codec that it, the layout or a stream does not take then gives way
  // to one that they do (fp8 to int8 to f16), with a warning and a count in the statistics. Null:
  // it is refused. Used by Create alone; what came of it is in options().profile.
  const AttentionBackend* fallback_kernels = nullptr;
  // Where published blocks are kept below memory (quire/disk_store.h); tenants with a ttl are kept
  // in memory alone. Null: nowhere. Must outlive the cache.
  DiskStore* store = nullptr;
};

/// A party that pays for its blocks and reads no one else's; or, with `shared`, a domain.
struct TenantOptions {
  std::string name{};        // not empty, unique in the cache; part of the identity of its blocks
  uint64_t quota_bytes = 0;  // most it may hold; 0: as much as the budget
  uint64_t floor_bytes = 0;  // the needs of others never evict it below this
  // The domain it shares with other tenants that name it: its published blocks belong to that
  // domain and are charged to it. Empty: private.
  std::string domain{};
  bool shared = false;  // this is a domain for tenants to name, and asks for nothing itself
  // What was not used for so long goes at its next lookup; 0: never. Its blocks are not written to
  // a store, which does not know of ttls.
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
};

/// What the cache has of a prompt. Holds the resident part pinned until opened or destroyed.
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
  /// Bytes that this reads.
  uint64_t loadable_bytes() const;
  /// Of the first missing token.
  MissReason reason() const;
  /// All missing tokens in order, those with one reason together.
  std::span<const MissRun> missing() const;
  /// Where in the prompt the first token stands that differs from what is cached behind the tokens
  /// that are alike: often a date, an id or a blank that a template puts there. Nothing: nothing
  /// that is cached goes on from there, as far as memory knows.
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
  kNoEvict = 3,  // as kReject, but takes free room only, then and later
  kFewer = 4,  // Open reserves as much of reserve_tokens as there is room for, at least the prompt;
               // that is then the most the sequence may hold (SequenceStats::tokens_max)
};

struct SequenceOptions {
  uint64_t reserve_tokens = 0;  // prompt and expected output; 0: the prompt
  // Most tokens appended between two commits: what windowed layers need room for besides their
  // window. More is possible, as far as there is room then.
  uint64_t step_tokens = 512;
  OnFull on_full = OnFull::kReject;
  bool publish = true;  // false: its blocks are never shared
  // Its blocks are consecutive slots, so that views of it are one array. It shares no prefix and
  // publishes nothing; it grows in place or not at all, and takes free slots only: what is cached
  // is not evicted for it (see Evict). Needs a placement with runs, and layers without windows.
  bool contiguous = false;
  // For contexts that do not fit into the budget. At least so many of the last tokens stay in
  // memory; blocks before them are written to the store, leave memory once they are durable there,
  // and are read back piece by piece while layers attend (Sequence::streamed). The results are the
  // same, bit for bit. What it computes is found in the store, not in memory. Open takes room for
  // these tokens, a step, the pieces on their way and lane states, and no more later. 0: all of it
  // stays in memory.
  uint64_t resident_tokens = 0;
  // With resident_tokens: heads that query a layer, for lane states of step_tokens rows.
  uint32_t query_heads = 0;
};

/// What Erase did at once. The rest goes as its last holders end: TenantStats::erase_pending_slots.
struct EraseReport {
  uint64_t blocks = 0;         // published blocks that will never be found again
  uint64_t slots_zeroed = 0;   // free, or freed by this call
  uint64_t slots_pending = 0;  // still held by sequences, plans or views; zeroed when these end
};

/// Which published blocks are asked for.
struct EntriesRequest {
  TenantId tenant = TenantId::None();  // those that its lookups may find; none: everybody's
  uint64_t entries_max = UINT64_MAX;
};

/// What one re-check of every published block found.
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
  /// Numbers of one tenant or domain. They depend on how much others hold (they may evict), never
  /// on what it is.
  ///
  /// Errors: kNotFound
  virtual Result<TenantStats> tenant_stats(TenantId tenant) const = 0;
  /// Forgets all that a tenant published and wrote: nothing older than this call is ever found
  /// again, in a shared domain with whatever others published behind it; slots are zeroed, those
  /// that are still held as their last holder ends. Its open sequences go on and publish nothing.
  /// What a store has of it is never found again either, after a restart too; it returns when that
  /// is durable.
  ///
  /// Errors: kNotFound; kIo all is erased, but a restart may bring back what the store has: erase
  ///         again
  /// Cost:   O(published blocks), a few under the cache lock at a time, then one slot at a time
  virtual Result<EraseReport> Erase(TenantId tenant) = 0;
  /// Takes a tenant or domain out: erases what it published, and gives its quota and floor back.
  /// Its name may be given to another one, whose blocks have other keys; its id is not used again.
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
  /// and end together, at the latest of their times. What a tenant's pins keep never exceeds its
  /// quota, nor what the floors of others leave of the budget; a shared domain's are counted there.
  /// Returns the blocks of the path.
  ///
  /// Errors: kInvalidArgument and kNotFound as Acquire, or there is no whole block; kNotFound not
  ///         all of it is in the cache, or no twins at its end where residual_tokens reads them;
  ///         kNoSpace it would be too much. Nothing changes then
  virtual Result<uint64_t> Pin(const AcquireRequest& request, uint64_t ttl_us) = 0;
  /// Takes one pin back. The blocks stay as long as there is room.
  ///
  /// Errors: as Pin; kNotFound this tenant has no pin that ends with these blocks
  virtual Result<void> Unpin(const AcquireRequest& request) = 0;

  /// Begins to read what the store has of a plan into free slots, which are taken at once; what is
  /// resident stays pinned meanwhile. What comes is compared with its whole identity and its
  /// checksums first; where something does not come, what follows it is left to be computed.
  /// A plan with nothing to load is done at once.
  ///
  /// Errors: kNoSpace as Open, for the slots; kUnsupported LoadOrder::kFromEnd where layers have a
  ///         window, or with residual_tokens: what a query sees there is not all of the prompt, so
  ///         there is no front to compute. The plan's pins are dropped then
  virtual Result<Ticket> Load(Plan plan, const LoadOptions& options) = 0;

  /// For a request that is expected: begins to read what the store has of its prompt and memory
  /// lacks, and holds nothing of it once it has come. It is cached then, as if it were computed;
  /// it is no lookup in the statistics. Returns the tokens on their way; 0: nothing is to be read.
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

  /// Evicts what is not needed of up to `blocks` blocks, least recently used first: whole unleased
  /// blocks, before each its twins, which count as one more, and of leased ones what windows have
  /// passed, or twins. Returns how many there were.
  virtual uint64_t Evict(uint64_t blocks) = 0;
  /// Returns free slots' pages to the system, and the end of the arena where a shrink had to leave
  /// blocks that were looked up meanwhile. Returns the bytes of the pages.
  virtual uint64_t Trim() = 0;
  /// Changes the budget, and with it how many slots there are, while sequences live.
  ///
  /// Up: the memory of the new slots is committed. Down: what is over the new budget is evicted, in
  /// the usual order and not below floors; published blocks that are in no use, pinned ones too,
  /// move from the slots that go to free ones, so they are still found; the memory of the slots
  /// that go is given back. What sequences, plans and views hold never moves. All layouts and
  /// placements can do it.
  ///
  /// Units:   bytes, as CacheOptions::hot_bytes
  /// Errors:  kTooLarge above hot_bytes_max; kNoSpace the system refuses to commit memory, or it
  ///          holds no block, or less than all floors, which are named; kBusy slots that would go
  ///          are held, or more bytes than would be left: names the default tenant's sequences,
  ///          counts those of others, plans and views, and says how low it can go now; or, up,
  ///          blocks that were looked up during a shrink are still held beyond the arena's end
  /// Effects: the *_peak counters begin anew; on error nothing changes, though blocks may have gone
  /// Threads: any; calls take turns. No bytes move under the cache lock; what is looked up before
  ///          its turn has come stays where it is
  virtual Result<void> Resize(uint64_t hot_bytes) = 0;
  /// Recomputes the checksum of every published block. A damaged one is quarantined: never found
  /// again, dropped as soon as nothing holds it or continues it. Holds the cache lock for one block
  /// at a time.
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

  /// Moves what memory has of the whole blocks of request.tokens to the store now, without waiting
  /// until room is needed: what the store lacks of them is written, and once that is durable the
  /// blocks leave memory, from the last one on, up to one that is in use, pinned or continued by
  /// another prompt. Returns how many left.
  ///
  /// Errors: as Acquire; kUnsupported there is no store; kNoSpace and kIo none left, for the store
  ///         took nothing: the disk is full, or failed
  virtual Result<uint64_t> Demote(const AcquireRequest& request) = 0;
  /// Gives a tenant or domain another quota (0: as much as the budget) and floor, while sequences
  /// live. Down: what it has cached beyond the new quota goes, the least recently used first.
  ///
  /// Units:  bytes, as in TenantOptions
  /// Errors: kNotFound; kInvalidArgument the floor is above the quota; kNoSpace the floors do not
  ///         fit the budget; kBusy its sequences, plans, views and pins hold more than the quota.
  ///         The limits stay as they were then
  virtual Result<void> SetLimits(TenantId tenant, uint64_t quota_bytes, uint64_t floor_bytes) = 0;
};

}  // namespace quire

#endif  // QUIRE_CACHE_H_
