// Opens the remote that an address names.
#ifndef QUIRE_REMOTE_OPEN_H_
#define QUIRE_REMOTE_OPEN_H_

#include <memory>
#include <string>

#include "quire/env.h"
#include "remote/address.h"
#include "remote/objects.h"
#include "remote/remote_records.h"

namespace quire::remote {

struct RemoteRequest {
  std::string address{};
  std::string fleet_key_file{};   // empty: none
  Digest own_secret{};            // of this machine alone, in place of a fleet's key
  bool outlives_process = false;  // that secret
};

struct OpenedRemote {
  std::unique_ptr<RemoteRecords> records{};
  bool is_fleet = false;   // there is a fleet's key
  Digest domain_secret{};  // that follows from it
};

/// Connects, and waits for the first answer, 2 s or as long as the address says that a read may
/// take, but 10 s at most. A remote that does not answer is open all the same, and asked again
/// later.
///
/// Errors: kInvalidArgument, kNotFound, kIo the address, the key file, the credentials
Result<OpenedRemote> OpenRemote(const RemoteRequest& request, const Clock& clock);

/// The service alone.
Result<std::unique_ptr<Objects>> OpenObjects(const RemoteAddress& address);

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_OPEN_H_
