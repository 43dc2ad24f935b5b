// Threads of the library, in a program that has threads and signals of its own.
#ifndef QUIRE_BASE_THREAD_H_
#define QUIRE_BASE_THREAD_H_

#include <csignal>
#include <thread>
#include <utility>

namespace quire {

/// While it lives, threads that the calling one starts have no signals but those that their own
/// instructions raise, and a profiler's. (A thread begins with the mask of the one that starts it.)
class SignalsForOthers {
 public:
  SignalsForOthers() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int kept : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGPROF, SIGSEGV, SIGSYS, SIGTRAP}) {
      sigdelset(&blocked, kept);
    }
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~SignalsForOthers() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsForOthers(const SignalsForOthers&) = delete;
  SignalsForOthers& operator=(const SignalsForOthers&) = delete;

 private:
  sigset_t before_;
};

/// A thread that runs `run`. A program's signals go to threads of its own: one that waits for them
/// in a call would not wake if this thread took them.
template <typename Run>
std::thread StartThread(Run&& run) {
  const SignalsForOthers signals;
  return std::thread(std::forward<Run>(run));
}

}  // namespace quire

#endif  // QUIRE_BASE_THREAD_H_
