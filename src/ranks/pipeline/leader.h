// Rank 0 of a pipeline: it computes its own layers, tells the other ranks what to do, and has the
// logits that come back.
//
//   Leader leader({model, attention, executor}, setup, ring);
//   leader.Join(identity);                     // all ranks, with the same options
//   PipelineCache cache(own_cache, leader);    // opens sequences on all ranks
//   engine on {.model, .cache = cache, .flow = &leader}
//   leader.Stop();                             // all ranks have flushed their stores then
#ifndef QUIRE_RANKS_PIPELINE_LEADER_H_
#define QUIRE_RANKS_PIPELINE_LEADER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "model/model.h"
#include "model/step_flow.h"
#include "quire/attention.h"
#include "quire/env.h"
#include "quire/identity.h"
#include "ranks/pipeline/message.h"
#include "ranks/pipeline/ring.h"
#include "ranks/pipeline/stage.h"

namespace quire::ranks::pipeline {

/// Once a rank is lost or fails, every call returns an error that names it, and all other ranks
/// have been told.
///
/// Threads:  one
/// Lifetime: what it is made with must outlive it
class Leader final : public model::StepFlow {
 public:
  struct Components {
    model::Model& model;
    AttentionBackend& attention;
    Executor& executor;
  };

  Leader(const Components& components, const StageSetup& setup, Ring& ring)
      : components_(components), setup_(setup), ring_(ring) {}
  /// Stops the others, if they were not stopped.
  ~Leader() override;
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  /// Waits until all ranks are there, and completes the identity.
  ///
  /// Errors: kInvalidArgument a rank was started with other options; kIo a rank is lost
  Result<void> Join(Identity& identity);
  /// Ends all other ranks when all steps and commands are done. Rank 0's own store is the caller's.
  /// Sequences that are left end here alone; every other call is refused from now on.
  Result<void> Stop();

  uint32_t stages() const override { return ring_.ranks(); }
  /// Sequences must be of the pipeline's cache (pipeline_cache.h).
  Result<void> Begin(std::span<const model::StepItem> items) override;
  Result<void> Finish() override;

  /// Tells all ranks, and waits for what they add. Steps that end meanwhile are kept for Finish.
  /// `length`: of the sequence that the message is about, where it is about one.
  Result<Message> Call(Message message);
  /// Tells all ranks, and does not wait.
  Result<void> Tell(Message message);
  /// The same; `answered` is called with what they add, in a later call of this object. Returns the
  /// number of the message.
  Result<uint64_t> Ask(Message message, std::function<void(const Message&)> answered);
  /// Waits until what was asked is answered.
  Result<void> Await(uint64_t number);
  /// Nothing is called for it any more.
  void Forget(uint64_t number) { asked_.erase(number); }
  const StageSetup& setup() const { return setup_; }

 private:
  struct Sent {
    Command command;
    uint64_t number;
  };
  // Where the logits of a step go.
  struct Output {
    float* logits;
    uint64_t rows;
  };

  Result<void> Send(Message& message, std::span<const uint64_t> lengths);
  Result<Message> AwaitNext();
  void Keep(Message back);
  std::unexpected<Error> Break(ErrorCode code, std::string_view why);

  const Components components_;
  const StageSetup setup_;
  Ring& ring_;
  uint64_t number_ = 0;  // of the last message
  Digest state_{};
  std::deque<Sent> sent_;                    // that have not come back, oldest first
  std::deque<std::vector<Output>> outputs_;  // of steps that were not finished
  std::deque<Message> ended_;                // steps that came back, oldest first
  std::map<uint64_t, std::function<void(const Message&)>> asked_;  // by number: not answered yet
  bool stopped_ = false;
};

}  // namespace quire::ranks::pipeline

#endif  // QUIRE_RANKS_PIPELINE_LEADER_H_
