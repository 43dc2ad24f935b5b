#include "bench/against.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>

#include "bench/instructions.h"

namespace quire::bench {
namespace {

/// Where in PATH a program is, or nothing.
bool IsInstalled(const std::string& program) {
  const char* const path = std::getenv("PATH");
  std::string rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    if (access((rest.substr(0, end) + "/" + program).c_str(), X_OK) == 0) return true;
    rest.erase(0, end + 1);
  }
  return false;
}

/// Some rounds of one case, or why it cannot be compared.
Result<void> CompareCase(Worker& ours, Worker& other, uint32_t rounds, Contest& contest,
                         Comparison& row) {
  const auto leave_out = [&](std::string why) -> Result<void> {
    row.note = std::move(why);
    contest.End();
    return {};
  };
  if (std::ranges::find(other.cases(), row.name) == other.cases().end()) {
    return leave_out("the other has no such case");
  }
  QUIRE_ASSIGN(const Worker::Prepared mine, ours.Prepare(row.name));
  row.unit = mine.unit;
  row.less_is_better = mine.less_is_better;
  const auto theirs = other.Prepare(row.name);
  if (!theirs) return leave_out(theirs.error().message);
  if (theirs->timed != mine.timed || theirs->places != mine.places || theirs->unit != mine.unit ||
      theirs->slice != mine.slice || (mine.timed && theirs->figure != mine.figure)) {
    return leave_out("the other measures something else under this name");
  }
  if (!mine.timed) {
    row.value = mine.figure;
    row.against = theirs->figure;
    row.ratio = row.less_is_better ? row.against / row.value : row.value / row.against;
    row.median = row.ratio;
    contest.End();
    return {};
  }
  QUIRE_TRY(contest.Run(
      rounds, mine.places, [&](uint32_t place) { return ours.Work(place); },
      [&](uint32_t place) { return other.Work(place); }));
  const Turns turns = contest.turns();
  const auto figure = [&](double seconds) {
    return mine.less_is_better ? seconds * mine.figure : mine.figure / seconds;
  };
  row.value = figure(turns.first_s);
  row.against = figure(turns.second_s);
  row.ratio = turns.second_s / turns.first_s;
  row.median = turns.median;
  row.pairs = turns.pairs;
  return {};
}

}  // namespace

Result<std::vector<Comparison>> Compare(Worker& ours, Worker& other, uint32_t rounds_min,
                                        const std::function<bool(const std::string&)>& wanted,
                                        const std::function<void(const std::string&)>& progress) {
  std::vector<Comparison> rows;
  for (const std::string& name : ours.cases()) {
    if (!wanted(name)) continue;
    rows.emplace_back();
    rows.back().name = name;
  }
  std::vector<Contest> contests(rows.size());
  const auto run = [&](size_t i, uint32_t rounds, Contest& contest) {
    progress(rows[i].name);
    return CompareCase(ours, other, rounds, contest, rows[i]);
  };
  QUIRE_TRY(InPasses(rounds_min, contests, run));
  return rows;
}

InstructionCounter::InstructionCounter(std::string folder, std::unique_ptr<Worker> worker)
    : folder_(std::move(folder)), worker_(std::move(worker)) {}

InstructionCounter::~InstructionCounter() {
  if (worker_ == nullptr) return;  // moved from
  worker_.reset();                 // it writes when it ends
  std::error_code ignored;         // files left in /tmp do no harm
  std::filesystem::remove_all(folder_, ignored);
}

Result<InstructionCounter> InstructionCounter::Start(const std::vector<std::string>& worker) {
  if (!CanCount()) {
    return Fail(
        ErrorCode::kUnsupported,
        "this build cannot be counted: valgrind/callgrind.h was missing (package valgrind)");
  }
  if (!IsInstalled("valgrind")) {
    return Fail(ErrorCode::kUnsupported, "valgrind is not installed (package valgrind)");
  }
  std::string folder = std::filesystem::temp_directory_path() / "quire-count-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    return Fail(ErrorCode::kIo, fmt::format("{}: {}", folder, std::strerror(errno)));
  }
  std::vector<std::string> command = {"valgrind",
                                      "--quiet",
                                      "--tool=callgrind",
                                      "--instr-atstart=no",
                                      "--collect-atstart=no",
                                      "--callgrind-out-file=" + folder + "/out"};
  command.insert(command.end(), worker.begin(), worker.end());
  auto started = Worker::Start(command);
  InstructionCounter counter(folder, nullptr);
  if (!started) {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    return std::unexpected(started.error());
  }
  counter.worker_ = *std::move(started);
  return counter;
}

Result<uint64_t> InstructionCounter::Count(const std::string& name) {
  QUIRE_ASSIGN(const Worker::Prepared prepared, worker_->Prepare(name));
  if (!prepared.timed) return Fail(ErrorCode::kUnsupported, name + " has no slices");
  QUIRE_TRY(worker_->Work(0));  // tables and scratch
  QUIRE_TRY(worker_->Count(1 % prepared.places));
  const std::string path = fmt::format("{}/out.{}", folder_, ++counts_);
  std::ifstream file(path);
  constexpr std::string_view kTotals = "totals: ";
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kTotals)) continue;
    uint64_t count = 0;
    std::from_chars(line.data() + kTotals.size(), line.data() + line.size(), count);
    if (count > 0) return count;
  }
  return Fail(ErrorCode::kIo, path + " holds no count");
}

}  // namespace quire::bench
