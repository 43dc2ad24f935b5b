// Other users of the simulated engine's cache: sequences of another owner, such as a training run,
// and pins.
#ifndef QUIRE_SIM_ENGINE_OUTSIDERS_H_
#define QUIRE_SIM_ENGINE_OUTSIDERS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.h"
#include "quire/cache.h"
#include "sim/engine_setup.h"

namespace quire::sim {

/// All of the default tenant.
///
/// Threads: one
class EngineOutsiders {
 public:
  EngineOutsiders(const EngineSetup& setup, Prng& prng) : setup_(setup), prng_(prng) {}

  /// Begins with a cache that was not used so far; `pinned_as` is the identity of the pinned
  /// blocks.
  void Begin(Cache& cache, const Identity& pinned_as);
  /// Ends all sequences and pins.
  void End();

  /// Tokens that the next sequence reserves.
  uint64_t SomeLength() { return 1 + prng_.NextBelow(200); }
  /// Opens a sequence that reserves room for so many tokens, and writes nothing.
  bool Take(uint64_t tokens);
  /// Ends one sequence.
  void GiveBack();
  /// Pins the cached blocks of a text, or (the same text again) takes a pin back.
  void Pin(const std::vector<TokenId>& text);
  /// What the tenant pinned was erased.
  void NoteErased() { pins_.clear(); }

  /// Most bytes that these sequences and pins hold.
  uint64_t bytes() const;
  /// What is wrong with a pin; empty: nothing.
  std::string WrongPin() const;

 private:
  struct Held {
    std::unique_ptr<Sequence> sequence;
    uint64_t blocks = 0;
  };

  AcquireRequest RequestFor(const std::vector<TokenId>& text) const;

  const EngineSetup& setup_;
  Prng& prng_;
  const Identity own_{.domain = {.name = "outside"}};
  const Identity* pinned_as_ = nullptr;
  Cache* cache_ = nullptr;
  std::vector<Held> held_;
  std::vector<std::vector<TokenId>> pins_;
};

}  // namespace quire::sim

#endif  // QUIRE_SIM_ENGINE_OUTSIDERS_H_
