// What tests of the engine share.
#ifndef QUIRE_SERVE_TEST_UTIL_H_
#define QUIRE_SERVE_TEST_UTIL_H_

#include <cstdint>
#include <vector>

#include "base/prng.h"
#include "quire/ids.h"

namespace quire::serve {

/// Of the models that the tests draw at random.
inline constexpr uint32_t kTestVocab = 96;

inline std::vector<TokenId> SomeTokens(uint64_t count, uint64_t seed) {
  std::vector<TokenId> tokens(count);
  Prng prng(seed);
  for (TokenId& token : tokens) token = static_cast<TokenId>(prng.NextBelow(kTestVocab));
  return tokens;
}

}  // namespace quire::serve

#endif  // QUIRE_SERVE_TEST_UTIL_H_
