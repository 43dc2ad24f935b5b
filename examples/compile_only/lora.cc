// Many adapters on one base model, some of them in training: what decides the bits is in the
// identity, so none can read another's blocks.
#include <quire/cache.h>

#include <string>
#include <vector>

namespace example {

using namespace quire;

Identity BaseIdentity(const Digest& weights, const Domain& tenant) {
  return {.weights = weights, .position_encoding = "rope:theta=1000000", .domain = tenant};
}

// A served adapter: its name and the version that was loaded.
Identity WithAdapter(Identity base, std::string name, uint64_t version) {
  base.adapter = std::move(name);
  base.adapter_version = version;
  return base;
}

struct Asked {
  uint64_t computed_tokens = 0;
  std::string_view reason;  // why not everything was found
};

// The same prompt with and without an adapter: two entries of one cache, one budget.
Result<std::vector<Asked>> Compare(Cache& cache, const Identity& base,
                                   std::span<const TokenId> prompt) {
  std::vector<Asked> answers;
  for (const Identity& identity : {base, WithAdapter(base, "legal-de", 7)}) {
    QUIRE_ASSIGN(const Plan plan, cache.Acquire({.identity = &identity, .tokens = prompt}));
    answers.push_back(
        {.computed_tokens = plan.missing_tokens(), .reason = MissReasonName(plan.reason())});
  }
  return answers;
}

// A training run: the adapter moves at every optimizer step, so its blocks are never shared, and
// those of an older step are never found.
Result<std::unique_ptr<Sequence>> OpenForTraining(Cache& cache, const Identity& base, uint64_t step,
                                                  std::span<const TokenId> batch) {
  const Identity identity = WithAdapter(base, "run-42", step);
  QUIRE_ASSIGN(Plan plan, cache.Acquire({.identity = &identity, .tokens = batch, .reuse = false}));
  return cache.Open(std::move(plan), {.on_full = OnFull::kReject, .publish = false});
}

}  // namespace example
