// Waiting for another thread without sleeping, as long as that pays.
#ifndef QUIRE_BASE_SPIN_H_
#define QUIRE_BASE_SPIN_H_

#include <chrono>

namespace quire {

/// About what waking a sleeping thread costs on a virtual machine: a thread that spins that
/// long and then sleeps never pays more than twice the better choice.
inline constexpr std::chrono::microseconds kSpinTime{60};

/// Tells the core that it is waiting in a loop.
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Looks at `done` for kSpinTime. False: time is up.
template <typename Done>
bool Spin(Done done) {
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 16; ++i) {
      if (done()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() - start < kSpinTime);
  return false;
}

}  // namespace quire

#endif  // QUIRE_BASE_SPIN_H_
