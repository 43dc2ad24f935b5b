// Objects in memory that misbehave as a script says: for tests and simulators.
#ifndef QUIRE_REMOTE_MEMORY_OBJECTS_H_
#define QUIRE_REMOTE_MEMORY_OBJECTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "quire/env.h"
#include "remote/objects.h"

namespace quire::remote {

/// The service behind several clients. It keeps what stood under a name before.
struct MemoryService {
  struct Object {
    std::vector<std::byte> bytes{};
    std::vector<std::byte> before{};
    uint64_t version = 0;
  };
  std::map<std::string, Object> objects{};
  uint64_t versions = 0;
};

/// What happens to one request.
struct ObjectFault {
  enum Kind : uint8_t {
    kNone = 0,
    kNoAnswer,     // it is done, and its answer is lost
    kNotDone,      // it is not done, and there is no answer
    kRefuse,       // it is not done: credentials
    kStale,        // Get: what stood there before
    kFlip,         // Get: one bit is another one
    kCut,          // Get: the second half is missing
    kOtherObject,  // Get: the bytes of another name
    kLoseWrite,    // Put, Swap: it says that it is done, and is not
    kTwice,        // the answer comes twice
  };
  Kind kind = kNone;
  uint64_t delay_us = 0;
};

/// One machine's way to the service.
///
/// Threads: one
class MemoryObjects final : public Objects {
 public:
  using Script = std::function<ObjectFault(const ObjectRequest&)>;

  MemoryObjects(MemoryService& service, const Clock& clock, Script script = nullptr)
      : service_(service), clock_(clock), script_(std::move(script)) {}

  void Ask(ObjectRequest request) override;
  void Take(std::vector<ObjectReply>& replies, uint64_t wait_us) override;
  std::string where() const override { return "memory"; }

  /// From now on: what happens to each request.
  void SetScript(Script script) { script_ = std::move(script); }
  /// Requests of a kind that were asked so far.
  uint64_t asked(ObjectVerb verb) const;

 private:
  ObjectReply Do(ObjectRequest& request, ObjectFault::Kind fault);
  void Read(const ObjectRequest& request, ObjectFault::Kind fault, ObjectReply& reply) const;

  static constexpr uint64_t kNoAnswerUs = 1'000'000;  // after that there will be none

  MemoryService& service_;
  const Clock& clock_;
  Script script_;
  struct Coming {
    ObjectReply reply{};
    ObjectSink sink{};
  };
  std::multimap<uint64_t, Coming> coming_;  // by their time
  std::map<ObjectVerb, uint64_t> asked_;
};

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_MEMORY_OBJECTS_H_
