#include "pool/placement.h"

#include "base/check.h"
#include "pool/best_fit.h"
#include "pool/buddy.h"
#include "pool/first_fit.h"
#include "pool/free_list.h"

namespace quire::pool {

uint64_t PlacerBytes(Placement placement, uint32_t slots_max) {
  switch (placement) {
    case Placement::kFreeList: return FreeList::Bytes(slots_max);
    case Placement::kFirstFit: return FirstFit::Bytes(slots_max);
    case Placement::kBestFit: return BestFit::Bytes(slots_max);
    case Placement::kBuddy: return Buddy::Bytes(slots_max);
  }
  QUIRE_CHECK_MSG(false, "no such placement");
  return 0;
}

std::unique_ptr<Placer> MakePlacer(Placement placement, std::byte* memory, uint32_t slots_max) {
  switch (placement) {
    case Placement::kFreeList: return std::make_unique<FreeList>(memory, slots_max);
    case Placement::kFirstFit: return std::make_unique<FirstFit>(memory, slots_max);
    case Placement::kBestFit: return std::make_unique<BestFit>(memory, slots_max);
    case Placement::kBuddy: return std::make_unique<Buddy>(memory, slots_max);
  }
  QUIRE_CHECK_MSG(false, "no such placement");
  return nullptr;
}

}  // namespace quire::pool
