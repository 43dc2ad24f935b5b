// New keys for an encrypted store that no process has open: what `quire store rotate` does.
#ifndef QUIRE_TIER_ROTATE_H_
#define QUIRE_TIER_ROTATE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "env/files.h"
#include "quire/env.h"
#include "quire/error.h"
#include "quire/store.h"

namespace quire::tier {

struct RotateOptions {
  StoreKeys keys{};      // that open the store
  StoreKeys new_keys{};  // that wrap everything from now on; empty: those stay
  bool renews_data_keys = false;
  // What an old data key sealed is written anew at once, and not while the store is used.
  bool rewrites = false;
  std::function<void(uint64_t, uint64_t)> progress = [](uint64_t, uint64_t) {};  // records, of all
};

struct RotateReport {
  bool rewrapped = false;
  uint64_t renewed = 0;   // data keys
  uint64_t keys = 0;      // data keys that the store has now
  uint64_t keys_old = 0;  // of these: they go when nothing that they sealed is left
};

/// What a crash leaves has the old keys or the new ones; asked again, it goes on. A store whose
/// keys the new key wraps already stays so.
///
/// `files`: of no other store before.
/// Errors: kInvalidArgument neither opens it, or nothing is to be done; kNotFound no store there;
///         kBusy a process has it open; kNoSpace; kIo, also where records could not be written
///         anew: their keys stay
Result<RotateReport> RotateKeys(Files& files, const std::string& directory,
                                const RotateOptions& options, const Clock& clock);

}  // namespace quire::tier

#endif  // QUIRE_TIER_ROTATE_H_
