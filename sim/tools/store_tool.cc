// A process that writes records to a real store until it is killed, and one that checks the records
// that are left. tests/e2e/test_store.py runs both.
//   store_tool write DIR FIRST COUNT LAYER_BYTES CAP   prints "ok N" for each durable record
//   store_tool check DIR LAYER_BYTES CAP               numbers on stdin; prints "open", and one
//                                                      JSON object at the end of its input
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <map>
#include <string>

#include "env/clock.h"
#include "env/files.h"
#include "tier/cold.h"
#include "tier/test_records.h"

namespace quire::tier {
namespace {

uint64_t Number(const char* text) { return std::strtoull(text, nullptr, 10); }

int Fail(const Error& error) {
  fmt::print(stderr, "store_tool: {}: {}\n", ErrorCodeName(error.code), error.message);
  return error.code == ErrorCode::kBusy ? 4 : 3;
}

PutRequest RequestOf(const TestRecord& record, uint64_t tag) {
  return {.identity = record.identity(),
          .layout = &record.layout(),
          .sections = record.sections(),
          .tag = tag};
}

int Write(ColdStore& store, const RecordLayout& layout, uint64_t first, uint64_t count) {
  std::vector<StoreCompletion> done;
  uint64_t next = first;
  uint64_t pending = 0;
  while (next < first + count || pending > 0) {
    while (next < first + count && pending < 64) {
      const TestRecord record(next, layout);
      const PutRequest request = RequestOf(record, next);
      store.Put({&request, 1});
      ++pending;
      ++next;
    }
    done.clear();
    store.Tick(done, 1000);
    pending -= done.size();
    for (const StoreCompletion& completion : done) {
      if (completion.outcome == StoreOutcome::kOk || completion.outcome == StoreOutcome::kPresent) {
        fmt::print("ok {}\n", completion.tag);
      }
    }
    std::fflush(stdout);
  }
  return 0;
}

struct Checked {
  uint64_t found = 0;
  uint64_t missing = 0;
  uint64_t damaged = 0;
  uint64_t wrong = 0;
};

void CheckOne(ColdStore& store, const RecordLayout& layout, uint64_t number, Checked& checked) {
  const TestRecord record(number, layout);
  std::vector<std::vector<std::byte>> sections;
  for (const auto section : record.sections()) sections.emplace_back(section.size());
  std::vector<std::span<std::byte>> out(sections.begin(), sections.end());
  const LoadRequest load = {.identity = record.identity(),
                            .layout = &layout,
                            .section_first = 0,
                            .section_count = static_cast<uint32_t>(out.size()),
                            .out = out,
                            .tag = number};
  store.Get({&load, 1}, 0);
  std::vector<StoreCompletion> done;
  while (done.empty()) store.Tick(done, 1000);
  if (done[0].outcome == StoreOutcome::kAbsent) ++checked.missing;
  if (done[0].outcome == StoreOutcome::kMiss) ++checked.damaged;
  if (done[0].outcome != StoreOutcome::kOk) return;
  ++checked.found;
  for (size_t i = 0; i < sections.size(); ++i) {
    if (std::ranges::equal(sections[i], record.sections()[i])) continue;
    ++checked.wrong;
    return;
  }
}

int Main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const bool writes = what == "write" && argc == 7;
  if (!writes && !(what == "check" && argc == 5)) {
    fmt::print(stderr, "store_tool: see the head of store_tool.cc\n");
    return 2;
  }
  const RecordLayout layout = TestLayout(16, 4, Number(argv[writes ? 5 : 3]));
  ColdOptions options = {.directory = argv[2], .bytes_cap = Number(argv[writes ? 6 : 4])};
  options.commit_interval_us = 50'000;
  const auto files = MakeFiles();
  if (!files) return Fail(files.error());
  const auto begin = std::chrono::steady_clock::now();
  const auto store = ColdStore::Open(options, **files, SystemClock());
  if (!store) return Fail(store.error());
  const std::chrono::duration<double, std::milli> open_ms =
      std::chrono::steady_clock::now() - begin;
  if (writes) return Write(**store, layout, Number(argv[3]), Number(argv[4]));
  fmt::print("open\n");
  std::fflush(stdout);
  Checked checked;
  uint64_t number = 0;
  while (std::cin >> number) CheckOne(**store, layout, number, checked);
  fmt::print(
      "{{\"found\":{},\"missing\":{},\"damaged\":{},\"wrong\":{},\"open_ms\":{:.1f},"
      "\"records\":{},\"queue\":\"{}\"}}\n",
      checked.found, checked.missing, checked.damaged, checked.wrong, open_ms.count(),
      (*store)->Stats().records, (*files)->queue_name());
  return 0;
}

}  // namespace
}  // namespace quire::tier

int main(int argc, char** argv) { return quire::tier::Main(argc, argv); }
