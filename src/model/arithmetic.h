// The arithmetic classes of processors, which decide the bits of a result (docs/numerics.md).
#ifndef QUIRE_MODEL_ARITHMETIC_H_
#define QUIRE_MODEL_ARITHMETIC_H_

#include <array>
#include <cstdint>
#include <string_view>

#include "quire/error.h"

namespace quire::model {

enum class Arithmetic : uint8_t {
  kFma32,        // f32 multiply-adds: every processor, and devices
  kDot16Avx512,  // bf16 weights by the dot products of AVX512-BF16
  kDot16Amx,     // bf16 weights by the matrix tiles of AMX
};

inline constexpr std::array kArithmeticClasses = {Arithmetic::kFma32, Arithmetic::kDot16Avx512,
                                                  Arithmetic::kDot16Amx};

/// The value of NumericProfile::arithmetic: "fma32", "dot16-avx512", "dot16-amx".
std::string_view ArithmeticName(Arithmetic arithmetic);

/// Whether this processor, and its system, have the instructions.
bool IsUsable(Arithmetic arithmetic);

/// "dot16" is that of AMX, or else of AVX512-BF16.
///
/// Errors: kInvalidArgument no such name; kUnsupported this processor lacks the instructions
Result<Arithmetic> ChooseArithmetic(std::string_view name);

}  // namespace quire::model

#endif  // QUIRE_MODEL_ARITHMETIC_H_
