// Traces that might have been recorded instead: the sessions of one, drawn again.
#ifndef QUIRE_APPS_REPLAY_RESAMPLE_H_
#define QUIRE_APPS_REPLAY_RESAMPLE_H_

#include <cstdint>

#include "apps/quire/trace.h"

namespace quire::app {

/// A session is all requests whose paths have the same root: the first block that is not part of
/// every path. As many sessions as there are (or `sessions`, if that is not 0) are drawn with
/// replacement. Each drawn copy has ids of its own behind what all paths share, so that copies hit
/// only what is theirs. The first copy keeps its times; further ones are moved as a whole, to any
/// time within the trace.
///
/// The same seed gives the same trace.
///
/// Errors: kTooLarge more requests and blocks than a trace may have
Result<Trace> Resample(const Trace& trace, uint64_t seed, uint64_t sessions);

}  // namespace quire::app

#endif  // QUIRE_APPS_REPLAY_RESAMPLE_H_
