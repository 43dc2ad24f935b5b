// Sequences that streamed and that nothing goes on with.
#ifndef QUIRE_SERVE_ENDINGS_H_
#define QUIRE_SERVE_ENDINGS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "quire/sequence.h"

namespace quire::serve {

/// Each of them ends, and gives back what it holds, when the store has what it computed: until then
/// others go on.
///
/// Threads: one
class Endings {
 public:
  /// One that does not stream ends now. Null: nothing happens.
  void Take(std::unique_ptr<Sequence> sequence) {
    if (sequence == nullptr || sequence->streamed() == nullptr) return;
    sequences_.push_back(std::move(sequence));
  }
  bool empty() const { return sequences_.empty(); }
  size_t size() const { return sequences_.size(); }
  /// Ends those that may end, waiting for the store so long for all of them. Whether any has.
  bool EndSome(uint64_t wait_us) {
    const size_t before = sequences_.size();
    return std::erase_if(sequences_, [&](const std::unique_ptr<Sequence>& sequence) {
             return sequence->MayEnd(wait_us / before);
           }) > 0;
  }

 private:
  std::vector<std::unique_ptr<Sequence>> sequences_;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_ENDINGS_H_
