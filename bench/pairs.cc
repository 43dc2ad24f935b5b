#include "bench/pairs.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/check.h"

namespace quire::bench {
namespace {

constexpr double kFloorSpreadMax = 0.10;

}  // namespace

double Median(std::vector<double> values) {
  QUIRE_CHECK(!values.empty());
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  if (values.size() % 2 == 1) return values[middle];
  return (values[middle - 1] + values[middle]) / 2;
}

double ThreadSeconds() {
  timespec now = {};
  QUIRE_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool IsWanted(const Options& options, const std::string& name) {
  return name.find(options.cases) != std::string::npos;
}

Row MeasurePairs(const Options& options, const PairedCase& paired) {
  QUIRE_CHECK(options.pairs > 0);
  if (options.progress) options.progress(paired.name);
  std::vector<double> values, floors, ratios;
  for (uint32_t pair = 0; pair < options.pairs; ++pair) {
    values.push_back(paired.work());
    floors.push_back(paired.floor());
    ratios.push_back(paired.less_is_better ? floors.back() / values.back()
                                           : values.back() / floors.back());
  }
  const auto [least, most] = std::ranges::minmax(floors);
  const double spread = (most - least) / Median(floors);
  return {.name = paired.name,
          .value = Median(values),
          .unit = paired.unit,
          .floor = Median(floors),
          .ratio = Median(ratios),
          .note = spread > kFloorSpreadMax
                      ? fmt::format("void: floor spread {:.0f} %", spread * 100)
                      : std::string()};
}

void AddPairs(const Options& options, const PairedCase& paired, std::vector<Row>& rows) {
  if (IsWanted(options, paired.name)) rows.push_back(MeasurePairs(options, paired));
}

}  // namespace quire::bench
