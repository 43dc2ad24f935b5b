// Threads that take turns: one runs at a time, and a seed says who is next.
//
// A program that is linked with turns.cc has other mutexes than the library: wherever a lock is
// taken or given back, wherever a thread waits, and at every sync point, somebody else may go on.
// So one seed is one order of what threads do, which can be run again, and many seeds are many
// orders, seldom ones as often as common ones. What the processor does between two locks is not
// tried: that is TSan's.
#ifndef QUIRE_SIM_TURNS_TURNS_H_
#define QUIRE_SIM_TURNS_TURNS_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace quire::sim {

/// Runs bodies on threads of their own, one at a time.
///
/// Stops the program, with the seed on stderr, if nobody can go on (a deadlock), or if they have
/// not ended after very many turns. So does whatever stops it meanwhile.
///
/// Threads:  one makes it and runs it, while no other thread is there; one at a time
/// Lifetime: what the bodies refer to must outlive Run
class Turns {
 public:
  explicit Turns(uint64_t seed) : seed_(seed) {}

  void Add(std::function<void()> body) { bodies_.push_back(std::move(body)); }
  /// Returns when all have ended: how often another one went on.
  uint64_t Run();

  /// Another one may go on. Nothing on a thread that takes no turns.
  static void Yield();

 private:
  const uint64_t seed_;
  std::vector<std::function<void()>> bodies_;
};

}  // namespace quire::sim

#endif  // QUIRE_SIM_TURNS_TURNS_H_
