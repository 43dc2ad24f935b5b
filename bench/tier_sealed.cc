// Encrypted stores: writing and reading as fast as the disk, or the cipher on one thread, whichever
// is slower.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "bench/fio.h"
#include "bench/record_writer.h"
#include "keys/cipher.h"

namespace quire::bench {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{32} << 10;  // of a layer's K or V of a block

/// Seconds of AES-256-GCM on one thread over as many bytes, in pieces as sections are.
double CipherSeconds(uint64_t bytes) {
  static std::vector<std::byte> from(64 << 20, std::byte{1});
  static std::vector<std::byte> to(from.size() + keys::kTagBytes);
  const keys::SecretKey key = keys::SecretKey::Random();
  const double begin_s = WallSeconds();
  keys::Cipher cipher(key.bytes());
  uint32_t number = 0;
  for (uint64_t done = 0; done < bytes; done += kPieceBytes) {
    const uint64_t at = done % from.size();
    cipher.Close(number++, {}, std::span<const std::byte>(from).subspan(at, kPieceBytes), &to[at]);
  }
  return WallSeconds() - begin_s;
}

Result<Subject> Sealed(bool writes) {
  struct State {
    std::unique_ptr<RecordWriter> writer;
    FioJob job{};
    double disk_s = 1e9;
    double cipher_s = 1e9;
  };
  auto state = std::make_shared<State>();
  state->writer =
      std::make_unique<RecordWriter>(StoreKeys{.key = std::vector<uint8_t>(keys::kKeyBytes, 7)});
  const uint64_t record_bytes = state->writer->layout.record_bytes();
  const uint64_t records = kWriterBytes / record_bytes;
  state->job = {.file = state->writer->directory / "fio",
                .writes = true,
                .bytes = records * record_bytes >> 20 << 20};
  QUIRE_TRY(FioSeconds(state->job));
  state->job.writes = writes;
  QUIRE_ASSIGN(state->job.depth, BestFioDepth(state->job));
  for (int run = 0; run < (writes ? 4 : 1); ++run) state->writer->Write(records);
  return Timed{.unit = "GB/s",
               .amount = static_cast<double>(state->job.bytes) * 1e-9,
               .slice = fmt::format("{} {} records of an encrypted store",
                                    writes ? "puts and flushes" : "reads", records),
               .work =
                   [state, records, writes](uint32_t) {
                     return writes ? state->writer->Write(records) : state->writer->Read(records);
                   },
               .floor =
                   [state](uint32_t) {
                     const double disk_s = Must(FioSeconds(state->job));
                     const double cipher_s = CipherSeconds(state->job.bytes);
                     state->disk_s = std::min(state->disk_s, disk_s);
                     state->cipher_s = std::min(state->cipher_s, cipher_s);
                     return std::max(disk_s, cipher_s);
                   },
               .note =
                   [state] {
                     const double gigabytes = static_cast<double>(state->job.bytes) * 1e-9;
                     return fmt::format(
                         "the slower of fio ({:.2f} GB/s, depth {}) and AES-256-GCM on one "
                         "thread ({:.2f} GB/s)",
                         gigabytes / state->disk_s, state->job.depth, gigabytes / state->cipher_s);
                   }};
}

}  // namespace

std::vector<Case> SealedTierCases() {
  return {{.name = "write_encrypted/f16", .prepare = [] { return Sealed(/*writes=*/true); }},
          {.name = "read_encrypted/f16", .prepare = [] { return Sealed(/*writes=*/false); }}};
}

}  // namespace quire::bench
