// Arrays that go to a device as one copy.
#ifndef QUIRE_CUDA_UPLOAD_H_
#define QUIRE_CUDA_UPLOAD_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "base/bits.h"

namespace quire::cuda {

class Upload {
 public:
  /// Where the array will be, from the beginning of the copy.
  template <typename T>
  uint64_t Add(const std::vector<T>& values) {
    return Add(values.data(), values.size());
  }
  template <typename T>
  uint64_t Add(const T* values, uint64_t count) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= kAlignment);
    Pad(kAlignment);
    const uint64_t at = bytes_.size();
    const auto* const first = reinterpret_cast<const std::byte*>(values);
    bytes_.insert(bytes_.end(), first, first + count * sizeof(T));
    return at;
  }
  template <typename T>
  uint64_t AddZeros(uint64_t count) {
    Pad(kAlignment);
    const uint64_t at = bytes_.size();
    bytes_.resize(at + count * sizeof(T));
    return at;
  }
  /// The next array begins at a multiple of so many bytes.
  void Pad(uint64_t multiple) { bytes_.resize(RoundUp(bytes_.size(), multiple)); }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  void Clear() { bytes_.clear(); }

 private:
  static constexpr size_t kAlignment = 16;
  std::vector<std::byte> bytes_;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_UPLOAD_H_
