#include "bench/trace_tokens.h"

#include "base/prng.h"

namespace quire::bench {

void AppendTraceBlock(uint64_t id, std::vector<TokenId>& tokens) {
  constexpr uint64_t kSeed = 1;
  Prng prng(kSeed + id);
  for (uint32_t i = 0; i < kTraceBlockTokens; ++i) {
    tokens.push_back(static_cast<TokenId>(prng.NextBelow(150'000)));
  }
}

}  // namespace quire::bench
