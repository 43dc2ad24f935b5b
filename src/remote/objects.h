// Objects: named bytes at a service that many machines share. The narrow door to Redis and S3.
#ifndef QUIRE_REMOTE_OBJECTS_H_
#define QUIRE_REMOTE_OBJECTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace quire::remote {

enum class ObjectVerb : uint8_t {
  kGet = 1,
  kPut = 2,
  kRemove = 3,
  kList = 4,  // some of the names that begin with `name`
  kSwap = 5,  // puts where the object still is what was read
};

enum class ObjectOutcome : uint8_t {
  kOk = 1,
  kAbsent = 2,       // Get, Remove: no such object
  kChanged = 3,      // Swap: it is another one than was read
  kUnavailable = 4,  // no answer, or one that says to come again
  kRefused = 5,      // credentials or rights; it will not be otherwise soon
  kTooLarge = 6,     // Get: `whole` is longer than bytes_max
  kFull = 7,         // Put, Swap: it takes no more just now
};

/// Where the bytes of an object go, in order, as they come; also those of an answer that fails
/// later.
///
/// Threads: the service's own
using ObjectSink = std::function<void(std::span<const std::byte>)>;

struct ObjectRequest {
  uint64_t tag = 0;
  ObjectVerb verb = ObjectVerb::kGet;
  std::string name{};
  // Get: bytes [offset, offset + bytes_max), as far as there are any. List: at most so many names.
  uint64_t offset = 0;
  uint64_t bytes_max = 0;
  bool whole = false;              // Get: all of the object, which has no more than bytes_max
  ObjectSink sink{};               // Get: gets the bytes instead of the reply
  std::vector<std::byte> bytes{};  // Put, Swap
  // Swap: of what was read; empty: nothing stood there. List: where to go on; empty: at the start.
  std::string version{};
  bool wants_version = false;  // Get
};

struct ObjectReply {
  uint64_t tag = 0;
  ObjectOutcome outcome = ObjectOutcome::kUnavailable;
  // Get: never more than bytes_max. Put: what was to be put, where it was not.
  std::vector<std::byte> bytes{};
  std::string version{};             // Get: for a Swap; List: where to go on; empty: that was all
  std::vector<std::string> names{};  // List
  std::string detail{};              // of a failure, without secrets
};

/// A service that keeps objects. Nothing that it says is trusted: an answer may be late, old, of
/// another object, or made up.
///
/// Every request ends with one reply, within the service's own time limit.
///
/// Threads:  one at a time
/// Lifetime: requests that have no reply when it ends get none
class Objects {
 public:
  virtual ~Objects() = default;

  /// Never waits.
  virtual void Ask(ObjectRequest request) = 0;
  /// Appends the replies that have come; waits up to `wait_us` where there is none.
  virtual void Take(std::vector<ObjectReply>& replies, uint64_t wait_us) = 0;
  /// Where it is, without credentials: for messages.
  virtual std::string where() const = 0;
};

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_OBJECTS_H_
