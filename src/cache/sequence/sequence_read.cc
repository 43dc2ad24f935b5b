// The reading side of a sequence: gather, views, and what kernels need.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/bits.h"
#include "cache/sequence/sequence_impl.h"

namespace quire {

namespace cache {

Result<SequenceImpl::Snapshot> SequenceImpl::Take(uint32_t layer, StreamRole role, uint64_t begin,
                                                  uint64_t end) const {
  if (layer >= cursors_.size()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("layer {} of a model with {}", layer, cursors_.size()));
  }
  Snapshot taken{.ops = &verbs_.cache.slots().ops()};
  QUIRE_ASSIGN(taken.sealed, verbs_.cache.layout().Find(layer, role));
  QUIRE_ASSIGN(taken.open, verbs_.cache.open_layout().Find(layer, role));
  const uint32_t group = verbs_.cache.layout().group_of(layer);
  MutexLock lock(mutex_);
  QUIRE_TRY(CheckArrived("read"));
  // The length first: tokens committed then are written, whatever the writer does meanwhile.
  // Rollback takes the lock.
  taken.committed = length();
  taken.tokens = cursor(layer);
  const uint64_t whole = taken.tokens / taken.sealed.block_tokens;
  taken.first_block = begin / taken.sealed.block_tokens;
  const uint64_t blocks = DivUp(std::min(end, taken.tokens), uint64_t{taken.sealed.block_tokens});
  std::vector<SlotId> held;
  for (uint64_t block = taken.first_block; block < blocks; ++block) {
    const bool has_choice = verbs_.cache.classes().has_ladder() && !IsSealedOnly(block);
    const bool is_open = block >= whole || has_choice;
    const SlotId slot =
        slots_.at(is_open ? verbs_.cache.classes().OpenClassOf(group) : group, block);
    taken.in_open.push_back(is_open);
    taken.slots.push_back(slot.is_none() ? nullptr : verbs_.cache.slots().data(slot));
    if (!slot.is_none()) held.push_back(slot);
  }
  taken.lease = verbs_.holds.Share(std::move(held));
  return taken;
}

bool SequenceImpl::Snapshot::Has(uint64_t begin, uint64_t end) const {
  for (uint64_t block = begin / sealed.block_tokens; block * sealed.block_tokens < end; ++block) {
    if (slots[block - first_block] == nullptr) return false;
  }
  return true;
}

void SequenceImpl::Snapshot::Read(uint64_t begin, uint64_t end, float* out,
                                  int64_t head_stride) const {
  for (uint64_t position = begin; position < end;) {
    const uint64_t block = position / sealed.block_tokens;
    const auto in_block = static_cast<uint32_t>(position % sealed.block_tokens);
    const auto count =
        static_cast<uint32_t>(std::min<uint64_t>(end - position, sealed.block_tokens - in_block));
    if (const std::byte* slot = slots[block - first_block]; slot != nullptr) {
      ops->ReadRows(in_open[block - first_block] ? open : sealed, slot,
                    {.begin = in_block, .count = count}, out + (position - begin) * sealed.dim,
                    head_stride);
    }
    position += count;
  }
}

Result<void> SequenceImpl::Gather(uint32_t layer, StreamRole role, uint64_t begin, uint64_t end,
                                  std::span<float> out) const {
  // The snapshot first: it stays readable, whatever the writer does meanwhile.
  QUIRE_ASSIGN(const Snapshot taken, Take(layer, role, begin, end));
  if (begin > end || end > taken.tokens) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("gather: tokens [{}, {}) of layer {} with {} tokens", begin, end, layer,
                            taken.tokens));
  }
  const auto values =
      CheckedProduct(end - begin, uint64_t{taken.sealed.heads}, uint64_t{taken.sealed.dim});
  if (!values || out.size() < *values) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("gather: {} tokens of {} heads of {} values do not fit into {}",
                            end - begin, taken.sealed.heads, taken.sealed.dim, out.size()));
  }
  if (!taken.Has(begin, end)) {
    return Fail(ErrorCode::kNotFound,
                fmt::format("gather: tokens [{}, {}) of layer {}: its window has passed some of "
                            "them",
                            begin, end, layer));
  }
  taken.Read(begin, end, out.data(), static_cast<int64_t>(end - begin) * taken.sealed.dim);
  return taken.ops->Synchronize();
}

Result<PaddedRow> SequenceImpl::Padded(uint32_t layer, StreamRole role, uint64_t tokens_max) const {
  QUIRE_ASSIGN(Snapshot taken, Take(layer, role));
  if (taken.committed > tokens_max) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("gather: sequence {} has {} tokens, tokens_max is {}", id().number(),
                            taken.committed, tokens_max));
  }
  const auto values =
      CheckedProduct(tokens_max, uint64_t{taken.sealed.heads}, uint64_t{taken.sealed.dim});
  if (!values) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("gather: {} tokens of {} heads of {} values do not fit into 64 bits",
                            tokens_max, taken.sealed.heads, taken.sealed.dim));
  }
  const auto head_stride = static_cast<int64_t>(tokens_max * taken.sealed.dim);
  return PaddedRow{
      .values = *values,
      .copy = [row = std::make_shared<const Snapshot>(std::move(taken)), head_stride](float* out) {
        row->Read(0, row->committed, out, head_stride);
        return row->ops->Synchronize();
      }};
}

Result<BlockListView> SequenceImpl::View(uint32_t layer, StreamRole role, TokenRange range) const {
  if (!verbs_.cache.layout().identity()) {
    return Fail(ErrorCode::kUnsupported,
                "view: the cache encodes its blocks; only codecs that store values as they are can "
                "be seen in place (use Gather)");
  }
  QUIRE_ASSIGN(Snapshot taken, Take(layer, role, range.begin, range.end));
  const uint64_t end = std::min(range.end, taken.tokens);
  if (range.begin > end) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("view: tokens [{}, {}) of layer {} with {} tokens", range.begin,
                            range.end, layer, taken.tokens));
  }
  const uint64_t first_token = taken.first_block * verbs_.cache.block_tokens();
  return BlockListView(taken.sealed, first_token, end - first_token, std::move(taken.slots),
                       std::move(taken.lease));
}

LayerStreams SequenceImpl::Streams(uint32_t layer) const {
  const codec::SlotLayout& layout = verbs_.cache.layout();
  const codec::SlotLayout& open = verbs_.cache.open_layout();
  return {.arena = verbs_.cache.slots().ArenaOf(layout.group_of(layer)).base,
          .key = layout.key(layer),
          .value = layout.value(layer),
          .open_key = open.key(layer),
          .open_value = open.value(layer),
          .open_blocks = verbs_.cache.classes().residual_blocks()};
}

LayerBlocks SequenceImpl::Blocks(uint32_t layer) const {
  const uint32_t group = verbs_.cache.layout().group_of(layer);
  const uint32_t open_class = verbs_.cache.classes().OpenClassOf(group);
  struct Lists {
    std::array<uint64_t, 2> indptr{};
    std::vector<uint32_t> sealed{};
    std::vector<uint32_t> open{};
  };
  auto lists = std::make_shared<Lists>();
  {
    MutexLock lock(mutex_);
    lists->indptr[1] = slots_.list().size();
    lists->sealed.reserve(slots_.list().size());
    lists->open.reserve(open_class != group ? slots_.list().size() : 0);
    for (uint64_t block = 0; block < slots_.list().size(); ++block) {
      lists->sealed.push_back(verbs_.cache.slots().NumberInArena(slots_.at(group, block)));
      if (open_class == group) continue;
      lists->open.push_back(verbs_.cache.slots().NumberInArena(slots_.at(open_class, block)));
    }
  }
  const auto table = [&](uint32_t slot_class, const std::vector<uint32_t>& slots) {
    return verbs_.cache.slots().TableOf(slot_class, lists->indptr, slots);
  };
  LayerBlocks blocks{Streams(layer)};
  blocks.tables = {
      .sealed = table(group, lists->sealed),
      .open = open_class != group ? table(open_class, lists->open) : table(group, lists->sealed)};
  blocks.tokens = cursor(layer);
  blocks.lists = std::move(lists);
  return blocks;
}

}  // namespace cache

Result<void> GatherPadded(std::span<const Sequence* const> sequences, uint32_t layer,
                          StreamRole role, uint64_t tokens_max, std::span<float> out) {
  std::vector<PaddedRow> rows;
  uint64_t values = 0;
  for (const Sequence* sequence : sequences) {
    if (sequence == nullptr) return Fail(ErrorCode::kInvalidArgument, "gather: a null sequence");
    QUIRE_ASSIGN(PaddedRow row, sequence->Padded(layer, role, tokens_max));
    if (row.values > out.size() - values) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("gather: {} sequences of {} tokens do not fit into {} values",
                              sequences.size(), tokens_max, out.size()));
    }
    values += row.values;
    rows.push_back(std::move(row));
  }
  std::ranges::fill(out.first(values), 0.0f);
  float* to = out.data();
  for (const PaddedRow& row : rows) {
    QUIRE_TRY(row.copy(to));
    to += row.values;
  }
  return {};
}

}  // namespace quire
