// Going on with part of a prompt: which of its blocks a request keeps.
#ifndef QUIRE_SERVE_KEEP_H_
#define QUIRE_SERVE_KEEP_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "quire/geometry.h"
#include "quire/identity.h"

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

/// Layers with a window decide themselves what they keep, so no part of a prompt can be chosen.
bool HasWindows(const Geometry& geometry);

/// Where the attention that counts begins, for a prompt of so many tokens.
uint64_t ObservedFrom(const KeepOptions& options, uint64_t prompt_tokens);

/// The whole blocks to keep of a prompt's, ascending: sinks and the end, then by importance, of
/// equal ones the later. What `profile` reads open (residual_tokens) is kept in any case, with the
/// sinks.
///
/// Shape: importance [whole_blocks] or fewer; not read where options.by is kRecent
std::vector<uint64_t> BlocksToKeep(const KeepOptions& options, uint64_t whole_blocks,
                                   const NumericProfile& profile,
                                   std::span<const double> importance);

}  // namespace quire::serve

#endif  // QUIRE_SERVE_KEEP_H_
