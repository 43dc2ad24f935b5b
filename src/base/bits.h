// Integer arithmetic that sizes and strides need: rounding, overflow-checked products, bit order.
#ifndef QUIRE_BASE_BITS_H_
#define QUIRE_BASE_BITS_H_

#include <bit>
#include <concepts>
#include <cstdint>
#include <optional>
#include <type_traits>

namespace quire {

/// Least number of parts of `divisor` that hold `value`. Needs divisor > 0; never overflows.
template <std::unsigned_integral T>
constexpr T DivUp(T value, std::type_identity_t<T> divisor) {
  return static_cast<T>(value / divisor + (value % divisor != 0 ? 1 : 0));
}

/// Least multiple of `multiple` that is >= value. Needs multiple > 0 and a result that fits in T.
template <std::unsigned_integral T>
constexpr T RoundUp(T value, std::type_identity_t<T> multiple) {
  return static_cast<T>(DivUp(value, multiple) * multiple);
}

/// Greatest multiple of `multiple` that is <= value. Needs multiple > 0.
template <std::unsigned_integral T>
constexpr T RoundDown(T value, std::type_identity_t<T> multiple) {
  return static_cast<T>(value - value % multiple);
}

/// True for 1, 2, 4, ...; false for 0.
template <std::unsigned_integral T>
constexpr bool IsPow2(T value) {
  return std::has_single_bit(value);
}

/// a + b, or nothing when it does not fit in 64 bits.
constexpr std::optional<uint64_t> CheckedAdd(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

/// a * b, or nothing when it does not fit in 64 bits.
constexpr std::optional<uint64_t> CheckedMul(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

/// Product of any number of factors, or nothing when a partial product does not fit in 64 bits.
template <std::same_as<uint64_t>... Factors>
constexpr std::optional<uint64_t> CheckedProduct(Factors... factors) {
  std::optional<uint64_t> product = 1;
  ((product = product ? CheckedMul(*product, factors) : std::nullopt), ...);
  return product;
}

/// The low `bits` bits of `value` in reversed order: BitReverse(0b0011, 4) == 0b1100.
/// Needs bits <= 32; the bits above are ignored.
constexpr uint32_t BitReverse(uint32_t value, uint32_t bits) {
  uint32_t reversed = 0;
  for (uint32_t i = 0; i < bits; ++i) reversed |= ((value >> i) & 1u) << (bits - 1 - i);
  return reversed;
}

}  // namespace quire

#endif  // QUIRE_BASE_BITS_H_
