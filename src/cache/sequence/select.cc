// Selective keeping: a second sequence with some of the blocks.
#include <fmt/format.h>

#include <algorithm>

#include "cache/sequence/sequence_impl.h"

namespace quire::cache {

Result<std::unique_ptr<Sequence>> SequenceImpl::Select(std::span<const uint64_t> kept_blocks) {
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    return Fail(code, fmt::format("select: sequence {}: {}", id_.number(), why));
  };
  const uint64_t length = this->length();
  const uint64_t whole = length / verbs_.cache.block_tokens();
  const uint64_t tail = length % verbs_.cache.block_tokens();
  if (verbs_.cache.layout().group_count() > 1 || verbs_.cache.classes().reaches()[0].windowed()) {
    return refuse(ErrorCode::kUnsupported, "a layer's window decides what it keeps");
  }
  {
    MutexLock lock(mutex_);
    QUIRE_TRY(CheckArrived("select"));
  }
  if (contiguous_) return refuse(ErrorCode::kUnsupported, "it is contiguous");
  if (stream_ != nullptr) return refuse(ErrorCode::kUnsupported, "it streams");
  if (!is_exact_) return refuse(ErrorCode::kUnsupported, "some of it is approximate");
  if (cursor_max() != length) return refuse(ErrorCode::kInvalidArgument, "has uncommitted rows");
  for (size_t i = 0; i < kept_blocks.size(); ++i) {
    if (kept_blocks[i] < whole && (i == 0 || kept_blocks[i] > kept_blocks[i - 1])) continue;
    return refuse(ErrorCode::kInvalidArgument,
                  fmt::format("kept block {} is out of order or not one of its {} whole blocks",
                              kept_blocks[i], whole));
  }

  // In the open class only the last kept blocks are read.
  PerClass<std::span<const uint64_t>> kept{kept_blocks};
  if (slots_.class_count() > 1) {
    kept[1] = kept_blocks.last(
        std::min<size_t>(kept_blocks.size(), verbs_.cache.classes().residual_blocks()));
  }
  for (const uint64_t block : kept[1]) {
    if (!slots_.at(1, block).is_none()) continue;
    return refuse(
        ErrorCode::kInvalidArgument,
        fmt::format("kept block {} would be read open (residual_tokens {}), but is encoded "
                    "only; the last {} kept blocks must be its last",
                    block, verbs_.cache.options().profile.residual_tokens, kept[1].size()));
  }

  // A lease on a published block would keep the whole path before it.
  const auto is_published = [&](uint64_t block) { return block < slots_.list().published(); };
  PerClass<uint64_t> counts{};
  for (uint32_t c = 0; c < slots_.class_count(); ++c) {
    counts[c] = static_cast<uint64_t>(std::ranges::count_if(kept[c], is_published));
    if (tail > 0 && !slots_.at(c, whole).is_none()) ++counts[c];
  }
  const uint64_t blocks = kept_blocks.size() + (tail > 0 ? 1 : 0);
  Start start{.location = location_,
              .prompt_tokens = kept_blocks.size() * verbs_.cache.block_tokens() + tail,
              .blocks = BlockList(slots_.class_count(), verbs_.cache.block_tokens(),
                                  /*keeps_tokens=*/false)};
  start.tokens = start.prompt_tokens;
  start.blocks.Resize(blocks);
  QUIRE_ASSIGN(auto taken, verbs_.holds.Allocate(location_, counts,
                                                 FixedBytes(verbs_.cache.classes()) +
                                                     blocks * start.blocks.block_bytes()));
  const OwnedSlots& copies = taken.slots;
  start.charge = std::move(taken.metadata);
  std::vector<SlotId> held;
  PerClass<size_t> copied{};
  const auto set = [&](uint32_t c, uint64_t to, uint64_t from, bool copy) {
    SlotId slot = slots_.at(c, from);
    if (!slot.is_none() && copy) {
      const SlotId original = slot;
      slot = copies[c][copied[c]++];
      verbs_.cache.slots().Copy(original, slot);
    } else if (!slot.is_none()) {
      held.push_back(slot);
    }
    start.blocks.SetSlot(c, to, slot);
  };
  for (uint32_t c = 0; c < slots_.class_count(); ++c) {
    uint64_t to = kept_blocks.size() - kept[c].size();
    for (const uint64_t block : kept[c]) set(c, to++, block, is_published(block));
    if (tail > 0) set(c, to, whole, true);
  }
  start.lease = verbs_.holds.Share(std::move(held));
  const SequenceOptions options{.step_tokens = step_tokens_, .publish = false};
  auto selected = std::make_unique<SequenceImpl>(verbs_, std::move(start), OwnedSlots(), blocks,
                                                 tokens_max_, options);
  taken.slots.Disown();  // they are in the list
  selected->dropped_tokens_ =
      dropped_tokens_ + (whole - kept_blocks.size()) * verbs_.cache.block_tokens();
  return selected;
}

}  // namespace quire::cache
