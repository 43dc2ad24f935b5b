// Processes and threads around the engine: children of fork(), where the engine's threads are not
// and its locks may be held for good, and threads that are at work while Python ends.
#ifndef QUIRE_PYTHON_PROCESS_H_
#define QUIRE_PYTHON_PROCESS_H_

#include <Python.h>
#include <cxxabi.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace quire::python {

inline std::atomic<uint32_t> fork_count = 0;  // between the first process of the module and this

/// Once, when the module is loaded.
inline void CountForks() {
  pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1, std::memory_order_relaxed); });
}

/// Where something was made: in this process, or in one that this was forked from.
class Birthplace {
 public:
  bool is_here() const { return forks_ == fork_count.load(std::memory_order_relaxed); }

 private:
  uint32_t forks_ = fork_count.load(std::memory_order_relaxed);
};

/// Shares what the engine made. A forked child never ends it: that would wait for threads that only
/// the parent has, and write to the parent's files. The child's copy of the memory goes with it.
/// `needed` live at least as long.
template <typename T, typename... Needed>
std::shared_ptr<T> Share(std::unique_ptr<T> made, Needed... needed) {
  return {made.release(), [birthplace = Birthplace(), needed...](T* ended) {
            if (birthplace.is_here()) delete ended;
          }};
}

/// Lets other threads of Python run as long as it lives.
///
/// While Python ends, it ends each thread that asks for the GIL by unwinding its stack, and the
/// process aborts where that meets a destructor. Such a thread stays here instead, as it does from
/// Python 3.14 on; it holds no lock of the engine any more, and ends with the process.
class GilFree {
 public:
  GilFree() : thread_(PyEval_SaveThread()) {}
  ~GilFree() {
    try {
      PyEval_RestoreThread(thread_);
    } catch (const abi::__forced_unwind&) {
      while (true) pause();
    }
  }
  GilFree(const GilFree&) = delete;
  GilFree& operator=(const GilFree&) = delete;

 private:
  PyThreadState* const thread_;
};

}  // namespace quire::python

#endif  // QUIRE_PYTHON_PROCESS_H_
