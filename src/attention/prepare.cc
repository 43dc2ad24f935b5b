#include <memory>
#include <vector>

#include "attention/shape.h"
#include "quire/attention.h"

namespace quire {
namespace {

/// The plan of a backend that has none of its own: each run is a call.
class PlanOfCalls final : public AttentionPlan {
 public:
  PlanOfCalls(AttentionBackend& backend, const AttentionShape& shape, const BlockTables& tables,
              std::span<const AttentionTask> tasks)
      : backend_(backend), shape_(shape), tables_(tables), tasks_(tasks.begin(), tasks.end()) {}

  Result<void> Run(const AttentionShape& shape, Executor& executor) override {
    QUIRE_TRY(attention::CheckPlanned(shape_, shape));
    return backend_.Attend(shape, tables_, tasks_, executor);
  }

 private:
  AttentionBackend& backend_;
  const AttentionShape shape_;
  const BlockTables tables_;
  const std::vector<AttentionTask> tasks_;
};

}  // namespace

Result<std::unique_ptr<AttentionPlan>> AttentionBackend::Prepare(
    const AttentionShape& shape, const BlockTables& tables, std::span<const AttentionTask> tasks,
    Executor&) {
  return std::make_unique<PlanOfCalls>(*this, shape, tables, tasks);
}

}  // namespace quire
