#include "apps/quire/replay_resample.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/prng.h"

namespace quire::app {
namespace {

using Session = std::vector<const TraceRequest*>;

// Blocks that every path begins with. A path that ends there leaves the rest without a root.
size_t SharedBlocks(const Trace& trace) {
  size_t shared = trace.front().block_ids.size();
  for (const TraceRequest& request : trace) {
    shared = std::min(shared, request.block_ids.size());
    size_t same = 0;
    while (same < shared && request.block_ids[same] == trace.front().block_ids[same]) ++same;
    shared = same;
  }
  return shared;
}

std::vector<Session> SessionsOf(const Trace& trace, size_t shared) {
  std::vector<Session> sessions;
  std::map<std::vector<uint64_t>, size_t> numbers;  // by root; none: what has nothing of its own
  for (const TraceRequest& request : trace) {
    std::vector<uint64_t> root;
    if (request.block_ids.size() > shared) root.push_back(request.block_ids[shared]);
    const auto [number, is_new] = numbers.try_emplace(std::move(root), sessions.size());
    if (is_new) sessions.emplace_back();
    sessions[number->second].push_back(&request);
  }
  return sessions;
}

}  // namespace

Result<Trace> Resample(const Trace& trace, uint64_t seed, uint64_t sessions) {
  Trace resampled;
  if (trace.empty()) return resampled;
  const size_t shared = SharedBlocks(trace);
  const std::vector<Session> all = SessionsOf(trace, shared);
  const auto by_time = [](const TraceRequest& a, const TraceRequest& b) {
    return a.timestamp_ms < b.timestamp_ms;
  };
  const auto [first, last] = std::ranges::minmax_element(trace, by_time);
  std::vector<bool> was_drawn(all.size());
  uint64_t next_id = shared;
  uint64_t entries = 0;
  Prng prng(seed);
  if (sessions == 0) sessions = all.size();
  for (uint64_t i = 0; i < sessions; ++i) {
    const uint64_t drawn = prng.NextBelow(all.size());
    const Session& session = all[drawn];
    const auto [begin, end] = std::ranges::minmax_element(
        session, [&](const auto* a, const auto* b) { return by_time(*a, *b); });
    const uint64_t begin_ms = (*begin)->timestamp_ms;
    uint64_t moved_ms = begin_ms;
    if (was_drawn[drawn]) {
      const uint64_t room_ms =
          last->timestamp_ms - first->timestamp_ms - ((*end)->timestamp_ms - begin_ms);
      moved_ms = first->timestamp_ms + prng.NextBelow(room_ms + 1);
    }
    was_drawn[drawn] = true;
    std::unordered_map<uint64_t, uint64_t> ids;  // of this copy, by those of the trace
    for (const TraceRequest* request : session) {
      entries += 1 + request->block_ids.size();
      if (entries > kTraceEntriesMax) {
        return Fail(
            ErrorCode::kTooLarge,
            fmt::format("{} sessions drawn by seed {} have more than {} requests and blocks",
                        sessions, seed, kTraceEntriesMax));
      }
      TraceRequest& copy = resampled.emplace_back(*request);
      copy.timestamp_ms = copy.timestamp_ms - begin_ms + moved_ms;
      for (size_t block = 0; block < copy.block_ids.size(); ++block) {
        uint64_t& id = copy.block_ids[block];
        if (block < shared) {
          id = block;
          continue;
        }
        const auto [own, is_new] = ids.try_emplace(id, next_id);
        if (is_new) ++next_id;
        id = own->second;
      }
    }
  }
  std::ranges::stable_sort(resampled, by_time);
  return resampled;
}

}  // namespace quire::app
