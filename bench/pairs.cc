#include "bench/pairs.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <numeric>
#include <span>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/spin.h"
#include "bench/instructions.h"

namespace quire::bench {
namespace {

/// Less than this in half of the rounds is no longer worth waiting for.
constexpr double kSettled = 0.01;

double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Runs `each` once on every worker: whoever is first waits for all others.
void OnEveryWorker(Executor& executor, const std::function<void(uint32_t worker)>& each) {
  const uint32_t workers = executor.worker_count();
  std::atomic<uint32_t> arrived = 0;
  const auto all_arrived = [&] { return arrived.load() == workers; };
  executor.ParallelFor(workers, [&](uint32_t, uint32_t worker) {
    each(worker);
    ++arrived;
    while (!Spin(all_arrived)) std::this_thread::yield();
  });
}

/// The processors that this process may use.
const std::vector<int>& Processors() {
  static const std::vector<int> processors = [] {
    cpu_set_t allowed;
    std::vector<int> found;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return found;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) found.push_back(cpu);
    }
    return found;
  }();
  return processors;
}

/// Lets the calling thread run on these alone. Where the system refuses, it runs anywhere.
void StayOn(std::span<const int> processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : processors) CPU_SET(cpu, &set);
  static_cast<void>(sched_setaffinity(0, sizeof set, &set));
}

/// The best time of every place.
class BestTimes {
 public:
  explicit BestTimes(uint32_t places) : best_s_(places, std::numeric_limits<double>::infinity()) {}
  void Add(uint32_t place, double seconds) { best_s_[place] = std::min(best_s_[place], seconds); }
  double Sum() const { return std::accumulate(best_s_.begin(), best_s_.end(), 0.0); }

 private:
  std::vector<double> best_s_;
};

}  // namespace

double ThreadSeconds() {
  timespec now = {};
  QUIRE_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::unique_ptr<Executor> MakePinnedPool(uint32_t threads) {
  const std::span<const int> processors = Processors();
  StayOn(processors);
  auto pool = MakeThreadPool(threads);
  if (threads > 1 && pool->worker_count() <= processors.size()) {
    OnEveryWorker(*pool, [&](uint32_t worker) { StayOn(processors.subspan(worker, 1)); });
  }
  return pool;
}

double SecondsOf(Executor& executor, const std::function<void()>& body) {
  const bool alone = executor.worker_count() == 1;
  OnEveryWorker(executor, [](uint32_t) {});
  ToggleCounting();
  const double begin_s = alone ? ThreadSeconds() : WallSeconds();
  body();
  const double seconds = (alone ? ThreadSeconds() : WallSeconds()) - begin_s;
  ToggleCounting();
  return seconds;
}

double Median(std::vector<double> values) {
  QUIRE_CHECK(!values.empty());
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  if (values.size() % 2 == 1) return values[middle];
  return (values[middle - 1] + values[middle]) / 2;
}

Result<Turns> TakeTurns(uint32_t rounds_min, uint32_t places, const Slice& first,
                        const Slice& second) {
  QUIRE_CHECK(rounds_min > 0 && places > 0);
  BestTimes best_first(places), best_second(places);
  std::vector<double> ratios;
  std::vector<std::pair<double, double>> sums;  // after each round
  const auto settled = [&] {
    const auto& [first_s, second_s] = sums.back();
    const auto& [first_half_s, second_half_s] = sums[sums.size() / 2];
    return first_s >= first_half_s * (1 - kSettled) && second_s >= second_half_s * (1 - kSettled);
  };
  do {
    const bool second_begins = sums.size() % 2 == 1;  // neither always follows the other
    for (uint32_t place = 0; place < places; ++place) {
      double first_s = 0, second_s = 0;
      if (second_begins) {
        QUIRE_ASSIGN(second_s, second(place));
      }
      QUIRE_ASSIGN(first_s, first(place));
      if (!second_begins) {
        QUIRE_ASSIGN(second_s, second(place));
      }
      best_first.Add(place, first_s);
      best_second.Add(place, second_s);
      ratios.push_back(second_s / first_s);
    }
    sums.emplace_back(best_first.Sum(), best_second.Sum());
  } while (sums.size() < rounds_min ||
           (!settled() && sums.size() < uint64_t{rounds_min} * kRoundsFactorMax));
  return Turns{.first_s = best_first.Sum(),
               .second_s = best_second.Sum(),
               .median = Median(ratios),
               .pairs = static_cast<uint32_t>(ratios.size())};
}

double FigureOf(const Timed& timed, double seconds) {
  return timed.less_is_better ? seconds * timed.amount : timed.amount / seconds;
}

Result<Row> Measure(const Case& which, uint32_t rounds_min) {
  QUIRE_ASSIGN(const Subject subject, which.prepare());
  if (const auto* exact = std::get_if<Exact>(&subject)) {
    const double ratio =
        exact->less_is_better ? exact->floor / exact->value : exact->value / exact->floor;
    return Row{.name = which.name,
               .unit = exact->unit,
               .less_is_better = exact->less_is_better,
               .value = exact->value,
               .floor = exact->floor,
               .ratio = ratio,
               .median = ratio,
               .pairs = 0,
               .slice = {},
               .note = exact->note};
  }
  const Timed& timed = std::get<Timed>(subject);
  QUIRE_ASSIGN(const Turns turns, TakeTurns(rounds_min, timed.places, timed.work, timed.floor));
  return Row{.name = which.name,
             .unit = timed.unit,
             .less_is_better = timed.less_is_better,
             .value = FigureOf(timed, turns.first_s),
             .floor = FigureOf(timed, turns.second_s),
             .ratio = turns.second_s / turns.first_s,
             .median = turns.median,
             .pairs = turns.pairs,
             .slice = timed.slice,
             .note = timed.note ? timed.note() : std::string()};
}

}  // namespace quire::bench
