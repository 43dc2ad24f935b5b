// The cache of one rank, asked about whole texts.
#ifndef QUIRE_RANKS_SEQUENCE_SHARE_CACHE_H_
#define QUIRE_RANKS_SEQUENCE_SHARE_CACHE_H_

#include <cstdint>
#include <memory>
#include <span>

#include "quire/cache.h"
#include "ranks/sequence/lane_share.h"
#include "ranks/sequence/share_sequence.h"
#include "ranks/sequence/share_text.h"

namespace quire::ranks::sequence {

/// Threads:  as its cache
/// Lifetime: `cache` must outlive it; it has the geometry of shares (LaneShare::GeometryOf)
class ShareCache {
 public:
  struct Options {
    uint32_t vocab = 0;
    bool loads = true;  // what its store has
    // What has not come by then counts as missed: the other ranks wait for it. 0: no limit.
    uint64_t load_timeout_us = 0;
  };
  struct Request {
    TenantId tenant = kDefaultTenant;
    std::span<const TokenId> prompt{};
    bool reuse = true;
    const SequenceOptions* open_as = nullptr;  // as AcquireRequest, of the text
    uint64_t tokens_max = UINT64_MAX;          // of the prompt, that are reused at most
  };
  struct Found {
    Plan plan;
    /// The prefix of the prompt of which this rank has its share: whole blocks, less than the
    /// prompt. It may end in splits of other ranks.
    uint64_t tokens = 0;
    MissReason reason{};  // of what comes after
  };

  /// Errors: kUnsupported as Stamps::Create
  static Result<ShareCache> Create(Cache& cache, const Identity& identity, const LaneShare& share,
                                   const Options& options);

  const LaneShare& share() const { return share_; }
  Cache& cache() const { return *cache_; }

  /// As Cache::Acquire, and loads what the store has of the share.
  /// Errors: as Cache::Acquire; kInvalidArgument a token outside the vocabulary
  Result<Found> Acquire(const Request& request) const;
  /// As Cache::Open. The sequence begins with the first `tokens` of the prompt, of whose share the
  /// plan has all.
  /// Errors: as Cache::Open; kUnsupported options that a share cannot have
  Result<std::unique_ptr<ShareSequence>> Open(Plan plan, std::span<const TokenId> prompt,
                                              uint64_t tokens,
                                              const SequenceOptions& options) const;

 private:
  ShareCache(Cache& cache, const Identity& identity, const LaneShare& share, const Stamps& stamps,
             const Options& options)
      : cache_(&cache),
        identity_(&identity),
        share_(share),
        stamps_(stamps),
        loads_(options.loads),
        load_timeout_us_(options.load_timeout_us) {}
  SequenceOptions OfShare(SequenceOptions options) const;
  Result<Plan> Find(std::span<const TokenId> own, const Request& request) const;

  Cache* cache_;
  const Identity* identity_;
  LaneShare share_;
  Stamps stamps_;
  bool loads_;
  uint64_t load_timeout_us_;
};

}  // namespace quire::ranks::sequence

#endif  // QUIRE_RANKS_SEQUENCE_SHARE_CACHE_H_
