// The users of caches in the simulator, and what each holds at a time.
#ifndef QUIRE_SIM_CACHE_USERS_H_
#define QUIRE_SIM_CACHE_USERS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "env/clock.h"
#include "quire/cache.h"
#include "sim/cache_oracle.h"

namespace quire::sim {

/// Time passes with each reading, so that a wait for a time ends.
class PassingClock final : public Clock {
 public:
  explicit PassingClock(ManualClock& clock) : clock_(clock) {}
  uint64_t NowMicros() const override {
    QUIRE_CHECK_MSG(++looks_ < 20'000'000, "a call of the transfers never ends");
    clock_.Advance(20);
    return clock_.NowMicros();
  }
  void BeginStep() { looks_ = 0; }

 private:
  ManualClock& clock_;
  mutable uint64_t looks_ = 0;
};

/// Endless tokens: those of `base`, from `fork` on of a branch of it.
struct Text {
  uint64_t base = 0;
  uint64_t fork = 0;
  uint64_t branch = 0;

  std::vector<TokenId> First(uint64_t count) const {
    std::vector<TokenId> tokens(count);
    for (uint64_t t = 0; t < count; ++t) {
      const uint64_t where = MixNumbers(MixNumbers(7, base), t < fork ? 0 : branch);
      tokens[t] = static_cast<TokenId>(MixNumbers(where, t) % 50'000);
    }
    return tokens;
  }
};

/// A party that asks itself: any but a domain.
inline uint32_t AnyParty(Prng& prng) {
  while (true) {
    const auto party = static_cast<uint32_t>(prng.NextBelow(kParties.size()));
    if (!kParties[party].shared) return party;
  }
}

struct Live {
  Origin origin{};
  std::vector<TokenId> tokens{};  // committed
  uint64_t computed = 0;          // first block that is its own
  bool stale = false;             // it publishes nothing, or its tenant was erased since then
  bool approximate = false;       // it began with blocks in the lower precision of a ladder
  std::unique_ptr<Sequence> sequence{};
};

struct Loading {
  Origin origin{};
  std::vector<TokenId> tokens{};
  uint64_t resident = 0;  // when it began
  uint64_t recycled = 0;  // by then
  uint64_t damaged = 0;
  bool is_calm = false;  // no hurry, cancellation or erasure
  std::optional<Ticket> ticket{};
  bool by_layer = false;
  Live front{};  // the sequence that computes the beginning while a load brings the end, or begins
                 // with the layers that have come; without one nothing does
};

struct Side {  // a cache and its users
  std::unique_ptr<Cache> cache{};
  std::array<TenantId, kParties.size()> tenants{};
  std::vector<Live> lives{};
  std::vector<Loading> loads{};
  std::vector<Plan> plans{};

  void Close() {
    loads.clear();
    CloseButLoads();
  }
  void CloseButLoads() {
    for (Loading& load : loads) load.front = {};
    plans.clear();
    lives.clear();
  }
};

struct Expected {  // blocks that must be found after a restart
  Origin origin{};
  std::vector<TokenId> tokens{};
  uint64_t resident = 0;
};

}  // namespace quire::sim

#endif  // QUIRE_SIM_CACHE_USERS_H_
