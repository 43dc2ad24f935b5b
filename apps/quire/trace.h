// Request traces from outside: which blocks each request of a recorded service asked for; and
// traces that might have been recorded instead, with its sessions drawn again.
#ifndef QUIRE_APPS_TRACE_H_
#define QUIRE_APPS_TRACE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/error.h"

namespace quire::app {

/// One line of a trace.
struct TraceRequest {
  uint64_t timestamp_ms = 0;
  uint64_t input_tokens = 0;
  uint64_t output_tokens = 0;
  /// Of the prompt's blocks. An id stands for a block with all blocks before it: equal ids, equal
  /// prefixes.
  std::vector<uint64_t> block_ids;
};

/// Requests and their blocks that a resampled trace may have, so that no number of them takes all
/// memory. What is read from a file is bounded in bytes.
inline constexpr uint64_t kTraceEntriesMax = 1 << 26;

/// In order of arrival.
using Trace = std::vector<TraceRequest>;

/// Reads one JSON object a line with `timestamp`, `input_length`, `output_length` and `hash_ids`;
/// other members are ignored. `bytes` are gzip, of one member or several, or the text itself.
/// `source` (a file's path) begins messages.
///
/// Errors: kCorrupt damaged or cut short, with the number of the line; kCorrupt a line of more than
///         16 MiB, or more than 128 MiB of requests and block ids: a small file cannot take all
///         memory; kNoSpace the system has less
Result<Trace> ParseTrace(std::string_view bytes, const std::string& source);

/// The trace in a file of at most 1 GiB, or a pipe. Of the file itself a piece is held at a time.
///
/// Errors: those of ReadPieces and ParseTrace
Result<Trace> ReadTrace(const std::string& path);

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

#endif  // QUIRE_APPS_TRACE_H_
