// Going on with part of a prompt: which of its blocks a request keeps.
#ifndef QUIRE_SERVE_KEEP_H_
#define QUIRE_SERVE_KEEP_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model/forward.h"

namespace quire::serve {

/// What makes a block of the prompt worth keeping.
enum class KeepBy : uint8_t {
  kObserved = 1,     // attention that the last tokens of the prompt pay to it
  kAccumulated = 2,  // attention that all tokens of the prompt pay to it
  kRecent = 3,       // being one of the last: a sliding window with sinks
};
std::string_view KeepByName(KeepBy by);

/// With a share below 1 a request is private and approximate once its prompt has been read: it goes
/// on with the first blocks, the last ones and those most worth keeping.
struct KeepOptions {
  double share = 1.0;  // of the prompt's whole blocks, in (0, 1]; rounded up
  KeepBy by = KeepBy::kObserved;
  uint32_t observe_tokens = 32;  // kObserved: so many at the end of the prompt, which stay
  uint32_t sink_blocks = 1;

  bool keeps_all() const { return share >= 1.0; }
};

/// Attention that a prompt pays to its own blocks, all layers together.
class KeepObserver final : public model::AttentionObserver {
 public:
  KeepObserver(const KeepOptions& options, uint64_t prompt_tokens)
      : from_(options.by == KeepBy::kObserved
                  ? prompt_tokens - std::min<uint64_t>(prompt_tokens, options.observe_tokens)
                  : 0) {}

  void OnAttention(uint32_t layer, const AttentionShape& shape, const AttentionTask& task,
                   Executor& executor) override;
  /// By block; those nobody has looked at are missing.
  std::span<const double> mass() const { return mass_; }

 private:
  const uint64_t from_;  // the first position whose attention counts
  std::vector<double> mass_;
};

/// The whole blocks to keep of a prompt's, ascending: sinks and the end, then by mass, of equal
/// ones the later.
///
/// Shape: mass [whole_blocks] or fewer; not read where options.by is kRecent
std::vector<uint64_t> BlocksToKeep(const KeepOptions& options, uint64_t whole_blocks,
                                   uint32_t block_tokens, std::span<const double> mass);

}  // namespace quire::serve

#endif  // QUIRE_SERVE_KEEP_H_
