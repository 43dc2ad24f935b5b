#include "cuda/pass_launches.h"

#include <algorithm>
#include <cstring>

#include "base/bits.h"

namespace quire::cuda {

void LaunchList::Add(const KernelLaunch& launch) {
  launches_.push_back({.launch = launch, .line = lines_.size()});
  lines_.resize(lines_.size() + DivUp(size_t{launch.args_bytes}, sizeof(Line)));
  if (launch.args_bytes == 0) return;
  std::memcpy(lines_.data() + launches_.back().line, launch.args, launch.args_bytes);
}

void LaunchList::Clear() {
  launches_.clear();
  lines_.clear();
}

KernelLaunch LaunchList::operator[](uint32_t at) const {
  KernelLaunch launch = launches_[at].launch;
  launch.args = lines_.data() + launches_[at].line;
  return launch;
}

bool LaunchList::HasKernelsOf(const LaunchList& other) const {
  return std::ranges::equal(launches_, other.launches_, [](const Kept& a, const Kept& b) {
    return a.launch.kernel == b.launch.kernel && a.launch.args_bytes == b.launch.args_bytes;
  });
}

bool LaunchList::IsSame(uint32_t at, const LaunchList& other) const {
  const KernelLaunch a = (*this)[at];
  const KernelLaunch b = other[at];
  if (a.grid != b.grid) return false;
  // Most are the same bytes, which takes least to find.
  return std::memcmp(a.args, b.args, a.args_bytes) == 0 || a.args_equal(a.args, b.args);
}

void LaunchList::Set(uint32_t at, const KernelLaunch& launch) {
  launches_[at].launch = launch;
  std::memcpy(lines_.data() + launches_[at].line, launch.args, launch.args_bytes);
}

void PassLaunches::Add(const KernelLaunch& launch, LaunchStarter& starter) {
  waiting_.Add(launch);
  if (IsEnd(begin_ + waiting_.size())) StartAll(starter, /*cut=*/false);
}

void PassLaunches::StartAll(LaunchStarter& starter, bool cut) {
  const uint32_t count = waiting_.size();
  if (count == 0) return;
  // A list that a cut has shortened, on either side, says nothing about other passes.
  if (cut || is_cut_ || !StartTogether(starter)) {
    for (uint32_t i = 0; i < count; ++i) starter.StartNow(waiting_[i], Stream::kCompute);
  }
  begin_ += count;
  is_cut_ = (cut || is_cut_) && !IsEnd(begin_);
  waiting_.Clear();
}

// False: nothing was started.
bool PassLaunches::StartTogether(LaunchStarter& starter) {
  const std::pair place(model_, begin_);
  if (seen_.size() == kSeenMax && !seen_.contains(place)) seen_.clear();
  Seen& seen = seen_[place];
  if (seen.graph != nullptr && waiting_.HasKernelsOf(seen.in_graph)) {
    if (!SetChanged(seen)) seen.graph = nullptr;
    seen.last.Clear();
  } else {
    const bool repeats = waiting_.HasKernelsOf(seen.last);
    seen.last = waiting_;
    if (!repeats) return false;  // to make a graph takes longer than its launches
    seen.graph = starter.MakeGraph(waiting_);
    if (seen.graph != nullptr) seen.in_graph = waiting_;
  }
  if (seen.graph != nullptr && !seen.graph->Start()) seen.graph = nullptr;
  return seen.graph != nullptr;
}

bool PassLaunches::SetChanged(Seen& seen) const {
  for (uint32_t i = 0; i < waiting_.size(); ++i) {
    if (waiting_.IsSame(i, seen.in_graph)) continue;
    if (!seen.graph->Set(i, waiting_[i])) return false;
    seen.in_graph.Set(i, waiting_[i]);
  }
  return true;
}

}  // namespace quire::cuda
