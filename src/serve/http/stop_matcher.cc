#include "serve/http/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace quire::serve::http {

std::string StopMatcher::Add(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    stopped_ = true;
    std::string before = held_.substr(0, first);
    held_.clear();
    return before;
  }
  size_t kept = 0;  // bytes at the end that a stop string may begin with
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > kept; --n) {
      if (held_.ends_with(std::string_view(stop).substr(0, n))) kept = n;
    }
  }
  std::string sure = held_.substr(0, held_.size() - kept);
  held_.erase(0, sure.size());
  return sure;
}

std::string StopMatcher::Finish() { return std::exchange(held_, {}); }

}  // namespace quire::serve::http
