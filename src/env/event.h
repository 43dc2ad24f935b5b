// Something that happened, as a descriptor that poll, epoll and event loops can wait for.
#ifndef QUIRE_ENV_EVENT_H_
#define QUIRE_ENV_EVENT_H_

#include <memory>

#include "quire/error.h"

namespace quire {

/// Threads: any
class Event {
 public:
  /// Errors: kIo the system has no descriptor left
  static Result<std::unique_ptr<Event>> Create();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// Readable from Set to Clear. Closed with the object.
  int descriptor() const { return descriptor_; }
  void Set();
  void Clear();

 private:
  explicit Event(int descriptor) : descriptor_(descriptor) {}

  const int descriptor_;
};

}  // namespace quire

#endif  // QUIRE_ENV_EVENT_H_
