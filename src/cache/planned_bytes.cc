#include "cache/planned_bytes.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bits.h"
#include "cache/below/records.h"
#include "cache/below/sequence_stream.h"
#include "cache/sequence/reach.h"
#include "codec/slot_layout.h"

namespace quire::cache {

Result<PlannedBytes> PlanBytes(const Geometry& geometry, const NumericProfile& profile,
                               uint64_t tokens, uint64_t step_tokens) {
  QUIRE_ASSIGN(const auto layout,
               codec::SlotLayout::Create(geometry, profile, ArenaLayout::kBlockMajor));
  PlannedBytes planned{.blocks = DivUp(tokens, uint64_t{profile.block_tokens})};
  const auto add = [&](uint64_t blocks, uint64_t slot_bytes, uint64_t& sum) -> Result<void> {
    const auto bytes = CheckedMul(blocks, slot_bytes);
    if (bytes && *bytes <= UINT64_MAX - planned.total()) {
      sum += *bytes;
      return {};
    }
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{} tokens: the bytes do not fit into 64 bits", tokens));
  };
  for (uint32_t group = 0; group < layout.group_count(); ++group) {
    const WindowReach reach(layout.group(group), profile.block_tokens);
    const uint64_t live = std::min(planned.blocks, reach.blocks_max(step_tokens));
    planned.block_bytes += layout.slot_bytes(group);
    QUIRE_TRY(add(live, layout.slot_bytes(group), planned.stored));
  }
  if (layout.identity()) return planned;
  QUIRE_ASSIGN(const auto open, codec::SlotLayout::CreateOpen(geometry, profile));
  planned.open_blocks =
      std::min(planned.blocks, WindowReach::OfOpenForm(profile).blocks_max(step_tokens));
  for (uint32_t group = 0; group < open.group_count(); ++group) {
    QUIRE_TRY(add(planned.open_blocks, open.slot_bytes(group), planned.open));
  }
  return planned;
}

Result<PlannedStream> PlanStream(const CacheOptions& options, uint64_t tokens,
                                 const SequenceOptions& sequence) {
  QUIRE_ASSIGN(const SlotClasses classes, SlotClasses::Create(options));
  const bool host_accessible = options.memory == nullptr || options.memory->host_accessible();
  QUIRE_ASSIGN(const StreamNeeds needs, StreamNeedsOf(classes, sequence, host_accessible));
  QUIRE_ASSIGN(const RecordShapes shapes, RecordShapes::Create(classes, options));
  const uint64_t blocks = DivUp(tokens, uint64_t{classes.block_tokens()});
  return PlannedStream{.bytes = StreamedBytes(classes, needs, blocks, sequence),
                       .state_bytes = needs.state_bytes,
                       .store_bytes = StoreBytesFor(blocks * shapes.sealed().record_bytes())};
}

}  // namespace quire::cache
