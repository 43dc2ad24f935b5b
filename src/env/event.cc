#include "env/event.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "env/errno_error.h"

namespace quire {

Result<std::unique_ptr<Event>> Event::Create() {
  const int descriptor = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (descriptor < 0) return FailErrno(errno, "eventfd", "event");
  return std::unique_ptr<Event>(new Event(descriptor));
}

Event::~Event() { ::close(descriptor_); }

// A counter that is full is readable already, and one that is zero is clear.
void Event::Set() { (void)::eventfd_write(descriptor_, 1); }

void Event::Clear() {
  eventfd_t count = 0;
  (void)::eventfd_read(descriptor_, &count);
}

}  // namespace quire
