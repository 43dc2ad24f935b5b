// How much a test tries: little with every change, all of it every night.
#ifndef QUIRE_BASE_THOROUGH_H_
#define QUIRE_BASE_THOROUGH_H_

#include <cstdint>
#include <cstdlib>

namespace quire {

/// `all` cases where QUIRE_THOROUGH is set, as `make thorough` does; otherwise `some` of them.
inline uint64_t Thorough(uint64_t some, uint64_t all) {
  return std::getenv("QUIRE_THOROUGH") != nullptr ? all : some;
}

}  // namespace quire

#endif  // QUIRE_BASE_THOROUGH_H_
