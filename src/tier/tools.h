// Looking at a store and mending it from outside: what `quire store` does.
#ifndef QUIRE_TIER_TOOLS_H_
#define QUIRE_TIER_TOOLS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "env/files.h"
#include "tier/record.h"

namespace quire::tier {

struct StoreReport {
  uint64_t records = 0;         // that may be served: not erased
  uint64_t bytes = 0;           // of all files of the store
  uint64_t bytes_cap = 0;       // as the store was last opened with; 0 when unknown
  uint64_t damaged = 0;         // records that are lost, epochs, keys, catalogue and secret
  uint64_t unfinished = 0;      // of what a crash cut off and nothing was confirmed of
  bool secret_changed = false;  // it is not the one that the store was made with, or gone
  uint64_t repaired = 0;        //
  uint64_t erased = 0;          // records that wait to be overwritten
  uint64_t other_versions = 0;  // records of another version of the format
  bool is_encrypted = false;    // it has keys, or sealed records
  std::string wrapped_by{};     // those keys: "command", or "key" and the id of it
  uint64_t keys = 0;            // of tenants and domains, those that were renewed included
};

/// Called for each record that may be served.
using RecordVisitor = std::function<void(const RecordSummary&)>;

/// Counts records by their headers. Works beside the process that has the store open: what that is
/// writing now may be missing.
///
/// Errors: kNotFound no store there; kIo
Result<StoreReport> StatStore(Files& files, const std::string& directory,
                              const RecordVisitor& visit = nullptr);

/// Reads everything and compares every checksum and what the catalogue knows of. Changes no record.
///
/// Errors: kNotFound; kBusy a process has the store open; kIo
Result<StoreReport> VerifyStore(Files& files, const std::string& directory);

/// The same beside the process that has the store open: takes no lock, writes nothing, and does not
/// look at the catalogue, so a segment without any header is not missed. What looks damaged is
/// looked at again after `pause`, in which its owner may finish it; what has no whole record behind
/// it is unfinished.
///
/// Errors: kNotFound, kIo
Result<StoreReport> VerifyStoreBeside(Files& files, const std::string& directory,
                                      const std::function<void()>& pause);

/// Verifies, takes out what is damaged, makes the epochs and copies of keys anew, and the catalogue
/// with the next opening. Where both copies of the epochs are damaged everything of named
/// tenants is overwritten: it is unknown what of it was erased.
///
/// Errors: as VerifyStore; kUnsupported it has records of another version
Result<StoreReport> RepairStore(Files& files, const std::string& directory);

/// Rewrites records of older versions. Version 1 is the first, so there is nothing to rewrite.
///
/// Errors: kNotFound, kIo; kUnsupported records of a version that this build does not know
Result<StoreReport> UpgradeStore(Files& files, const std::string& directory);

}  // namespace quire::tier

#endif  // QUIRE_TIER_TOOLS_H_
