// Register tiles are arrays of vectors: unless every loop over them is unrolled they live in memory
// (g++ 12 does not do it by itself at -O2). For files that include Highway.
#ifndef QUIRE_BASE_UNROLL_H_
#define QUIRE_BASE_UNROLL_H_

#if defined(__clang__)
#define QUIRE_UNROLL _Pragma("clang loop unroll(full)")
#define QUIRE_UNROLL_FEW _Pragma("clang loop unroll_count(4)")
#else
#define QUIRE_UNROLL _Pragma("GCC unroll 64")
#define QUIRE_UNROLL_FEW _Pragma("GCC unroll 4")
#endif

/// A lambda with the body of a loop: called, its sums would live in memory.
#define QUIRE_INLINE HWY_ATTR __attribute__((always_inline))

#endif  // QUIRE_BASE_UNROLL_H_
