// Threads under a schedule: one runs at a time, and a seed says which is next.
//
// A program that is linked with turns.cc has other mutexes than the library: wherever a lock is
// taken or released, wherever a thread waits, and at every sync point, another thread may run. So
// one seed is one order of what threads do, which can be run again, and many seeds are many orders,
// rare ones as often as common ones. Races between two locks are not tried: TSan looks for those.
#ifndef QUIRE_SIM_TURNS_TURNS_H_
#define QUIRE_SIM_TURNS_TURNS_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace quire::sim {

/// Runs bodies on threads of their own, one at a time.
///
/// Stops the program, with the seed on stderr, if no thread can run (a deadlock), or if they have
/// not ended after very many switches. The seed is also printed if anything else stops it.
///
/// Threads:  one makes it and runs it, while no other thread is there; one at a time
/// Lifetime: what the bodies refer to must outlive Run
class Turns {
 public:
  explicit Turns(uint64_t seed) : seed_(seed) {}

  void Add(std::function<void()> body) { bodies_.push_back(std::move(body)); }
  /// Returns when all have ended: how often it switched threads.
  uint64_t Run();

  /// Another thread may run. Nothing on a thread that is not in the schedule.
  static void Yield();

 private:
  const uint64_t seed_;
  std::vector<std::function<void()>> bodies_;
};

}  // namespace quire::sim

#endif  // QUIRE_SIM_TURNS_TURNS_H_
