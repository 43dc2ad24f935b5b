#include "cuda/arithmetic.h"

namespace quire::cuda {

std::optional<Arithmetic> ParseArithmetic(std::string_view name) {
  if (name == "fma32") return Arithmetic::kFma32;
  if (name == "mma16") return Arithmetic::kMma16;
  return std::nullopt;
}

std::string ArithmeticClass(Arithmetic arithmetic, std::string_view target) {
  if (arithmetic == Arithmetic::kFma32) return "fma32";
  std::string name = "mma16.2-";  // the second form of docs/numerics.md section 5
  if (target == "host") return name + "emulated";
  for (const char c : target) {
    if (c != '_') name += c;
  }
  return name;
}

}  // namespace quire::cuda
