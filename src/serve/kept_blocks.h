// Going on with part of a prompt: watches which of its blocks get attention, and keeps some.
#ifndef QUIRE_SERVE_KEPT_BLOCKS_H_
#define QUIRE_SERVE_KEPT_BLOCKS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "model/forward.h"
#include "quire/sequence.h"
#include "serve/keep.h"

namespace quire::serve {

/// Threads:  one
/// Lifetime: the options must outlive it
class KeptBlocks {
 public:
  explicit KeptBlocks(const KeepOptions& options) : options_(options) {}

  /// A prompt of so many tokens is read from its beginning. What was chosen once stands.
  void Begin(uint64_t prompt_tokens);
  /// Who looks at the attention of the next step; null: nobody needs to.
  model::ImportanceObserver* observer() { return observer_ ? &*observer_ : nullptr; }
  /// What was seen before a step, and how to go back to it.
  std::optional<model::ImportanceObserver> ObservedSoFar() const { return observer_; }
  void ForgetObservedSince(std::optional<model::ImportanceObserver> before);

  /// At the end of the prompt: a sequence of what is to be kept of this one.
  ///
  /// Errors: as Sequence::Select
  Result<std::unique_ptr<Sequence>> Select(Sequence& whole, const NumericProfile& profile);
  /// Tokens that this left out.
  uint64_t dropped_tokens() const { return dropped_tokens_; }

 private:
  const KeepOptions& options_;
  std::optional<model::ImportanceObserver> observer_;
  std::optional<std::vector<uint64_t>> chosen_;
  uint64_t dropped_tokens_ = 0;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_KEPT_BLOCKS_H_
