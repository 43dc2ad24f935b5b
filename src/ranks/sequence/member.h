// One rank of a sequence-parallel group: its sequences, and what all ranks do together.
#ifndef QUIRE_RANKS_SEQUENCE_MEMBER_H_
#define QUIRE_RANKS_SEQUENCE_MEMBER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/wiped_vector.h"
#include "model/model.h"
#include "quire/env.h"
#include "ranks/group.h"
#include "ranks/sequence/command.h"
#include "ranks/sequence/rank_attention.h"
#include "ranks/sequence/share_cache.h"
#include "ranks/sequence/shared_rows.h"
#include "ranks/tenant_change.h"

namespace quire::ranks::sequence {

/// Every method that takes a command is called on every rank with the same one, and has the same
/// result on every rank: where one rank refuses, all do, and none has changed anything. A result
/// that differs without such a refusal, or a failure in the middle, ends the group.
///
/// Threads:  one at a time
/// Lifetime: the components must outlive it
class Member {
 public:
  struct Components {
    Group& group;
    ShareCache& cache;
    model::Model& model;
    AttentionBackend& attention;
    Executor& executor;
  };

  explicit Member(const Components& components)
      : components_(components),
        attention_(components.attention, components.group, components.cache.share()) {}

  Group& group() { return components_.group; }
  ShareCache& cache() { return components_.cache; }

  /// Before the first command: whether all ranks are the same program with the same model and
  /// options. `deadline_us`: for ranks that are still loading.
  ///
  /// Errors: kInvalidArgument names the ranks that differ from rank 0
  Result<void> Join(const Digest& description, uint64_t deadline_us);

  struct Acquired {
    Plan plan;            // of this rank's share
    uint64_t tokens = 0;  // that every rank has
  };
  /// `tenant`: command.tenant in this rank's cache.
  Result<Acquired> Acquire(const Command& command, const Result<TenantId>& tenant);
  /// The sequence is then number command.sequence.
  Result<void> Open(const Command& command, Plan plan);
  Result<void> Reserve(const Command& command);
  /// `logits`: for each item as model::StepItem says, or null where none are wanted.
  Result<void> Step(const Command& command, std::span<float* const> logits);
  Result<void> Rollback(const Command& command);
  Result<void> Fork(const Command& command);
  /// Whether all ranks could do what each did by itself: else the error of the first that could
  /// not.
  Result<void> AgreeOn(const Result<void>& done);
  /// Returns when all ranks have called it.
  Result<void> Beat() { return components_.group.Barrier(); }
  void Reset(const Command& command) { At(command.sequence).Reset(); }
  void End(const Command& command) { sequences_.erase(command.sequence); }

  /// Needs such a sequence.
  ShareSequence& At(uint64_t sequence) const { return *sequences_.at(sequence); }

 private:
  struct Opinion {
    uint64_t value = 0;
    Digest digest{};
  };
  /// Whether all ranks could do it: else the error of the first that could not, on every rank.
  /// Returns what each of them says.
  Result<std::vector<Opinion>> Agree(const Result<void>& done, const Opinion& opinion);
  Result<void> MakeOperators();
  /// Ends the group where the digests differ.
  Result<void> CheckSame(std::span<const Opinion> opinions, std::string_view what);

  const Components components_;
  RankAttention attention_;
  std::unique_ptr<SharedRows> operators_{};  // null: there was no step yet
  std::map<uint64_t, std::unique_ptr<ShareSequence>> sequences_;
  uint64_t steps_ = 0;
  WipedVector<TokenId> prompt_;  // of the last Acquire
  uint64_t prompt_found_ = 0;    // of it
};

/// Does what rank 0 says until it stops. `vocab`: of the model.
///
/// Errors: of the group; kCorrupt
Result<void> Follow(Member& member, uint64_t vocab);

}  // namespace quire::ranks::sequence

#endif  // QUIRE_RANKS_SEQUENCE_MEMBER_H_
