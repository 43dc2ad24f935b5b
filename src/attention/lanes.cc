#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "quire/attention.h"

namespace quire {
namespace {

bool HasMemory(const LaneStates& states) {
  return states.max != nullptr && states.sum != nullptr && states.out != nullptr;
}

Result<void> CheckSets(const LaneStates& a, const LaneStates& b, const LaneStates& to) {
  const auto bad = [](const std::string& what) -> Result<void> {
    return Fail(ErrorCode::kInvalidArgument, "merge lanes: " + what);
  };
  if (((a.lanes | b.lanes) & ~kAllLanes) != 0) {
    return bad(fmt::format("lanes {:#x} and {:#x}, there are {}", a.lanes, b.lanes, kLanes));
  }
  if ((a.lanes & b.lanes) != 0) {
    return bad(fmt::format("both have lanes {:#x}", a.lanes & b.lanes));
  }
  if (to.lanes != (a.lanes | b.lanes)) {
    return bad(fmt::format("to.lanes is {:#x}, not {:#x}", to.lanes, a.lanes | b.lanes));
  }
  for (const LaneStates* states : {&a, &b, &to}) {
    if (states->lanes != 0 && !HasMemory(*states)) return bad("max, sum or out is null");
  }
  return {};
}

}  // namespace

Result<void> MergeLanes(const AttentionShape& shape, uint32_t rows, const LaneStates& a,
                        const LaneStates& b, const LaneStates& to) {
  QUIRE_TRY(CheckSets(a, b, to));
  const uint64_t dim = shape.value.dim;
  const uint64_t vectors = uint64_t{rows} * shape.query_heads;
  uint64_t next = 0;  // of `to`
  for (uint64_t vector = 0; vector < vectors; ++vector) {
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      if ((to.lanes >> lane & 1) == 0) continue;
      const LaneStates& from = (a.lanes >> lane & 1) != 0 ? a : b;
      const uint64_t at = vector * LaneCount(from.lanes) + from.At(0, 0, 0, lane);
      to.max[next] = from.max[at];
      to.sum[next] = from.sum[at];
      std::copy_n(from.out + at * dim, dim, to.out + next * dim);
      ++next;
    }
  }
  return {};
}

}  // namespace quire
