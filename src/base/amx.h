// Matrix tiles of Intel's processors (AMX): whether this process may use them.
#ifndef QUIRE_BASE_AMX_H_
#define QUIRE_BASE_AMX_H_

#include <cstdint>

namespace quire {

/// What tiles multiply.
struct AmxFeatures {
  bool int8 = false;
  bool bf16 = false;
};

/// The first call asks the system for permission; it holds for all threads of the process. None
/// where the processor has no tiles, or the system keeps them back (Linux before 5.16, alternate
/// signal stacks that are too small for them).
///
/// Threads: any
AmxFeatures UsableAmx();

/// The tile configuration of palette 1, as `ldtilecfg` reads it.
struct alignas(64) AmxConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};  // of tile 0 to 7
  uint8_t rows[16] = {};

  void Set(int tile, uint32_t tile_rows, uint32_t tile_row_bytes) {
    rows[tile] = static_cast<uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<uint16_t>(tile_row_bytes);
  }
};
static_assert(sizeof(AmxConfig) == 64);

#if defined(__x86_64__)

// Instructions are written out: functions that are compiled for an older processor have them too,
// behind UsableAmx.

/// Leaves zeros in all tiles.
inline void LoadAmxConfig(const AmxConfig& config) {
  asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
}

/// The tiles of one stretch of code: afterwards the thread has the configuration that it had
/// before, so libraries that keep theirs from call to call find it.
class AmxScope {
 public:
  AmxScope() { asm volatile("sttilecfg %0" : "=m"(before_)); }
  ~AmxScope() {
    if (before_.palette == 0) {
      asm volatile("tilerelease" : : : "memory");
    } else {
      LoadAmxConfig(before_);
    }
  }
  AmxScope(const AmxScope&) = delete;
  AmxScope& operator=(const AmxScope&) = delete;

 private:
  AmxConfig before_;
};

/// The rows of tile kTile from memory, `stride` bytes apart.
template <int kTile>
inline void LoadAmxTile(const void* from, uint64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
}

template <int kTile>
inline void StoreAmxTile(void* to, uint64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
}

template <int kTile>
inline void ClearAmxTile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

/// Adds the products of tiles kA [rows][pairs of k] and kB [pairs of k][columns], of bf16, to tile
/// kSum, of f32.
template <int kSum, int kA, int kB>
inline void MultiplyAmxBf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
}

#endif  // __x86_64__

}  // namespace quire

#endif  // QUIRE_BASE_AMX_H_
