#include "tier/store.h"

namespace quire::tier {

std::string_view StoreOutcomeName(StoreOutcome outcome) {
  switch (outcome) {
    case StoreOutcome::kOk: return "ok";
    case StoreOutcome::kPresent: return "present";
    case StoreOutcome::kAbsent: return "absent";
    case StoreOutcome::kMiss: return "miss";
    case StoreOutcome::kErased: return "erased";
    case StoreOutcome::kUnknownEpoch: return "unknown_epoch";
    case StoreOutcome::kIo: return "io";
    case StoreOutcome::kDeadline: return "deadline";
    case StoreOutcome::kCancelled: return "cancelled";
    case StoreOutcome::kBusy: return "busy";
    case StoreOutcome::kNoSpace: return "no_space";
    case StoreOutcome::kQuota: return "quota";
    case StoreOutcome::kTooLarge: return "too_large";
  }
  return "unknown";
}

}  // namespace quire::tier
