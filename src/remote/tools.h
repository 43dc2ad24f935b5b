// Looking at a remote and removing from it, from outside: what `quire store` does with an address.
#ifndef QUIRE_REMOTE_TOOLS_H_
#define QUIRE_REMOTE_TOOLS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "quire/env.h"
#include "remote/objects.h"
#include "remote/seal.h"

namespace quire::remote {

struct RemoteReport {
  uint64_t records = 0;     // of this fleet, that may be served
  uint64_t bytes = 0;       // of these, sealed
  uint64_t publishers = 0;  // whose they are
  uint64_t erased = 0;      // records from before their publisher was erased
  uint64_t others = 0;      // objects that this fleet's key does not open
  uint64_t removed = 0;     //
};

/// One record of the fleet, as its head says.
using RemoteVisitor = std::function<void(std::string_view name, const SealedHead& head)>;

/// Hears how many objects were looked at so far; how many there are is not known before.
using RemoteProgress = std::function<void(uint64_t objects)>;

/// Reads the head of every object under the prefix: a request for each, 256 at a time. `visit` and
/// `progress` may be empty.
///
/// Errors: kNotFound this fleet has written nothing there; kIo the service does not answer;
///         kInvalidArgument it refuses
Result<RemoteReport> StatRemote(Objects& objects, const FleetKey& fleet, const Clock& clock,
                                const RemoteVisitor& visit = nullptr,
                                const RemoteProgress& progress = nullptr);

/// Erases all of a publisher: no machine finds it any more, and its objects are removed. What
/// cannot be removed stays sealed, and no machine finds it.
///
/// Errors: as StatRemote
Result<RemoteReport> RemoveFromRemote(std::unique_ptr<Objects> objects, const FleetKey& fleet,
                                      std::string_view publisher, const Clock& clock,
                                      const RemoteProgress& progress = nullptr);

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_TOOLS_H_
