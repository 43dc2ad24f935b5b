#include "base/amx.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace quire {
namespace {

#if defined(__x86_64__)

// arch_prctl(2); the headers of older systems lack it.
constexpr long kRequestPermission = 0x1023;   // ARCH_REQ_XCOMP_PERM
constexpr long kTileData = 18;                // XFEATURE_XTILEDATA
constexpr uint32_t kOsSavesTiles = 3u << 17;  // of XCR0: configuration and data
constexpr uint32_t kOsXsave = 1u << 27;
constexpr uint32_t kBf16 = 1u << 22;
constexpr uint32_t kTiles = 1u << 24;
constexpr uint32_t kInt8 = 1u << 25;

AmxFeatures Detect() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsXsave) == 0) return {};
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kTiles) == 0) return {};
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & kOsSavesTiles) != kOsSavesTiles) return {};
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return {};
  return {.int8 = (d & kInt8) != 0, .bf16 = (d & kBf16) != 0};
}

#else

AmxFeatures Detect() { return {}; }

#endif

}  // namespace

AmxFeatures UsableAmx() {
  static const AmxFeatures features = Detect();
  return features;
}

}  // namespace quire
