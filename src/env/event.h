// Something that happened, as a descriptor that poll, epoll and event loops can wait for.
#ifndef QUIRE_ENV_EVENT_H_
#define QUIRE_ENV_EVENT_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "env/file.h"
#include "quire/error.h"

namespace quire {

/// Threads: any
class Event {
 public:
  /// Errors: kIo the system has no descriptor left
  static Result<std::unique_ptr<Event>> Create() {
    const int descriptor = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (descriptor < 0) return FailErrno(errno, "eventfd", "event");
    return std::unique_ptr<Event>(new Event(descriptor));
  }
  ~Event() { ::close(descriptor_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// Readable from Set to Clear. Closed with the object.
  int descriptor() const { return descriptor_; }
  // A counter that is full is readable already, and one that is zero is clear.
  void Set() { (void)::eventfd_write(descriptor_, 1); }
  void Clear() {
    eventfd_t count = 0;
    (void)::eventfd_read(descriptor_, &count);
  }

 private:
  explicit Event(int descriptor) : descriptor_(descriptor) {}

  const int descriptor_;
};

}  // namespace quire

#endif  // QUIRE_ENV_EVENT_H_
