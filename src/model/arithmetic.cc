#include "model/arithmetic.h"

#include <fmt/format.h>

#include "base/amx.h"

namespace quire::model {
namespace {

constexpr std::string_view kDot16 = "dot16";

bool HasAvx512Bf16() {
#if defined(__x86_64__)
  // The rest is what the kernels are compiled for beside it.
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

std::string_view NeedOf(Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kDot16Amx ? "tiles of AMX for bf16" : "AVX512-BF16";
}

}  // namespace

std::string_view ArithmeticName(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kFma32: return "fma32";
    case Arithmetic::kDot16Avx512: return "dot16-avx512";
    case Arithmetic::kDot16Amx: return "dot16-amx";
  }
  return {};
}

bool IsUsable(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kFma32: return true;
    case Arithmetic::kDot16Avx512: return HasAvx512Bf16();
    case Arithmetic::kDot16Amx: return UsableAmx().bf16;
  }
  return false;
}

Result<Arithmetic> ChooseArithmetic(std::string_view name) {
  for (const Arithmetic arithmetic : kArithmeticClasses) {
    if (name != ArithmeticName(arithmetic)) continue;
    if (IsUsable(arithmetic)) return arithmetic;
    return Fail(ErrorCode::kUnsupported,
                fmt::format("arithmetic {}: this processor, or its system, has no {}; use "
                            "--arithmetic fma32, which every processor has",
                            name, NeedOf(arithmetic)));
  }
  if (name != kDot16) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("arithmetic {}: a processor has fma32, dot16, dot16-amx, dot16-avx512", name));
  }
  for (const Arithmetic arithmetic : {Arithmetic::kDot16Amx, Arithmetic::kDot16Avx512}) {
    if (IsUsable(arithmetic)) return arithmetic;
  }
  return Fail(ErrorCode::kUnsupported,
              fmt::format("arithmetic dot16: this processor, or its system, has neither {} nor {}; "
                          "use --arithmetic fma32, which every processor has",
                          NeedOf(Arithmetic::kDot16Amx), NeedOf(Arithmetic::kDot16Avx512)));
}

}  // namespace quire::model
