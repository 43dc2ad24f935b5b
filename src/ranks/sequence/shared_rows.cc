#include "ranks/sequence/shared_rows.h"

#include <algorithm>
#include <utility>

namespace quire::ranks::sequence {
namespace {

using model::Rows;

void Grow(std::vector<float>& values, uint64_t count) {
  if (values.size() < count) values.resize(count);
}

}  // namespace

SharedRows::SharedRows(std::unique_ptr<model::Operators> inner, Group& group,
                       const model::ModelConfig& config)
    : inner_(std::move(inner)),
      group_(group),
      hidden_(config.hidden),
      query_dim_(config.query_dim()),
      qkv_dim_(RowValues(config, Rows::kQkv)) {}

Result<void> SharedRows::Begin(std::span<const TokenId> tokens, std::span<const uint64_t> positions,
                               Executor& executor) {
  executor_ = &executor;
  tokens_ = tokens;
  positions_ = positions;
  share_ = {.rows = tokens.size(), .ranks = group_.size()};
  if (!share_.is_shared()) return inner_->Begin(tokens, positions, executor);
  Grow(own_, OwnFloats());
  Grow(gathered_, share_.ranks * OwnFloats());
  Grow(qkv_, share_.rows * qkv_dim_);
  Grow(queries_, share_.rows * query_dim_);
  Grow(attended_, share_.rows * query_dim_);
  return inner_->Begin(tokens.subspan(own_first(), own_count()),
                       positions.subspan(own_first(), own_count()), executor);
}

float* SharedRows::Data(Rows rows) {
  if (!share_.is_shared()) return inner_->Data(rows);
  switch (rows) {
    case Rows::kQkv: return qkv_.data();
    case Rows::kQueries: return queries_.data();
    case Rows::kAttended: return attended_.data();
    default: return inner_->Data(rows);
  }
}

void SharedRows::Rotate(const model::LayerWeights& layer, bool factors) {
  inner_->Rotate(layer, factors);
  if (!share_.is_shared()) return;
  const uint64_t kv_dim = qkv_dim_ - query_dim_;
  const float* const queries = inner_->Data(Rows::kQueries);
  const float* const qkv = inner_->Data(Rows::kQkv);
  for (uint64_t row = 0; row < own_count(); ++row) {
    float* const to = own_.data() + row * qkv_dim_;
    std::copy_n(queries + row * query_dim_, query_dim_, to);
    std::copy_n(qkv + row * qkv_dim_ + query_dim_, kv_dim, to + query_dim_);
  }
  const uint64_t floats = OwnFloats();
  const std::span<float> all = std::span(gathered_).first(share_.ranks * floats);
  // The group says it again in the attention that follows.
  if (!group_.AllGather(std::as_bytes(std::span(own_).first(floats)), std::as_writable_bytes(all)))
    return;
  executor_->ParallelFor(share_.ranks, [&](uint32_t rank, uint32_t /*worker*/) {
    const float* from = all.data() + rank * floats;
    for (uint64_t row = share_.FirstOf(rank); row < share_.FirstOf(rank + 1);
         ++row, from += qkv_dim_) {
      std::copy_n(from, query_dim_, queries_.data() + row * query_dim_);
      std::copy_n(from + query_dim_, kv_dim, qkv_.data() + row * qkv_dim_ + query_dim_);
    }
  });
}

void SharedRows::RoundAttended() {
  if (share_.is_shared()) {
    std::copy_n(attended_.data() + own_first() * query_dim_, own_count() * query_dim_,
                inner_->Data(Rows::kAttended));
  }
  inner_->RoundAttended();
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
  const float* const hidden = inner_->Data(Rows::kHidden);
  float* next = own.data();
  for (const uint32_t row : rows) {
    if (row < own_first() || row >= own_first() + own_count()) continue;
    next = std::copy_n(hidden + (row - own_first()) * hidden_, hidden_, next);
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
  if (!share_.is_shared() || rows.empty()) return inner_->Logits(rows, outputs);
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
  QUIRE_TRY(inner_->Begin(tokens, positions, *executor_));
  std::ranges::copy(last_, inner_->Data(Rows::kHidden));
  return inner_->Logits(numbers, outputs);
}

}  // namespace quire::ranks::sequence
