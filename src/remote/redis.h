// Objects at a Redis or Valkey server, or a cluster of them.
#ifndef QUIRE_REMOTE_REDIS_H_
#define QUIRE_REMOTE_REDIS_H_

#include <memory>

#include "remote/address.h"
#include "remote/objects.h"

namespace quire::remote {

/// Begins to connect, and returns at once. Requests go down pipelines, one of reads and one of
/// writes for each node, on a thread of its own; of a cluster it keeps the slot map and follows
/// MOVED and ASK. A node that does not answer is left alone for 0.25 s, then longer, up to 8 s.
///
/// Errors: kNotFound, kIo the certificates of TLS
Result<std::unique_ptr<Objects>> OpenRedis(const RemoteAddress& address,
                                           const RemoteCredentials& credentials);

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_REDIS_H_
