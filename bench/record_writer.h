// Records of a context's blocks: put into a store on a disk as fast as it takes them, and read
// back.
#ifndef QUIRE_BENCH_RECORD_WRITER_H_
#define QUIRE_BENCH_RECORD_WRITER_H_

#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/prng.h"
#include "bench/bench.h"
#include "bench/context.h"
#include "bench/must.h"
#include "env/clock.h"
#include "env/files.h"
#include "tier/cold.h"
#include "tier/sealed_store.h"

namespace quire::bench {

inline constexpr uint64_t kWriterBytes = uint64_t{512} << 20;

/// Records of the same shape put into a store as fast as it takes them.
struct RecordWriter {
  explicit RecordWriter(const StoreKeys& keys = {})
      : layout(Must(tier::RecordLayout::Create(
            kBlockTokensDefault,
            std::vector<tier::SectionSpec>(
                size_t{2} * kContextLayers,
                {.layer_count = 1,
                 .bytes = kBlockTokensDefault * kContextKvHeads * kContextDim * 2})))),
        bytes(layout.payload_bytes()),
        tokens(kBlockTokensDefault, 1) {
    Prng prng(3);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng.NextBelow(256));
    for (size_t i = 0; i < layout.sections().size(); ++i) {
      sections.push_back(std::span(bytes).subspan(layout.offset(i), layout.sections()[i].bytes));
    }
    files = Must(MakeFiles());
    const tier::ColdOptions options = {.directory = directory / "store",
                                       .bytes_cap = 3 * kWriterBytes,
                                       .reads_max = 64,
                                       .scrub_bytes_per_s = 0};
    if (keys.empty()) {
      store = Must(tier::ColdStore::Open(options, *files, SystemClock()));
    } else {
      store = Must(tier::SealedStore::Open(options, *files, SystemClock(), keys));
    }
  }

  double Write(uint64_t records) {
    const double begin_s = WallSeconds();
    std::vector<tier::StoreCompletion> done;
    uint64_t ended = 0;
    const auto turn = [&](uint64_t wait_us) {
      done.clear();
      store->Tick(done, wait_us);
      uint64_t busy = 0;
      for (const tier::StoreCompletion& each : done) {
        busy += each.outcome == tier::StoreOutcome::kBusy ? 1 : 0;
        QUIRE_CHECK(each.outcome == tier::StoreOutcome::kOk ||
                    each.outcome == tier::StoreOutcome::kBusy);
      }
      ended += done.size() - busy;
      return busy;
    };
    for (uint64_t put = 0; put < records;) {
      std::memcpy(key.data(), &next, sizeof(next));
      const tier::PutRequest request = {.identity = {.key = key, .tokens = tokens},
                                        .layout = &layout,
                                        .sections = sections,
                                        .tag = next};
      store->Put({&request, 1});
      const uint64_t busy = turn(0);
      ++next;
      if (busy == 0) {
        ++put;
      } else {
        turn(200);
      }
    }
    store->Flush(UINT64_MAX);
    while (ended < records + 1) turn(1000);
    return WallSeconds() - begin_s;
  }

  /// Seconds to read the last records back, in their order.
  double Read(uint64_t records) {
    constexpr uint64_t kAtOnce = 16;
    struct Slot {
      std::vector<std::byte> bytes{};
      std::vector<std::span<std::byte>> out{};
    };
    std::vector<Slot> slots(kAtOnce);
    for (Slot& slot : slots) {
      slot.bytes.resize(layout.payload_bytes());
      for (size_t i = 0; i < layout.sections().size(); ++i) {
        slot.out.push_back(
            std::span(slot.bytes).subspan(layout.offset(i), layout.sections()[i].bytes));
      }
    }
    const double begin_s = WallSeconds();
    std::vector<tier::StoreCompletion> done;
    uint64_t asked = 0;
    for (uint64_t ended = 0; ended < records;) {
      while (asked < records && asked < ended + kAtOnce) {
        const uint64_t number = next - records + asked;
        std::memcpy(key.data(), &number, sizeof(number));
        // One slot may be written twice at once: nothing looks at what is in it.
        const tier::LoadRequest load = {
            .identity = {.key = key, .tokens = tokens},
            .layout = &layout,
            .section_count = static_cast<uint32_t>(layout.sections().size()),
            .out = slots[asked % kAtOnce].out,
            .tag = number};
        store->Get({&load, 1}, 0);
        ++asked;
      }
      done.clear();
      store->Tick(done, 1000);
      for (const tier::StoreCompletion& each : done) {
        QUIRE_CHECK(each.outcome == tier::StoreOutcome::kOk);
      }
      ended += done.size();
    }
    return WallSeconds() - begin_s;
  }

  const Directory directory;
  const tier::RecordLayout layout;
  std::vector<std::byte> bytes;
  std::vector<TokenId> tokens;
  std::vector<std::span<const std::byte>> sections;
  Digest key{};
  uint64_t next = 1;
  std::unique_ptr<Files> files;
  std::unique_ptr<tier::Store> store;
};

/// Encrypted stores beside the slower of the disk and the cipher.
std::vector<Case> SealedTierCases();

}  // namespace quire::bench

#endif  // QUIRE_BENCH_RECORD_WRITER_H_
