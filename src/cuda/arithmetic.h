// The arithmetic classes of devices (docs/numerics.md), which decide the bits of a result.
#ifndef QUIRE_CUDA_ARITHMETIC_H_
#define QUIRE_CUDA_ARITHMETIC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire::cuda {

enum class Arithmetic : uint8_t {
  kFma32,  // f32 multiply-adds: the bits of the processor
  kMma16,  // matrix instructions on numbers of sixteen bits: bits of their own on every target
};

/// "fma32", "mma16".
std::optional<Arithmetic> ParseArithmetic(std::string_view name);

/// The value of NumericProfile::arithmetic on a device with this target: "fma32"; "mma16.2-sm90" on
/// "sm_90", "mma16.2-emulated" on "host". The order of sums in an instruction depends on the
/// architecture.
std::string ArithmeticClass(Arithmetic arithmetic, std::string_view target);

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_ARITHMETIC_H_
