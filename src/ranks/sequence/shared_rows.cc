#include "ranks/sequence/shared_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/bits.h"
#include "base/float_bits.h"

namespace quire::ranks::sequence {
namespace {

using model::Rows;

/// With fewer the weights would be read twice for too little.
constexpr uint32_t kRowsOfSliceMin = 64;

template <typename Value>
void Grow(std::vector<Value>& values, uint64_t count) {
  if (values.size() < count) values.resize(count);
}

// Values that bf16 has: what Rotate and Multiply leave of a model that computes in bf16.
void ToBf16(const float* from, uint64_t count, std::byte* to) {
  for (uint64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(from[i]);
    QUIRE_DCHECK((bits & 0xffff) == 0);
    const auto code = static_cast<uint16_t>(bits >> 16);
    std::memcpy(to + i * sizeof(code), &code, sizeof(code));
  }
}
void FromBf16(const std::byte* from, uint64_t count, float* to) {
  for (uint64_t i = 0; i < count; ++i) {
    uint16_t code = 0;
    std::memcpy(&code, from + i * sizeof(code), sizeof(code));
    to[i] = Bf16ToF32(code);
  }
}

void MultiplyBy(const std::vector<float>& factors, float* x) {
  for (size_t i = 0; i < factors.size(); ++i) x[i] *= factors[i];
}

}  // namespace

SharedRows::SharedRows(Slices slices, Group& group, const model::ModelConfig& config,
                       ComputeType compute)
    : inner_(std::move(slices)),
      group_(group),
      hidden_(config.hidden),
      query_dim_(config.query_dim()),
      qkv_dim_(RowValues(config, Rows::kQkv)),
      is_bf16_(compute == ComputeType::kBf16) {}

SharedRows::Run SharedRows::RunOf(uint32_t rank, uint32_t slice) const {
  const uint64_t first = share_.FirstOf(rank);
  const uint64_t count = share_.CountOf(rank);
  const uint64_t begin = count * slice / slices_;
  return {.first = first + begin, .count = count * (slice + 1) / slices_ - begin};
}

uint64_t SharedRows::SliceBytes() const {
  const uint64_t rows = DivUp(DivUp(share_.rows, uint64_t{share_.ranks}), uint64_t{slices_});
  return rows * qkv_dim_ * (is_bf16_ ? sizeof(uint16_t) : sizeof(float));
}

std::span<std::byte> SharedRows::Own(uint32_t slice) {
  return std::span(own_).subspan(slice * SliceBytes(), SliceBytes());
}

std::span<std::byte> SharedRows::Gathered(uint32_t slice) {
  const uint64_t bytes = share_.ranks * SliceBytes();
  return std::span(gathered_).subspan(slice * bytes, bytes);
}

Result<void> SharedRows::Begin(std::span<const TokenId> tokens, std::span<const uint64_t> positions,
                               Executor& executor) {
  executor_ = &executor;
  tokens_ = tokens;
  positions_ = positions;
  share_ = {.rows = tokens.size(), .ranks = group_.size()};
  slices_ = 1;
  if (!share_.is_shared()) return inner_[0]->Begin(tokens, positions, executor);
  if (share_.rows >= uint64_t{kRowsOfSliceMin} * share_.ranks * inner_.size()) {
    slices_ = static_cast<uint32_t>(inner_.size());
  }
  Grow(own_, slices_ * SliceBytes());
  Grow(gathered_, slices_ * share_.ranks * SliceBytes());
  Grow(qkv_, share_.rows * qkv_dim_);
  Grow(queries_, share_.rows * query_dim_);
  Grow(attended_, share_.rows * query_dim_);
  for (uint32_t slice = 0; slice < slices_; ++slice) {
    const Run run = OwnRun(slice);
    QUIRE_TRY(inner_[slice]->Begin(tokens.subspan(run.first, run.count),
                                   positions.subspan(run.first, run.count), executor));
  }
  return {};
}

float* SharedRows::Data(Rows rows) {
  if (!share_.is_shared()) return inner_[0]->Data(rows);
  switch (rows) {
    case Rows::kQkv: return qkv_.data();
    case Rows::kQueries: return queries_.data();
    case Rows::kAttended: return attended_.data();
    default: return nullptr;
  }
}

void SharedRows::Norm(const std::vector<float>& weight) {
  for (uint32_t slice = 0; slice < slices_; ++slice) inner_[slice]->Norm(weight);
}

void SharedRows::Multiply(const model::PackedMatrix& matrix, const std::vector<float>& bias, Rows x,
                          Rows y) {
  if (share_.is_shared() && y == Rows::kQkv) {
    qkv_matrix_ = &matrix;
    qkv_bias_ = &bias;
    return;
  }
  for (uint32_t slice = 0; slice < slices_; ++slice) inner_[slice]->Multiply(matrix, bias, x, y);
}

// Where the group fails it says so again in the attention that follows.
void SharedRows::Rotate(const model::LayerWeights& layer, bool factors) {
  if (!share_.is_shared()) return inner_[0]->Rotate(layer, factors);
  std::vector<Transfer> under_way;
  for (uint32_t slice = 0; slice < slices_; ++slice) {
    inner_[slice]->Multiply(*qkv_matrix_, *qkv_bias_, Rows::kNormed, Rows::kQkv);
    inner_[slice]->Rotate(layer, /*factors=*/false);  // with them they would not be bf16
    Pack(slice);
    auto begun = group_.BeginAllGather(Own(slice), Gathered(slice));
    if (!begun) return;
    under_way.push_back(*std::move(begun));
  }
  for (uint32_t slice = 0; slice < slices_; ++slice) {
    if (!under_way[slice].Wait()) return;
    Unpack(slice, layer, factors);
  }
}

// Queries, K and V of the own rows, for the others.
void SharedRows::Pack(uint32_t slice) {
  const uint64_t kv_dim = qkv_dim_ - query_dim_;
  const float* queries = inner_[slice]->Data(Rows::kQueries);
  const float* kv = inner_[slice]->Data(Rows::kQkv) + query_dim_;
  std::byte* to = Own(slice).data();
  const auto put = [&](const float* values, uint64_t count) {
    if (is_bf16_) {
      ToBf16(values, count, to);
      to += count * sizeof(uint16_t);
    } else {
      std::memcpy(to, values, count * sizeof(float));
      to += count * sizeof(float);
    }
  };
  for (uint64_t row = 0; row < OwnRun(slice).count; ++row) {
    put(queries + row * query_dim_, query_dim_);
    put(kv + row * qkv_dim_, kv_dim);
  }
}

void SharedRows::Unpack(uint32_t slice, const model::LayerWeights& layer, bool factors) {
  const uint64_t kv_dim = qkv_dim_ - query_dim_;
  const std::byte* const all = Gathered(slice).data();
  executor_->ParallelFor(share_.ranks, [&](uint32_t rank, uint32_t /*worker*/) {
    const std::byte* from = all + rank * SliceBytes();
    const auto take = [&](float* values, uint64_t count) {
      if (is_bf16_) {
        FromBf16(from, count, values);
        from += count * sizeof(uint16_t);
      } else {
        std::memcpy(values, from, count * sizeof(float));
        from += count * sizeof(float);
      }
    };
    const Run run = RunOf(rank, slice);
    for (uint64_t row = run.first; row < run.first + run.count; ++row) {
      float* const queries = queries_.data() + row * query_dim_;
      float* const keys = qkv_.data() + row * qkv_dim_ + query_dim_;
      take(queries, query_dim_);
      take(keys, kv_dim);
      if (!factors) continue;
      MultiplyBy(layer.query_factors, queries);
      MultiplyBy(layer.key_factors, keys);
    }
  });
}

void SharedRows::RoundAttended() {
  for (uint32_t slice = 0; slice < slices_; ++slice) {
    if (share_.is_shared()) {
      const Run run = OwnRun(slice);
      std::copy_n(attended_.data() + run.first * query_dim_, run.count * query_dim_,
                  inner_[slice]->Data(Rows::kAttended));
    }
    inner_[slice]->RoundAttended();
  }
}

void SharedRows::Gate() {
  for (uint32_t slice = 0; slice < slices_; ++slice) inner_[slice]->Gate();
}

void SharedRows::Add() {
  for (uint32_t slice = 0; slice < slices_; ++slice) inner_[slice]->Add();
}

void SharedRows::AddNorm(const std::vector<float>& weight) {
  for (uint32_t slice = 0; slice < slices_; ++slice) inner_[slice]->AddNorm(weight);
}

// What every rank has of them, in the order of the rows, to last_.
Result<void> SharedRows::GatherHidden(std::span<const uint32_t> rows) {
  const auto end_of = [&](uint32_t rank) {
    return static_cast<uint64_t>(std::ranges::lower_bound(rows, share_.FirstOf(rank + 1)) -
                                 rows.begin());
  };
  uint64_t most = 0;
  for (uint32_t rank = 0; rank < share_.ranks; ++rank) {
    most = std::max(most, end_of(rank) - (rank == 0 ? 0 : end_of(rank - 1)));
  }
  const uint64_t floats = most * hidden_;
  std::vector<float> own(floats);
  std::vector<float> all(share_.ranks * floats);
  float* next = own.data();
  for (uint32_t slice = 0; slice < slices_; ++slice) {
    const Run run = OwnRun(slice);
    for (const uint32_t row : rows) {
      if (row < run.first || row >= run.first + run.count) continue;
      next = std::copy_n(inner_[slice]->Data(Rows::kHidden) + (row - run.first) * hidden_, hidden_,
                         next);
    }
  }
  QUIRE_TRY(
      group_.AllGather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all))));
  last_.clear();
  for (uint32_t rank = 0; rank < share_.ranks; ++rank) {
    const uint64_t count = end_of(rank) - (rank == 0 ? 0 : end_of(rank - 1));
    const float* const from = all.data() + rank * floats;
    last_.insert(last_.end(), from, from + count * hidden_);
  }
  return {};
}

Result<void> SharedRows::Logits(std::span<const uint32_t> rows, std::span<float* const> outputs) {
  if (!share_.is_shared() || rows.empty()) return inner_[0]->Logits(rows, outputs);
  QUIRE_TRY(GatherHidden(rows));
  // A pass over these rows alone, which begins with what the layers left.
  std::vector<TokenId> tokens;
  std::vector<uint64_t> positions;
  std::vector<uint32_t> numbers;
  for (const uint32_t row : rows) {
    numbers.push_back(static_cast<uint32_t>(tokens.size()));
    tokens.push_back(tokens_[row]);
    positions.push_back(positions_[row]);
  }
  QUIRE_TRY(inner_[0]->Begin(tokens, positions, *executor_));
  std::ranges::copy(last_, inner_[0]->Data(Rows::kHidden));
  return inner_[0]->Logits(numbers, outputs);
}

}  // namespace quire::ranks::sequence
