#include <fmt/format.h>

#include "quire/attention.h"

namespace quire {
namespace {

bool SameArena(const std::byte* base, uint64_t slot_stride_bytes, const BlockTable& table) {
  return table.base == base && table.slot_stride_bytes == slot_stride_bytes;
}

bool SameForms(const BlockTables& tables) {
  return tables.open.slots == tables.sealed.slots &&
         SameArena(tables.sealed.base, tables.sealed.slot_stride_bytes, tables.open);
}

}  // namespace

void BatchTables::Rows::Add(const BlockTable& table) {
  base = table.base;
  slot_stride_bytes = table.slot_stride_bytes;
  for (uint32_t s = 0; s < table.sequences; ++s) {
    slots.insert(slots.end(), table.Row(s), table.Row(s) + table.BlockCount(s));
    indptr.push_back(slots.size());
  }
}

BlockTable BatchTables::Rows::table() const {
  return {.base = base,
          .slot_stride_bytes = slot_stride_bytes,
          .sequences = static_cast<uint32_t>(indptr.size() - 1),
          .indptr = indptr.data(),
          .slots = slots.data()};
}

Result<void> BatchTables::Add(const BlockTables& tables) {
  const bool has_open = !SameForms(tables);
  if (sealed_.base != nullptr &&
      (!SameArena(sealed_.base, sealed_.slot_stride_bytes, tables.sealed) ||
       has_open != has_open_ ||
       (has_open_ && !SameArena(open_.base, open_.slot_stride_bytes, tables.open)))) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("batch tables: sequence {} has its slots in other arenas than those "
                            "before it",
                            sealed_.indptr.size() - 1));
  }
  sealed_.Add(tables.sealed);
  if (has_open) open_.Add(tables.open);
  has_open_ = has_open;
  return {};
}

void BatchTables::Clear() {
  for (Rows* rows : {&sealed_, &open_}) {
    rows->base = nullptr;
    rows->indptr.resize(1);
    rows->slots.clear();
  }
}

BlockTables BatchTables::tables() const {
  return {.sealed = sealed_.table(), .open = has_open_ ? open_.table() : sealed_.table()};
}

}  // namespace quire
