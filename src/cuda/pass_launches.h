// Launches of a model's pass, which wait for each other and start together: a launch takes the host
// some microseconds, and a token of a small model is hundreds of kernels of a few microseconds.
// Passes repeat each other, so what comes a second time is a graph from then on.
#ifndef QUIRE_CUDA_PASS_LAUNCHES_H_
#define QUIRE_CUDA_PASS_LAUNCHES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/kernel_launch.h"

namespace quire::cuda {

/// Launches, one after the other, with copies of their arguments.
class LaunchList {
 public:
  void Add(const KernelLaunch& launch);
  void Clear();
  uint32_t size() const { return static_cast<uint32_t>(launches_.size()); }
  /// Its arguments are valid until the next Add or Clear.
  KernelLaunch operator[](uint32_t at) const;
  /// As many launches, each of the same kernel as there.
  bool HasKernelsOf(const LaunchList& other) const;
  /// Whether one launch has the size and the arguments that it has there.
  /// Needs: HasKernelsOf(other)
  bool IsSame(uint32_t at, const LaunchList& other) const;
  /// Puts one in the place of a launch of the same kernel.
  void Set(uint32_t at, const KernelLaunch& launch);

 private:
  struct alignas(kArgsAlignment) Line {
    std::byte bytes[kArgsAlignment];
  };
  struct Kept {
    KernelLaunch launch{};
    size_t line = 0;  // the first of its arguments
  };
  std::vector<Kept> launches_;
  std::vector<Line> lines_;
};

/// Launches that a device starts together, one after the other on kCompute.
class LaunchGraph {
 public:
  virtual ~LaunchGraph() = default;
  /// Later starts have this launch, of the same kernel, in the place of number `at`. False: it
  /// cannot be changed so, and the graph is of no use any more.
  virtual bool Set(uint32_t at, const KernelLaunch& launch) = 0;
  /// False: nothing has started, and the graph is of no use any more.
  virtual bool Start() = 0;
};

/// What starts launches on a device.
///
/// Threads: one at a time
class LaunchStarter {
 public:
  virtual ~LaunchStarter() = default;
  virtual void StartNow(const KernelLaunch& launch, Stream stream) = 0;
  /// Null: the device has none.
  virtual std::unique_ptr<LaunchGraph> MakeGraph(const LaunchList& launches) = 0;
};

/// The launches of one pass after the other. They start in lists: one ends where the pass asks for
/// something that is no launch, and where it has launched 16, 32 or a multiple of kListMax. (The
/// first ones are short, so that the device begins soon.) A list becomes a graph when the one
/// before that began at the same place of its pass had its kernels. Later lists with these kernels
/// start as the graph, of which only those launches are set anew that differ.
///
/// Threads: one at a time
class PassLaunches {
 public:
  static constexpr uint32_t kListMax = 64;

  /// The next launch is the first of a pass of this model: passes of one are compared with each
  /// other.
  /// Needs: none wait
  void Begin(const void* model) {
    model_ = model;
    begin_ = 0;
    is_cut_ = false;
  }
  /// Starts what waits when the list is full.
  void Add(const KernelLaunch& launch, LaunchStarter& starter);
  /// Starts what waits. `cut`: other passes go on at this place, so what starts now is no list of
  /// theirs.
  void StartAll(LaunchStarter& starter, bool cut);

 private:
  /// Lists that began at one place of a model's passes.
  struct Seen {
    LaunchList last{};  // the last one, unless it started as the graph
    LaunchList in_graph{};
    std::unique_ptr<LaunchGraph> graph{};
  };

  static constexpr uint32_t kFirstList = 16;
  static constexpr size_t kSeenMax = 256;

  static bool IsEnd(uint32_t launches) {
    return launches % kListMax == 0 || (launches >= kFirstList && std::has_single_bit(launches));
  }
  bool StartTogether(LaunchStarter& starter);
  bool SetChanged(Seen& seen) const;

  LaunchList waiting_;
  const void* model_ = nullptr;
  uint32_t begin_ = 0;   // launches of the pass before the list
  bool is_cut_ = false;  // the list before ended where other passes go on
  std::map<std::pair<const void*, uint32_t>, Seen> seen_;  // by model and launches before
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_PASS_LAUNCHES_H_
