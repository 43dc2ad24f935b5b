// Calls a C function with its struct at every size that a caller can write there: it is read or
// filled as the growth rule of quire.h says, or refused with nothing written.
#ifndef QUIRE_EMBED_TEST_STRUCT_SIZES_H_
#define QUIRE_EMBED_TEST_STRUCT_SIZES_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "embed/test_util.h"

namespace quire::embed {

using Code = quire_code;
using Error = quire_error*;

inline constexpr size_t kBytesMax = 4096;  // of any struct, as quire.h says

/// A caller's struct with guard bytes after it.
template <typename T>
struct Guarded {
  static constexpr std::byte kGuard{0xFF};

  Guarded() { bytes.fill(kGuard); }
  T* get() { return reinterpret_cast<T*>(bytes.data()); }
  void SetSize(size_t size) { std::memcpy(bytes.data(), &size, sizeof(size)); }

  alignas(T) std::array<std::byte, 2 * kBytesMax> bytes;
};

/// Each byte from 0 to some more than this library's struct, and sizes that no caller means.
inline std::vector<size_t> Sizes(size_t known) {
  std::vector<size_t> sizes;
  for (size_t size = 0; size <= known + 16; ++size) sizes.push_back(size);
  for (const size_t size : {kBytesMax, kBytesMax + 1, size_t{100'000}, size_t{1} << 32,
                            size_t{0xCCCC'CCCC'CCCC}, SIZE_MAX - 7, SIZE_MAX}) {
    sizes.push_back(size);
  }
  return sizes;
}

/// What is read of `good` when the caller's struct is longer or shorter. `good` is taken by `call`
/// with QUIRE_OK; all bytes after the caller's size are ones, which no field takes for a default.
template <typename T>
void ReadsAtEverySize(const T& good, size_t first_bytes,
                      const std::function<Code(const T*, Error)>& call) {
  for (const size_t size : Sizes(sizeof(T))) {
    SCOPED_TRACE(size);
    const bool legal = size >= first_bytes && size <= kBytesMax;
    Guarded<T> caller;
    std::memcpy(caller.bytes.data(), &good, std::min(size, sizeof(T)));
    if (legal && size > sizeof(T)) {
      std::memset(caller.bytes.data() + sizeof(T), 0, size - sizeof(T));
    }
    caller.SetSize(size);
    const auto before = caller.bytes;
    quire_error error{};
    EXPECT_EQ(call(caller.get(), &error), legal ? QUIRE_OK : QUIRE_INVALID_ARGUMENT) << Show(error);
    EXPECT_EQ(std::string(error.message).find("->size is") != std::string::npos, !legal);
    EXPECT_EQ(caller.bytes, before);
    if (!legal || size <= sizeof(T)) continue;
    for (const size_t set : {sizeof(T), size - 1}) {
      caller.bytes = before;
      caller.bytes[set] = std::byte{1};
      EXPECT_EQ(call(caller.get(), &error), QUIRE_UNSUPPORTED) << "byte " << set;
    }
  }
}

/// All later fields of filled structs have eight bytes, so that what is filled is a multiple of 8.
template <typename T>
void FillsAtEverySize(size_t first_bytes, const std::function<Code(T*, Error)>& call) {
  Guarded<T> whole;
  whole.SetSize(sizeof(T));
  ASSERT_EQ(call(whole.get(), nullptr), QUIRE_OK);
  for (const size_t size : Sizes(sizeof(T))) {
    SCOPED_TRACE(size);
    const bool legal = size >= first_bytes && size <= kBytesMax;
    Guarded<T> caller;
    caller.SetSize(size);
    auto expected = caller.bytes;
    if (legal) {
      const size_t filled = std::min(size / 8 * 8, sizeof(T));
      std::memcpy(expected.data() + sizeof(size), whole.bytes.data() + sizeof(size),
                  filled - sizeof(size));
    }
    quire_error error{};
    EXPECT_EQ(call(caller.get(), &error), legal ? QUIRE_OK : QUIRE_INVALID_ARGUMENT) << Show(error);
    EXPECT_EQ(caller.bytes, expected);
  }
}

}  // namespace quire::embed

#endif  // QUIRE_EMBED_TEST_STRUCT_SIZES_H_
