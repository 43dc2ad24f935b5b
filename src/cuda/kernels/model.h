// The arguments of the kernels of a model's pass (docs/numerics.md section 3): plain structs for
// the host's compiler and a device's. Rows are f32 values one after the other.
#ifndef QUIRE_CUDA_KERNELS_MODEL_H_
#define QUIRE_CUDA_KERNELS_MODEL_H_

#include <cstddef>
#include <cstdint>

namespace quire::cuda {

/// Threads of a block, of most of these kernels.
inline constexpr uint32_t kModelThreads = 128;
/// Threads of a block that has one head of one row.
inline constexpr uint32_t kHeadThreads = 64;
/// Threads of a block of the product: each has one output column and some rows.
inline constexpr uint32_t kMatmulThreads = 64;
inline constexpr uint32_t kMatmulRows = 16;

/// What values are rounded to: the numbers of ComputeType (quire/identity.h).
enum class Round : uint8_t { kF32 = 1, kF16 = 2, kBf16 = 3 };

/// Panels of sixteen columns, as model/matmul.h has them.
struct Panels {
  const std::byte* data = nullptr;  // [DivUp(n, 16)][k][16]
  uint32_t n = 0;
  uint32_t k = 0;
  Round type = Round::kF32;

  friend bool operator==(const Panels&, const Panels&) = default;
};

/// Of k, of products in matrix instructions: in shared memory at a time.
inline constexpr uint32_t kProductDepth = 64;

/// y[i][j] = Round(Chain over k of (x[i][k], w[j][k]) + bias[j]).
struct MatmulArgs {
  Panels w{};
  const float* x = nullptr;     // [rows, k]
  Round x_round = Round::kF32;  // of x, before it is multiplied
  const float* bias = nullptr;  // [n], or null
  float* y = nullptr;           // [rows, n]
  uint32_t rows = 0;
  Round round = Round::kF32;
  // In matrix instructions, in whose order the sum is then: x is rounded to the type of w, of 16
  // bits, and k is a multiple of kProductDepth.
  bool mma = false;
  uint32_t tile_rows = 0;  // of a block of threads, at least, if mma; 0: as fits `rows`

  friend bool operator==(const MatmulArgs&, const MatmulArgs&) = default;
};

/// hidden[i] = row tokens[i] of a matrix, widened.
struct EmbedArgs {
  Panels embedding{};
  const int32_t* tokens = nullptr;  // [rows]: the device's, or pinned memory of the host
  float* hidden = nullptr;          // [rows, k]
  uint32_t rows = 0;
  // Moves these too; none: angle_values is 0.
  const float* angles_from = nullptr;  // [rows, angle_values]: likewise
  float* angles = nullptr;
  uint32_t angle_values = 0;

  friend bool operator==(const EmbedArgs&, const EmbedArgs&) = default;
};

/// Rows that a launch picks by number.
inline constexpr uint32_t kPickedMax = 32;

/// x = Round(x + added), where something is added; then the RMS norm of rows. A block of threads
/// has one.
struct NormArgs {
  float* x = nullptr;             // [?, n]
  const float* added = nullptr;   // likewise; null: nothing
  const float* weight = nullptr;  // [n]
  float* out = nullptr;           // [rows, n]
  uint32_t n = 0;
  uint32_t rows = 0;
  float eps = 0.0f;
  Round round = Round::kF32;
  bool picks = false;  // rows of x; otherwise they are 0, 1, 2 ...
  uint32_t picked[kPickedMax] = {};

  friend bool operator==(const NormArgs&, const NormArgs&) = default;
};

/// The heads of one kind, queries or keys.
struct HeadKind {
  float* out = nullptr;            // rows out_stride apart: [heads, head_dim]; may be where x is
  const float* weight = nullptr;   // [head_dim], or null: no norm
  const float* factors = nullptr;  // [heads, head_dim], or null
  uint64_t out_stride = 0;         // values
  uint32_t heads = 0;

  friend bool operator==(const HeadKind&, const HeadKind&) = default;
};

/// RMS norm if there is one, then rotary position, then factors if there are, of every head of some
/// rows. A block of threads has one head of one row.
struct HeadsArgs {
  const float* x = nullptr;  // rows x_stride apart: heads of queries, then of keys, [., head_dim]
  HeadKind queries{};
  HeadKind keys{};
  const float* angles = nullptr;  // [rows, 2, head_dim / 2]
  uint64_t x_stride = 0;          // values
  uint32_t rows = 0;
  uint32_t head_dim = 0;
  float eps = 0.0f;
  Round round = Round::kF32;

  friend bool operator==(const HeadsArgs&, const HeadsArgs&) = default;
};

/// out[i][j] = Round(Round(g / (1 + Exp(-g))) * u), g and u being columns j and n + j.
struct GateArgs {
  const float* gate_up = nullptr;  // [rows, 2, n]
  float* out = nullptr;            // [rows, n]
  uint32_t n = 0;
  uint32_t rows = 0;
  Round round = Round::kF32;

  friend bool operator==(const GateArgs&, const GateArgs&) = default;
};

/// x = Round(x + y).
struct AddArgs {
  float* x = nullptr;
  const float* y = nullptr;
  uint64_t count = 0;
  Round round = Round::kF32;

  friend bool operator==(const AddArgs&, const AddArgs&) = default;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MODEL_H_
