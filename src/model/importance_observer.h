// Adds up what a sequence attends to, over layers and steps.
#ifndef QUIRE_MODEL_IMPORTANCE_OBSERVER_H_
#define QUIRE_MODEL_IMPORTANCE_OBSERVER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "model/forward.h"

namespace quire::model {

/// Attention that the tokens of one sequence from a position on pay to each block, all layers
/// together (attention/importance.h).
class ImportanceObserver final : public AttentionObserver {
 public:
  explicit ImportanceObserver(uint64_t from_position) : from_(from_position) {}

  void OnAttention(uint32_t layer, const AttentionShape& shape, const BlockTables& tables,
                   const AttentionTask& task, Executor& executor) override;
  /// By block; those nobody has looked at are missing.
  std::span<const double> importance() const { return importance_; }

 private:
  const uint64_t from_;
  std::vector<double> importance_;
};

}  // namespace quire::model

#endif  // QUIRE_MODEL_IMPORTANCE_OBSERVER_H_
