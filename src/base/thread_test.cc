#include "base/thread.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

sigset_t MaskOfThisThread() {
  sigset_t mask;
  EXPECT_EQ(pthread_sigmask(SIG_BLOCK, nullptr, &mask), 0);
  return mask;
}

TEST(Threads, HaveNoSignalsOfTheProgram) {
  sigset_t theirs;
  StartThread([&] { theirs = MaskOfThisThread(); }).join();
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD, SIGALRM, SIGUSR1, SIGPIPE}) {
    EXPECT_EQ(sigismember(&theirs, signal), 1) << signal;
  }
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPROF}) {
    EXPECT_EQ(sigismember(&theirs, signal), 0) << signal;
  }
}

TEST(Threads, LeaveTheirStarterItsSignals) {
  sigset_t quit;
  sigemptyset(&quit);
  sigaddset(&quit, SIGQUIT);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &quit, nullptr), 0);
  StartThread([] {}).join();
  const sigset_t mine = MaskOfThisThread();
  EXPECT_EQ(sigismember(&mine, SIGTERM), 0);
  EXPECT_EQ(sigismember(&mine, SIGQUIT), 1);
  ASSERT_EQ(pthread_sigmask(SIG_UNBLOCK, &quit, nullptr), 0);
}

}  // namespace
}  // namespace quire
