// Keeping other programs off the processors while a slice runs, as far as the system lets us.
//
// Where the process may raise its priority (as root, or with CAP_SYS_NICE), threads run slices at
// real-time priority, so nothing preempts them, and on a machine of few processors the other
// processors are kept idle meanwhile: on a virtual machine two of them are often halves of one
// core. Between slices all programs run. Where the process may not, the many slices find quiet
// moments by chance.
#ifndef QUIRE_BENCH_QUIET_H_
#define QUIRE_BENCH_QUIET_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "quire/env.h"

namespace quire::bench {

/// A pool whose threads, the calling one too, stay each on a processor of its own as long as there
/// are enough: else a busy machine puts two of them on one.
std::unique_ptr<Executor> MakePinnedPool(uint32_t threads);

/// The calling thread above what else the machine runs, if the system allows; 0: as usual.
void SetPriority(int priority);
/// The calling thread on one of the processors that the process may use.
void StayOnProcessor(uint32_t index);

/// Holds while it lives; made on the thread that runs `executor`, once all its workers are awake.
class QuietMoment {
 public:
  explicit QuietMoment(Executor& executor);
  QuietMoment(const QuietMoment&) = delete;
  QuietMoment& operator=(const QuietMoment&) = delete;
  ~QuietMoment();
};

}  // namespace quire::bench

#endif  // QUIRE_BENCH_QUIET_H_
