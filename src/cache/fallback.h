// Codecs that cannot be used here, replaced by one that can.
#ifndef QUIRE_CACHE_FALLBACK_H_
#define QUIRE_CACHE_FALLBACK_H_

#include <cstdint>

#include "quire/cache.h"

namespace quire::cache {

/// Replaces each stream's codec that the arena layout, the stream or options.fallback_kernels do
/// not take by the next that they do: fp8, then int8, then f16; all other codecs that encode, int8,
/// then f16. Logs one warning that names them all. Where not even f16 would do, nothing changes:
/// the caller reports the reason. Returns the number of streams that fell back.
uint32_t ApplyFallback(CacheOptions& options);

}  // namespace quire::cache

#endif  // QUIRE_CACHE_FALLBACK_H_
