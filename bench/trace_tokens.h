// How a block of a recorded request becomes a block of the index.
#ifndef QUIRE_BENCH_TRACE_TOKENS_H_
#define QUIRE_BENCH_TRACE_TOKENS_H_

#include <cstdint>
#include <vector>

#include "quire/identity.h"

namespace quire::bench {

inline constexpr uint32_t kTraceBlockTokens = 16;

/// Appends kTraceBlockTokens tokens that the id alone decides.
void AppendTraceBlock(uint64_t id, std::vector<TokenId>& tokens);

}  // namespace quire::bench

#endif  // QUIRE_BENCH_TRACE_TOKENS_H_
