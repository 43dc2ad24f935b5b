// Going on with part of a prompt: which of its blocks a request keeps.
#ifndef QUIRE_SERVE_KEEP_H_
#define QUIRE_SERVE_KEEP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "model/forward.h"
#include "quire/geometry.h"
#include "quire/identity.h"
#include "quire/sequence.h"

namespace quire::serve {

/// What makes a block of the prompt worth keeping.
enum class KeepBy : uint8_t {
  kObserved = 1,     // attention that the last tokens of the prompt pay to it
  kAccumulated = 2,  // attention that all tokens of the prompt pay to it
  kRecent = 3,       // being one of the last: a sliding window with sinks
};
std::string_view KeepByName(KeepBy by);
std::optional<KeepBy> KeepByOf(std::string_view name);

/// With a share below 1 a request is private and approximate once its prompt has been read: it goes
/// on with the first blocks, the last ones and those most worth keeping. With blocks_max it holds
/// no more than so many blocks at any time, however long its text becomes: when they are full, it
/// goes on with the first ones, the latest quarter and, of the others, those that got most
/// attention so far (or that are latest), and an eighth is free again. It is private from the start
/// then.
struct KeepOptions {
  double share = 1.0;       // of the prompt's whole blocks, in (0, 1]; rounded up
  uint64_t blocks_max = 0;  // at least kBlocksMaxLeast; 0: as many as there are
  KeepBy by = KeepBy::kObserved;
  uint32_t observe_tokens = 32;  // kObserved: so many at the end of the prompt, which stay
  uint32_t sink_blocks = 1;

  static constexpr uint64_t kBlocksMaxLeast = 8;

  bool keeps_all() const { return share >= 1.0 && blocks_max == 0; }
  /// Blocks that it goes on with when all blocks_max are full.
  uint64_t blocks_after() const { return blocks_max - blocks_max / 8; }
};

/// Layers with a window decide themselves what they keep, so no part of a prompt can be chosen.
bool HasWindows(const Geometry& geometry);

/// Where the attention that counts begins, for a prompt of so many tokens.
uint64_t ObservedFrom(const KeepOptions& options, uint64_t prompt_tokens);

/// The whole blocks to keep of a prompt's, or of a text's with blocks_max, ascending: sinks and the
/// end, then by importance, of equal ones the later. What `profile` reads open (residual_tokens) is
/// kept in any case, with the sinks.
///
/// Shape: importance [whole_blocks] or fewer; not read where options.by is kRecent
std::vector<uint64_t> BlocksToKeep(const KeepOptions& options, uint64_t whole_blocks,
                                   const NumericProfile& profile,
                                   std::span<const double> importance);

/// Watches which blocks of a text get attention while it is read, and goes on with some.
///
/// Threads:  one
/// Lifetime: the options must outlive it
class KeptBlocks {
 public:
  explicit KeptBlocks(const KeepOptions& options) : options_(options) {}

  /// A prompt of so many tokens is read from its beginning. What was chosen once stands.
  void Begin(uint64_t prompt_tokens);
  /// What looks at the attention of the next step; null: nothing needs to.
  model::ImportanceObserver* observer() { return observer_ ? &*observer_ : nullptr; }
  /// What was seen before a step, and how to go back to it.
  std::optional<model::ImportanceObserver> ObservedSoFar() const { return observer_; }
  void ForgetObservedSince(std::optional<model::ImportanceObserver> before);

  /// At the end of the prompt, or when blocks_max are full: a sequence of what is to be kept of
  /// this one. After Begin it chooses what it chose before, so that an answer does not change.
  ///
  /// Errors: as Sequence::Select
  Result<std::unique_ptr<Sequence>> Select(Sequence& whole, const NumericProfile& profile);
  /// Whether that was done since Begin.
  bool selected() const { return selections_ > 0; }
  /// Tokens that this left out.
  uint64_t dropped_tokens() const { return dropped_tokens_; }

 private:
  const KeepOptions& options_;
  std::optional<model::ImportanceObserver> observer_;
  std::vector<std::vector<uint64_t>> choices_;  // in order
  size_t selections_ = 0;                       // since Begin
  uint64_t dropped_tokens_ = 0;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_KEEP_H_
