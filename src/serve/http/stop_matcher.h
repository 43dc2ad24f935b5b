// Finds stop strings in text as it is made, and holds back what may be the beginning of one.
#ifndef QUIRE_SERVE_HTTP_STOP_MATCHER_H_
#define QUIRE_SERVE_HTTP_STOP_MATCHER_H_

#include <string>
#include <string_view>
#include <vector>

namespace quire::serve::http {

/// Threads: one object on one thread at a time
/// Cost:    each Add looks at the new text and at most the longest stop string before it
class StopMatcher {
 public:
  /// None of `stops` is empty.
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Text that is surely no part of a stop string, of what was added so far and not given yet. A
  /// stop string and what follows it never come out; of several the one that begins first counts.
  std::string Add(std::string_view text);
  /// What was held back: the text ends here.
  std::string Finish();
  /// A stop string was found.
  bool stopped() const { return stopped_; }

 private:
  const std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_STOP_MATCHER_H_
