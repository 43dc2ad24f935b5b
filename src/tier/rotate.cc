#include "tier/rotate.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "tier/sealed_store.h"
#include "tier/store_files.h"

namespace quire::tier {
namespace {

constexpr uint64_t kAtOnceBytesPerS = uint64_t{1} << 40;

}  // namespace

Result<RotateReport> RotateKeys(Files& files, const std::string& directory,
                                const RotateOptions& options, const Clock& clock) {
  if (options.new_keys.empty() && !options.renews_data_keys && !options.rewrites) {
    return Fail(ErrorCode::kInvalidArgument,
                "there is nothing to rotate: give new keys, or renew "
                "the data keys");
  }
  const uint64_t bytes_cap = ReadLockText(files, directory).bytes_cap;
  if (bytes_cap == 0) return Fail(ErrorCode::kNotFound, directory + ": no store here");
  const ColdOptions cold = {.directory = directory,
                            .bytes_cap = bytes_cap,
                            .staging_bytes = uint64_t{4} << 20,
                            .scrub_bytes_per_s = 0,
                            .renew_bytes_per_s = options.rewrites ? kAtOnceBytesPerS : 0};
  RotateReport report = {.rewrapped = !options.new_keys.empty()};
  auto opened = SealedStore::Open(cold, files, clock, options.keys);
  if (!opened && report.rewrapped && opened.error().code == ErrorCode::kInvalidArgument) {
    // An earlier call may have ended in between.
    auto again = SealedStore::Open(cold, files, clock, options.new_keys);
    if (!again) return std::unexpected(std::move(opened).error());
    opened = std::move(again);
    report.rewrapped = false;
  }
  if (!opened) return std::unexpected(std::move(opened).error());
  SealedStore& store = **opened;
  if (report.rewrapped) QUIRE_TRY(store.keys().Rewrap(options.new_keys));
  if (options.renews_data_keys) {
    report.renewed = store.keys().owners().size();
    QUIRE_TRY(store.RenewKeys());
  }
  if (options.rewrites) QUIRE_TRY(store.FinishRenewal(options.progress));
  report.keys = store.keys().keys();
  report.keys_old = report.keys - store.keys().owners().size();
  return report;
}

}  // namespace quire::tier
