// Moves of a context between a device's memory and the warm tier, beside plain copies; and what the
// host does for them, by a device that moves nothing.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "bench/bench.h"
#include "bench/context.h"
#include "cuda/backend.h"
#include "env/host_buffer.h"
#include "quire/env.h"

namespace quire::bench {
namespace {

/// A context on a device and below it, and as many bytes that are copied and nothing else.
struct DeviceMove {
  DeviceMove(cuda::Backend& of, uint32_t layers, uint64_t count)
      : backend(of),
        context([&of](auto& options) { of.Choose(options); }, layers, count),
        there(of.device()),
        here(of.device().host_allocator(), context.bytes(), "the floor of a bench") {
    std::ranges::fill(here.bytes(), std::byte{1});
    Must(there.Reserve(context.bytes()));
    Must(backend.device().Synchronize());  // it is there in the order of that stream
    CopyAll(CopyWay::kIn);
  }
  /// Seconds.
  double CopyAll(CopyWay way) {
    const bool in = way == CopyWay::kIn;
    const cuda::Stream stream = in ? cuda::Stream::kIn : cuda::Stream::kOut;
    void* const host = here.bytes().data();
    return Must(backend.device().Seconds(stream, [&] {
      backend.device().Copy(in ? host : there.as<void>(), in ? there.as<void>() : host,
                            {.bytes = context.bytes()}, stream);
    }));
  }
  std::string Note() const {
    const bool pinned = here.pinned() && context.store->stats().warm_pinned_bytes > 0;
    return fmt::format("one copy of as many bytes; {} memory", pinned ? "pinned" : "ordinary");
  }

  cuda::Backend& backend;
  Context context;
  cuda::DeviceBuffer there;
  HostBuffer here;
};

Result<Subject> Move(cuda::Backend& backend, uint32_t layers, uint64_t count, CopyWay way) {
  auto move = std::make_shared<DeviceMove>(backend, layers, count);
  const bool in = way == CopyWay::kIn;
  if (in) move->context.WriteBelow();
  return Timed{
      .unit = "GB/s",
      .amount = static_cast<double>(move->context.bytes()) * 1e-9,
      .slice = fmt::format("{} tokens of {} layers {}", count, layers,
                           in ? "come from the warm tier into the cache on a device: "
                                "Acquire, Load, Take"
                              : "go from the cache on a device into the warm tier: "
                                "published before, now Flush"),
      .work = [=](uint32_t) { return in ? move->context.Load() : move->context.WriteBelow(); },
      .floor = [=](uint32_t) { return move->CopyAll(way); },
      .note = [=] { return move->Note(); }};
}

/// Addresses that are never read or written.
class NoMemory final : public DeviceMemory {
 public:
  std::string_view name() const override { return "none"; }
  bool host_accessible() const override { return false; }
  Result<std::byte*> Reserve(uint64_t bytes) override { return memory_->Reserve(bytes); }
  Result<void> Commit(std::byte*, uint64_t) override { return {}; }
  void Decommit(std::byte*, uint64_t) override {}
  void Release(std::byte* base, uint64_t bytes) override { memory_->Release(base, bytes); }
  void Discard(std::byte*, uint64_t) override {}

 private:
  const std::unique_ptr<DeviceMemory> memory_ = MakeHostMemory(/*huge_pages=*/false);
};

/// A device for which nothing takes time: all of its bytes are zeros.
class NoOps final : public BlockOps {
 public:
  void WriteRows(const StreamLayout&, const RowsView&, uint32_t, TokensInBlock,
                 std::byte*) override {}
  void Encode(const StreamLayout&, const std::byte*, const StreamLayout&, std::byte*) override {}
  void Checksum(const std::byte*, const SlotPieces& pieces, uint32_t* crc) override {
    *crc = OfZeros(pieces.count * pieces.bytes);
  }
  void Zero(std::byte*, const SlotPieces&) override {}
  void Copy(const std::byte*, std::byte*, const SlotPieces&) override {}
  void CopyOut(const std::byte*, const SlotPieces&,
               std::span<const SlotSection> sections) override {
    Sum(sections);
  }
  void CopyIn(std::span<const SlotSection> sections, const SlotPieces&, std::byte*) override {
    Sum(sections);
  }
  void ReadRows(const StreamLayout&, const std::byte*, TokensInBlock, float*, int64_t) override {}
  std::unique_ptr<Fence> Record() override { return nullptr; }

 private:
  void Sum(std::span<const SlotSection> sections) {
    for (const SlotSection& section : sections) {
      if (section.crc != nullptr) *section.crc = OfZeros(section.bytes);
    }
  }
  uint32_t OfZeros(uint64_t bytes) {
    MutexLock lock(mutex_);
    const auto [sum, is_new] = sums_.try_emplace(bytes);
    if (is_new) sum->second = Crc32c(std::vector<std::byte>(bytes));
    return sum->second;
  }

  Mutex mutex_{LockRank::kLeaf};
  std::map<uint64_t, uint32_t> sums_ QUIRE_GUARDED_BY(mutex_);  // by bytes
};

/// A context on such a device, and a copy by the host of as many bytes.
struct NoMove {
  NoMove() : from(kCopyBytes, std::byte{1}), to(kCopyBytes) {}

  double CopyAll() {
    const double begin_s = WallSeconds();
    for (uint64_t done = 0; done < context.bytes();) {
      const uint64_t bytes = std::min(kCopyBytes, context.bytes() - done);
      std::memcpy(to.data(), from.data(), bytes);
      done += bytes;
    }
    return WallSeconds() - begin_s;
  }

  static constexpr uint64_t kCopyBytes = uint64_t{256} << 20;
  NoMemory memory;
  NoOps ops;
  Context context{[this](auto& options) {
                    if constexpr (requires { options.ops; }) {
                      options.memory = &memory;
                      options.ops = &ops;
                    }
                  },
                  kContextLayers, kContextTokens};
  std::vector<std::byte> from;
  std::vector<std::byte> to;
};

Result<Subject> HostOfMove(CopyWay way) {
  auto move = std::make_shared<NoMove>();
  const bool in = way == CopyWay::kIn;
  if (in) move->context.WriteBelow();
  return Timed{
      .unit = "GB/s",
      .amount = static_cast<double>(move->context.bytes()) * 1e-9,
      .slice = fmt::format(
          "{} tokens of {} layers {}; the device copies nothing", kContextTokens, kContextLayers,
          in ? "come from the warm tier: Acquire, Load, Take" : "go into the warm tier: Flush"),
      .work = [=](uint32_t) { return in ? move->context.Load() : move->context.WriteBelow(); },
      .floor = [=](uint32_t) { return move->CopyAll(); },
      .note =
          [] {
            return std::string(
                "one thread copies as many bytes; a link faster than "
                "this figure would wait for the host");
          }};
}

}  // namespace

std::vector<Case> DeviceTierCases(cuda::Backend& backend) {
  // The emulation of a device is for checks.
  const bool emulated = backend.device().target() == "host";
  const uint32_t layers = emulated ? 2 : kContextLayers;
  const uint64_t count = emulated ? 256 : kContextTokens;
  std::vector<Case> cases;
  for (const CopyWay way : {CopyWay::kOut, CopyWay::kIn}) {
    cases.push_back({.name = fmt::format("{}/f16/{}/{}",
                                         way == CopyWay::kOut ? "device_to_host" : "host_to_device",
                                         count, backend.device().target()),
                     .prepare = [=, &backend] { return Move(backend, layers, count, way); }});
  }
  return cases;
}

std::vector<Case> HostOfMoveCases() {
  return {{.name = "host_of_moves/out/16384", .prepare = [] { return HostOfMove(CopyWay::kOut); }},
          {.name = "host_of_moves/in/16384", .prepare = [] { return HostOfMove(CopyWay::kIn); }}};
}

}  // namespace quire::bench
