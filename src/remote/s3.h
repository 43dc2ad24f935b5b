// Objects at a service with the interface of S3.
#ifndef QUIRE_REMOTE_S3_H_
#define QUIRE_REMOTE_S3_H_

#include <memory>

#include "remote/address.h"
#include "remote/objects.h"

namespace quire::remote {

/// Connects when it is asked for something. Requests are signed (SigV4), bodies are not: nothing
/// that comes is trusted anyway. Up to 32 are under way at a time, on a thread of its own.
///
/// Errors: kInvalidArgument no region; kIo libcurl
Result<std::unique_ptr<Objects>> OpenS3(const RemoteAddress& address,
                                        const RemoteCredentials& credentials);

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_S3_H_
