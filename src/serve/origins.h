// Where the tokens of a request came from: found, loaded, computed, or computed again.
#ifndef QUIRE_SERVE_ORIGINS_H_
#define QUIRE_SERVE_ORIGINS_H_

#include <cstdint>
#include <vector>

#include "serve/request.h"

namespace quire::serve {

/// Counts each prompt token once, by what brought it first, however often the request loses its
/// sequence. Positions are numbers of tokens that are there.
///
/// Threads: one
class Origins {
 public:
  /// It has a sequence of so many tokens. The first time these were found, and `missing` says why
  /// others were not; later what it has not had yet came without being computed for it.
  void Start(uint64_t position, std::vector<MissRun> missing, uint64_t loaded_tokens);
  /// What was loaded while it computed ends here.
  void Join(uint64_t position, std::vector<MissRun> missing);
  void Preempt() { ++preemptions_; }
  /// From now on nothing counts as found.
  void Generate() { generates_ = true; }
  /// A step over `tokens` tokens ended here. Returns how many were computed for the first time.
  uint64_t Advance(uint64_t tokens, uint64_t position);

  void Tell(Response& response) &&;

 private:
  uint64_t SkipTo(uint64_t position);

  bool started_ = false;
  bool generates_ = false;
  uint64_t furthest_ = 0;  // position that was reached, also before it was preempted
  uint64_t reused_tokens_ = 0;
  uint64_t loaded_tokens_ = 0;
  uint64_t computed_tokens_ = 0;    // of the prompt
  uint64_t recomputed_tokens_ = 0;  // of all
  uint32_t preemptions_ = 0;
  std::vector<MissRun> missing_;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_ORIGINS_H_
