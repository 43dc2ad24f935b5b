// What the simulated caches do besides prompts: forks, views, pins, retentions, selected blocks,
// contiguous sequences and trims.
#ifndef QUIRE_SIM_CACHE_GUESTS_H_
#define QUIRE_SIM_CACHE_GUESTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/prng.h"
#include "quire/cache.h"
#include "sim/cache_users.h"

namespace quire::sim {

/// Does these things with the cache of one side. It draws from a generator of its own, so that the
/// other events of a seed are the same without it.
///
/// Threads: one
class CacheGuests {
 public:
  explicit CacheGuests(uint64_t seed) : prng_(seed) {}

  /// How a sequence is opened for a prompt of so many tokens.
  SequenceOptions SomeOptions(uint64_t tokens);
  /// Does one of these things. Returns what is wrong; empty: nothing.
  std::string Act(Side& side, const std::array<Identity, 2>& identities);
  /// Ends its sequences, views and pins.
  void End(Side& side, const std::array<Identity, 2>& identities);

 private:
  struct Shown {
    BlockListView view;
    std::vector<std::byte> bytes;  // of its whole blocks, when it was made
  };
  struct Unpinned {
    UnleasedView view;
    std::vector<std::byte> bytes;
  };
  struct Pinned {
    Origin origin{};
    std::vector<TokenId> tokens{};
  };

  Live* AnyLive(Side& side);
  void Fork(Side& side);
  void Show(Side& side);
  std::string Look();
  void Retain(Side& side);
  void Select(Side& side);
  void Pin(Side& side, const std::array<Identity, 2>& identities);
  void OpenContiguous(Side& side, const std::array<Identity, 2>& identities);

  Prng prng_;
  std::vector<Shown> shown_;
  std::vector<Unpinned> unpinned_;
  std::vector<Pinned> pins_;
  std::vector<std::unique_ptr<Sequence>> held_;  // selected and contiguous ones
};

}  // namespace quire::sim

#endif  // QUIRE_SIM_CACHE_GUESTS_H_
