#include "bench/instructions.h"

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#define QUIRE_HAS_CALLGRIND 1
#else
#define QUIRE_HAS_CALLGRIND 0
#endif

namespace quire::bench {

bool CanCount() { return QUIRE_HAS_CALLGRIND != 0; }

bool IsCounted() {
#if QUIRE_HAS_CALLGRIND
  return RUNNING_ON_VALGRIND != 0;
#else
  return false;
#endif
}

void ToggleCounting() {
#if QUIRE_HAS_CALLGRIND
  CALLGRIND_TOGGLE_COLLECT;
#endif
}

void StartCounting() {
#if QUIRE_HAS_CALLGRIND
  CALLGRIND_START_INSTRUMENTATION;
  CALLGRIND_ZERO_STATS;
#endif
}

void StopCounting() {
#if QUIRE_HAS_CALLGRIND
  CALLGRIND_DUMP_STATS;
  CALLGRIND_STOP_INSTRUMENTATION;
#endif
}

}  // namespace quire::bench
