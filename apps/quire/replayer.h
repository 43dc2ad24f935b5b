// What a cache would have hit of a recorded trace: replayed under a policy or with perfect
// foresight, and drawn as a curve.
#ifndef QUIRE_APPS_REPLAYER_H_
#define QUIRE_APPS_REPLAYER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/quire/replay_store.h"
#include "apps/quire/trace.h"
#include "evict/leaf_order.h"
#include "evict/policies.h"
#include "evict/policy.h"
#include "quire/identity.h"

namespace quire::app {

/// The offline bound: what a cache could hit that knew every request to come.
///
/// What is used again latest goes first, and what would be used later than all that is here does
/// not come in. A parent is used whenever its child is, so leaves come first by themselves.
///
/// Source: Belady, IBM Systems Journal 5(2), 1966; with bypass, as the caller may leave a block out
class BeladyPolicy final : public evict::Policy {
 public:
  using Policy::Add;

  /// `next_uses` has, for every block of every request in order, the number of the next request
  /// that uses it (UINT64_MAX: none), and must outlive this.
  explicit BeladyPolicy(const std::vector<uint64_t>& next_uses) : next_uses_(next_uses) {}

  std::string_view name() const override { return "belady"; }
  std::unique_ptr<evict::Policy> MakeSibling() const override {
    return std::make_unique<BeladyPolicy>(next_uses_);
  }
  uint64_t bytes_per_block() const override { return evict::LeafOrder::kBytesEach; }
  void Add(BlockId block) override { Add(block, {}); }
  void Add(BlockId block, const evict::BlockFacts& facts) override;
  void Remove(BlockId block) override { order_.Remove(block); }
  std::optional<BlockId> Victim() const override { return order_.First(); }
  uint64_t size() const override { return order_.size(); }

  /// The next request, with so many blocks, begins: what it adds is placed by its next uses.
  void Start(uint64_t blocks);
  /// Of the request at hand: whether its block at this depth deserves the victim's place.
  bool Admits(uint32_t depth) const;

 private:
  uint64_t RankOf(uint32_t depth) const { return UINT64_MAX - next_uses_[first_ + depth]; }

  const std::vector<uint64_t>& next_uses_;
  evict::LeafOrder order_{1};
  uint64_t first_ = 0;  // of the request at hand, in next_uses_
  uint64_t next_ = 0;   // of the one after it
  uint64_t added_ = 0;
};

/// A trace as the index wants it: every block with the tokens that its id gives.
class ReplayInput {
 public:
  explicit ReplayInput(const Trace& trace);
  /// With keys of the caller's choice, by id.
  ReplayInput(const Trace& trace, const std::function<uint64_t(uint64_t)>& key_of);

  struct Request {
    uint64_t first_block = 0;  // in blocks()
    uint32_t blocks = 0;
    uint64_t time_ms = 0;  // never goes back
    uint64_t prompt_tokens = 0;
    uint64_t output_tokens = 0;
  };

  const std::vector<Request>& requests() const { return requests_; }
  /// Of all requests, one after the other: numbers from 0 without gaps, equal ids, equal numbers.
  const std::vector<uint32_t>& blocks() const { return blocks_; }
  uint64_t unique_blocks() const { return keys_.size(); }
  /// For every entry of blocks(): the next request with the same block. UINT64_MAX: none.
  std::vector<uint64_t> NextUses() const;

  /// Appends the prompt's tokens, and the names of its blocks for a policy.
  void AppendPrompt(const Request& request, std::vector<TokenId>& tokens,
                    std::vector<uint64_t>& keys) const;

 private:
  std::vector<Request> requests_;
  std::vector<uint32_t> blocks_;
  std::vector<TokenId> tokens_;  // [unique blocks, bench::kTraceBlockTokens]
  std::vector<uint64_t> keys_;   // by block number
};

struct ReplayResult {
  uint64_t requests = 0;
  uint64_t blocks = 0;
  uint64_t hit_blocks = 0;         // in memory, in the store below and in the remote
  uint64_t store_hit_blocks = 0;   // of these, in the store
  uint64_t remote_hit_blocks = 0;  // of these, in the remote
  uint64_t store_written_blocks = 0;
  uint64_t store_recycled_blocks = 0;
  uint64_t remote_written_blocks = 0;
  uint64_t approximate_hit_blocks = 0;  // of all hits, in a lower precision of a ladder
  uint64_t evicted_twins = 0;           // that were left in it alone
  uint64_t evicted_blocks = 0;
  uint64_t hints = 0;          // that were given
  uint64_t hints_clipped = 0;  // of these, kept in part or not at all
  uint64_t digest = 0;         // of which blocks were evicted, in order: equal runs, equal digests
  double seconds = 0;          // of the thread, in index, ledger and policy
  double hit_ratio() const;
  double blocks_per_second() const;
};

/// What happened, to be compared with a live cache.
struct ReplayLog {
  std::vector<uint32_t> hits;     // blocks, by request
  std::vector<uint64_t> victims;  // keys, in the order they went
};

/// A precision ladder: bytes of a block in the lower precision of memory, and of the store, each as
/// a share of its bytes in the first one.
struct ReplayLadder {
  double memory = 1;
  double store = 1;
};

struct ReplayOptions {
  /// Told the requests done.
  std::function<void(uint64_t)> progress = [](uint64_t) {};
  /// Filled, if not null.
  ReplayLog* log = nullptr;
  /// What the policy may remember; none: as in a cache of so many slots of 256 KiB or more.
  std::optional<uint64_t> history_bytes = {};
  /// A store below memory, and how many blocks it recycles at once; 0: none. All blocks of a prompt
  /// are written at once, and what the store has behind a path's end in memory is a hit, too. With
  /// a precision ladder: in the bytes of so many blocks of its first codec.
  uint64_t store_blocks = 0;
  uint64_t segment_blocks = 64;
  /// A remote behind the store, which keeps everything; none: there is none. Machines share it,
  /// each with memory and a store of its own; requests go to them in turn.
  std::optional<ReplayRemoteWrites> remote_writes = {};
  uint32_t machines = 1;
  /// Each request that another one goes on from soon enough says so when it ends, as an agent that
  /// waits for a tool may, and is kept until then: of all that is kept so, this share of the
  /// capacity at most. 0: none says anything.
  double hint_share = 0;
  uint64_t hint_ms_most = 300'000;
  /// With it all requests accept approximate blocks. As in a cache, what one inserts after such
  /// blocks is in the lower precision, and so is what comes from a store.
  std::optional<ReplayLadder> ladder = {};
};

/// Replays all requests within `capacity_blocks`. A hit is a block of the leading run that is
/// there; all blocks of a prompt are inserted as far as they fit, and its first block ends as the
/// most recent.
///
/// Policies hear what a live cache tells them, in its order: time, what is leased again, what is
/// evicted for the rest, and when the request ends its facts and its blocks. So hits and victims
/// are those of a cache of one more block, in which the part of the prompt lies that fills no
/// block. It differs where traces say too little: a live cache keeps whole blocks of the output,
/// publishes no partial last block, and computes the last token of a prompt, so that one of whole
/// blocks leaves the last one to be computed.
///
/// Shape: policy is a name of ReplayPolicies(); that of the bound knows one machine alone
ReplayResult Replay(const ReplayInput& input, uint64_t capacity_blocks, const std::string& policy,
                    const ReplayOptions& options = {});

struct CurvePoint {
  uint64_t capacity_blocks = 0;
  double hit_ratio = 0;
};

/// What recency would hit at these capacities, from one pass over a sample of the blocks.
std::vector<CurvePoint> EstimateCurve(const ReplayInput& input,
                                      const std::vector<uint64_t>& capacities);

/// The policies of the library, and `belady`.
std::vector<std::string> ReplayPolicies();

/// A hit ratio curve as a picture.
///
/// An SVG document: capacities to the right, in powers of two, hit ratios up, 0 to 1.
///
/// Shape: curve [points], ascending capacities of at least 1
std::string CurveSvg(const std::vector<CurvePoint>& curve);

}  // namespace quire::app

#endif  // QUIRE_APPS_REPLAYER_H_
