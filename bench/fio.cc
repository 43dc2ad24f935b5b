#include "bench/fio.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

namespace quire::bench {

Result<double> FioSeconds(const FioJob& job) {
  const std::string command = fmt::format(
      "fio --name=floor --filename='{}' --rw={} --bs={} --size={} --direct=1 --ioengine=io_uring "
      "--iodepth={} {} --output-format=json 2>/dev/null",
      job.file, job.writes ? "write" : "read", job.request_bytes, job.bytes, job.depth,
      job.writes ? "--end_fsync=1" : "");
  struct Close {
    void operator()(FILE* file) const { ::pclose(file); }
  };
  const std::unique_ptr<FILE, Close> output(::popen(command.c_str(), "re"));
  if (output == nullptr) return Fail(ErrorCode::kIo, "fio: cannot be started");
  std::string text;
  std::array<char, 4096> piece{};
  while (const size_t got = std::fread(piece.data(), 1, piece.size(), output.get())) {
    text.append(piece.data(), got);
  }
  if (text.empty()) {
    return Fail(ErrorCode::kNotFound, "fio: not installed; scripts/install-deps --dev installs it");
  }
  const auto report =
      nlohmann::json::parse(text.substr(text.find('{') == std::string::npos ? 0 : text.find('{')),
                            nullptr, /*allow_exceptions=*/false);
  const auto path = nlohmann::json::json_pointer(
      fmt::format("/jobs/0/{}/runtime", job.writes ? "write" : "read"));
  if (!report.is_object() || !report.contains(path) || report[path].get<double>() <= 0) {
    return Fail(ErrorCode::kIo, fmt::format("fio: {}: no result", job.file));
  }
  return report[path].get<double>() / 1000.0;
}

Result<uint32_t> BestFioDepth(FioJob job) {
  uint32_t best = 0;
  double best_s = 0;
  for (const uint32_t depth : {4u, 16u, 64u}) {
    job.depth = depth;
    QUIRE_ASSIGN(const double seconds, FioSeconds(job));
    if (best != 0 && seconds >= best_s) continue;
    best = depth;
    best_s = seconds;
  }
  return best;
}

}  // namespace quire::bench
