// One rank's part of a pipeline: its layers, its cache, and what rank 0 tells it to do.
#ifndef QUIRE_RANKS_PIPELINE_STAGE_H_
#define QUIRE_RANKS_PIPELINE_STAGE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "quire/attention.h"
#include "quire/cache.h"
#include "quire/env.h"
#include "quire/identity.h"
#include "ranks/pipeline/message.h"
#include "ranks/pipeline/ring.h"
#include "ranks/tenant_change.h"

namespace quire::ranks::pipeline {

/// How a rank was started. All ranks must have been started alike.
struct StageSetup {
  uint32_t rank = 0;
  uint32_t ranks = 1;
  bool loads = true;       // what the rank's own store has is loaded, not computed
  std::string settings{};  // the options that shape values, as text
  // What was published is durable when it returns. May be empty.
  std::function<void()> flush{};
};

/// The state of a rank after a message: a function of the messages so far, and of the lengths that
/// its own sequences have after them. Equal on all ranks, or one of them has gone wrong.
Digest StateAfter(const Digest& state, const Message& message, std::span<const uint64_t> lengths);

/// What a cache has of a prompt, and its store too where `loads` says so. Only the first
/// `tokens_max` tokens are looked at; the plan is one of the whole prompt.
///
/// Errors: as Cache::Acquire
Result<Plan> FindPrefix(Cache& cache, const AcquireRequest& request, uint64_t tokens_max,
                        bool loads);

/// The rank's own part of all ranks' identity, once all fingerprints are known.
void NameValues(std::span<const Digest> fingerprints, const model::Model& model,
                Identity& identity);

/// A rank besides rank 0.
///
/// Threads:  one
/// Lifetime: what it is made with must outlive it
class Stage {
 public:
  struct Components {
    model::Model& model;
    Cache& cache;
    AttentionBackend& attention;
    Executor& executor;
  };

  /// `identity`: without weights, which are known when all ranks have joined.
  Stage(const Components& components, const StageSetup& setup, const Identity& identity)
      : components_(components), setup_(setup), identity_(identity), tenants_(components.cache) {}

  /// Does what messages say until rank 0 stops.
  ///
  /// Errors: what made this rank or another one end; the message names the rank. All others are
  ///         told before
  Result<void> Serve(Ring& ring);
  /// Does what one message says, and adds what rank 0 must hear.
  ///
  /// Errors: it cannot go on: the message is not for a rank in its state, or it failed at what
  ///         other ranks have done
  Result<void> Take(Message& message);

 private:
  Result<void> Join(Message& message);
  Result<void> Acquire(Message& message);
  Result<void> Open(Message& message);
  Result<void> Reserve(Message& message);
  Result<void> Step(Message& message);
  Result<void> ChangeTenant(Message& message);
  void Refuse(const Error& error, Message& message) const;

  const Components components_;
  const StageSetup setup_;
  Identity identity_;
  FollowedTenants tenants_;
  Digest state_{};
  uint64_t number_ = 0;                                      // of the last message
  std::optional<Plan> found_;                                // by the last kAcquire
  std::map<uint64_t, std::unique_ptr<Sequence>> sequences_;  // by rank 0's number
};

}  // namespace quire::ranks::pipeline

#endif  // QUIRE_RANKS_PIPELINE_STAGE_H_
