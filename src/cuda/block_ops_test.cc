// The block operations of devices, run on the host: they give the same bytes as the host's
// operations.
#include "cuda/block_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "base/bits.h"
#include "base/hash.h"
#include "base/prng.h"
#include "codec/planes.h"
#include "cuda/test_device.h"
#include "quire/geometry.h"

namespace quire::cuda {
namespace {

StreamLayout Layout(Codec codec, InnerAxis inner, uint32_t dim, uint32_t block_tokens,
                    bool rotated) {
  StreamLayout layout{.codec = codec,
                      .inner = inner,
                      .heads = 3,
                      .dim = dim,
                      .block_tokens = block_tokens,
                      .offset_bytes = 64,
                      .rotated = rotated};
  layout.head_stride_bytes = codec::PlaneBytes(codec, inner, dim, block_tokens) + 32;
  layout.scale_offset_bytes = layout.offset_bytes + layout.heads * layout.head_stride_bytes;
  layout.scale_head_stride_bytes = codec::ScaleBytes(codec, block_tokens);
  return layout;
}

uint64_t SlotBytes(const StreamLayout& layout) {
  return layout.scale_offset_bytes + layout.heads * layout.scale_head_stride_bytes + 64;
}

class CudaBlockOps : public testing::Test {
 protected:
  void SetUp() override {
    NeedDevice(device_.get());
    if (device_ == nullptr) return;
    ops_ = Must(MakeBlockOps(*device_));
  }

  std::vector<std::byte> SomeBytes(uint64_t count) {
    std::vector<std::byte> bytes(count);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng_.Next64());
    return bytes;
  }

  /// Ordinary values, and now and then those at which formats differ.
  std::vector<float> SomeValues(size_t count) {
    constexpr float kOdd[] = {0.0f,     -0.0f,  65519.0f, -7e4f,   1e-8f, 3e-5f,
                              0x1p117f, -3e38f, 448.0f,   57344.f, 1.5f,  2.5f};
    std::vector<float> values(count);
    for (float& value : values) {
      value = prng_.NextChance(40) ? kOdd[prng_.NextBelow(std::size(kOdd))]
                                   : prng_.NextFloat(-3.0f, 3.0f);
    }
    return values;
  }

  /// Runs work(slot), where the device has a slot's bytes; afterwards they are the result.
  template <typename Work>
  void OnDevice(std::vector<std::byte>& slot, const Work& work) {
    Mirror mirror(*device_, slot.data(), slot.size());
    work(mirror.there());
    for (const CopyWay way : {CopyWay::kIn, CopyWay::kOut}) {
      Must(ops_->SynchronizeCopies(way));
    }
    Must(ops_->Synchronize());
    mirror.Fetch();
  }

  std::unique_ptr<Device> device_ = MakeTestDevice();
  std::unique_ptr<BlockOps> ops_;
  BlockOps& host_ = HostBlockOps();
  Prng prng_{23};
};

TEST_F(CudaBlockOps, RowsAreStoredAsTheHostStoresThem) {
  for (const Codec codec : {Codec::kF32, Codec::kF16, Codec::kBf16}) {
    for (const InnerAxis inner : {InnerAxis::kToken, InnerAxis::kDim}) {
      for (const uint32_t dim : {1u, 24u, 96u, 128u, 200u}) {
        for (const bool rotated : {false, true}) {
          const StreamLayout stream = Layout(codec, inner, dim, 32, rotated);
          const std::vector<float> values = SomeValues(size_t{40} * (stream.heads * dim + 5));
          const RowsView rows{.data = values.data(),
                              .dtype = Codec::kF32,
                              .token_stride = static_cast<int64_t>(stream.heads * dim + 5),
                              .head_stride = static_cast<int64_t>(dim)};
          std::vector<std::byte> want = SomeBytes(SlotBytes(stream));
          std::vector<std::byte> got = want;
          const TokensInBlock at{.begin = 5, .count = 20};
          host_.WriteRows(stream, rows, 3, at, want.data());
          OnDevice(got, [&](std::byte* slot) { ops_->WriteRows(stream, rows, 3, at, slot); });
          ASSERT_EQ(got, want) << CodecName(codec) << " dim " << dim << " rotated " << rotated;
          std::vector<float> read_want(stream.heads * (at.count * dim + 7), 9.0f);
          std::vector<float> read_got = read_want;
          const auto stride = static_cast<int64_t>(at.count * dim + 7);
          host_.ReadRows(stream, want.data(), at, read_want.data(), stride);
          OnDevice(got, [&](std::byte* slot) {
            ops_->ReadRows(stream, slot, at, read_got.data(), stride);
          });
          ASSERT_EQ(std::memcmp(read_got.data(), read_want.data(), read_want.size() * 4), 0)
              << CodecName(codec) << " dim " << dim << " rotated " << rotated;
        }
      }
    }
  }
}

TEST_F(CudaBlockOps, RowsOfTheirOwnDtypeAreCopiedBitForBit) {
  for (const Codec codec : {Codec::kF16, Codec::kBf16}) {
    const StreamLayout stream = Layout(codec, InnerAxis::kToken, 24, 16, false);
    const std::vector<std::byte> values = SomeBytes(16 * 3 * 24 * 2);  // NaNs with payloads too
    const RowsView rows{
        .data = values.data(), .dtype = codec, .token_stride = 72, .head_stride = 24};
    std::vector<std::byte> want = SomeBytes(SlotBytes(stream));
    std::vector<std::byte> got = want;
    host_.WriteRows(stream, rows, 0, {.begin = 0, .count = 16}, want.data());
    OnDevice(got, [&](std::byte* slot) {
      ops_->WriteRows(stream, rows, 0, {.begin = 0, .count = 16}, slot);
    });
    EXPECT_EQ(got, want) << CodecName(codec);
  }
}

TEST_F(CudaBlockOps, RowsOfTheDeviceAreReadThere) {
  const StreamLayout stream = Layout(Codec::kF16, InnerAxis::kToken, 24, 16, false);
  const std::vector<float> values = SomeValues(16 * 3 * 24);
  auto* const there = static_cast<float*>(device_->Allocate(values.size() * 4).value());
  device_->CopyIn(values.data(), values.size() * 4, there);
  std::vector<std::byte> want = SomeBytes(SlotBytes(stream));
  std::vector<std::byte> got = want;
  RowsView rows{.data = values.data(), .token_stride = 72, .head_stride = 24};
  host_.WriteRows(stream, rows, 2, {.begin = 1, .count = 9}, want.data());
  rows.data = there;
  OnDevice(got, [&](std::byte* slot) {
    ops_->WriteRows(stream, rows, 2, {.begin = 1, .count = 9}, slot);
  });
  EXPECT_EQ(got, want);
  device_->Free(there);
}

TEST_F(CudaBlockOps, BlocksAreSealedAsTheHostSealsThem) {
  for (const Codec codec : kCodecs) {
    for (const InnerAxis inner : {InnerAxis::kToken, InnerAxis::kDim}) {
      for (const uint32_t dim : {1u, 7u, 33u, 64u, 80u, 128u, 200u}) {
        const uint32_t block_tokens = dim % 2 == 0 ? 32 : 16;
        const Codec open_codec = std::array{Codec::kF32, Codec::kF16, Codec::kBf16}[dim % 3];
        const StreamLayout open = Layout(open_codec, inner, dim, block_tokens, false);
        const StreamLayout sealed = Layout(codec, inner, dim, block_tokens, false);
        std::vector<float> values = SomeValues(size_t{block_tokens} * 3 * dim);
        values[prng_.NextBelow(values.size())] = std::numeric_limits<float>::infinity();
        for (uint32_t d = 0; d < dim; ++d) values[d] = 0.0f;  // a token of zeros
        std::vector<std::byte> open_slot = SomeBytes(SlotBytes(open));
        host_.WriteRows(open,
                        {.data = values.data(),
                         .token_stride = static_cast<int64_t>(3 * dim),
                         .head_stride = static_cast<int64_t>(dim)},
                        0, {.begin = 0, .count = block_tokens}, open_slot.data());
        std::vector<std::byte> want = SomeBytes(SlotBytes(sealed));
        std::vector<std::byte> got = want;
        host_.Encode(open, open_slot.data(), sealed, want.data());
        OnDevice(got, [&](std::byte* slot) {
          OnDevice(open_slot, [&](std::byte* from) { ops_->Encode(open, from, sealed, slot); });
        });
        ASSERT_EQ(got, want) << CodecName(codec) << " inner " << static_cast<int>(inner) << " dim "
                             << dim;
        const TokensInBlock at{.begin = 3, .count = 11};
        std::vector<float> read_want(size_t{3} * at.count * dim);
        std::vector<float> read_got = read_want;
        const auto stride = static_cast<int64_t>(at.count * dim);
        host_.ReadRows(sealed, want.data(), at, read_want.data(), stride);
        OnDevice(got, [&](std::byte* slot) {
          ops_->ReadRows(sealed, slot, at, read_got.data(), stride);
        });
        for (size_t i = 0; i < read_want.size(); ++i) {
          if (std::isnan(read_want[i])) {
            ASSERT_TRUE(std::isnan(read_got[i]));
          } else {
            ASSERT_EQ(std::bit_cast<uint32_t>(read_got[i]), std::bit_cast<uint32_t>(read_want[i]))
                << CodecName(codec) << " dim " << dim << " value " << i;
          }
        }
      }
    }
  }
}

// Operations that wait are launched together. Slots, streams and tokens are few, so that many of
// them touch what others touch.
TEST_F(CudaBlockOps, OperationsThatWaitHaveTheEffectOfTheirOrder) {
  std::array opens = {Layout(Codec::kF16, InnerAxis::kToken, 24, 16, false),
                      Layout(Codec::kF16, InnerAxis::kDim, 32, 16, true),
                      Layout(Codec::kF32, InnerAxis::kToken, 8, 16, false)};
  opens.back().heads = 2;
  uint64_t slot_bytes = 0;
  for (StreamLayout& open : opens) {
    open.scale_head_stride_bytes = codec::ScaleBytes(Codec::kInt8, open.block_tokens);
    open.offset_bytes += slot_bytes;
    open.scale_offset_bytes += slot_bytes;
    slot_bytes = SlotBytes(open);
  }
  const std::vector<float> values = SomeValues(4096);
  auto* const there = static_cast<float*>(device_->Allocate(values.size() * 4).value());
  device_->CopyIn(values.data(), values.size() * 4, there);
  std::vector<std::byte> want(4 * slot_bytes);
  std::vector<std::byte> got = want;
  constexpr uint32_t kOperations = 2000;
  uint64_t calls = 0;
  OnDevice(got, [&](std::byte* slots) {
    const uint64_t before = device_->calls();
    for (uint32_t i = 0; i < kOperations; ++i) {
      if (!prng_.NextChance(20)) device_->LetWait();
      const StreamLayout& open = opens[prng_.NextBelow(prng_.NextChance(9) ? opens.size() : 2)];
      if (prng_.NextChance(4)) {
        // Of what is open, that is slots 0 and 1, to where something is written too.
        const uint64_t from = prng_.NextBelow(2) * slot_bytes;
        const uint64_t to = (2 + prng_.NextBelow(2)) * slot_bytes;
        StreamLayout sealed = open;
        sealed.codec = Codec::kInt8;
        host_.Encode(open, want.data() + from, sealed, want.data() + to);
        ops_->Encode(open, slots + from, sealed, slots + to);
        continue;
      }
      const uint64_t at = prng_.NextBelow(4) * slot_bytes;
      const auto begin = static_cast<uint32_t>(prng_.NextBelow(16));
      const uint32_t count = prng_.NextChance(2) ? 1 : 16 - begin;
      const uint64_t first = prng_.NextBelow(512);
      RowsView rows{.data = values.data() + first, .token_stride = 100, .head_stride = open.dim};
      host_.WriteRows(open, rows, 3, {.begin = begin, .count = count}, want.data() + at);
      if (!prng_.NextChance(10)) rows.data = there + first;
      ops_->WriteRows(open, rows, 3, {.begin = begin, .count = count}, slots + at);
    }
    Must(ops_->Synchronize());
    calls = device_->calls() - before;
  });
  EXPECT_EQ(got, want);
  EXPECT_LT(calls, kOperations * 3 / 4);
  device_->Free(there);
}

TEST_F(CudaBlockOps, ChecksumsAreCrc32c) {
  for (const uint64_t bytes : {1, 16, 255, 256, 257, 272, 4000, 32768, 32784, 70001, 131072}) {
    std::vector<std::byte> slot = SomeBytes(3 * (bytes + 16));
    for (const auto& [count, gap] : {std::pair(1u, 9u), std::pair(3u, 9u), std::pair(3u, 16u)}) {
      const SlotPieces pieces{.count = count, .bytes = bytes, .stride_bytes = bytes + gap};
      uint32_t want = 0;
      uint32_t got = 1;
      host_.Checksum(slot.data(), pieces, &want);
      OnDevice(slot, [&](const std::byte* there) { ops_->Checksum(there, pieces, &got); });
      EXPECT_EQ(got, want) << count << " of " << bytes;
    }
  }
}

// Slots that are cut alike are one launch, whatever lies between their checksums and the fence.
TEST_F(CudaBlockOps, ChecksumsOfManySlotsAreFewLaunches) {
  constexpr uint32_t kSlots = 150;
  constexpr uint64_t kSlotBytes = 40'000;
  std::vector<std::byte> slots = SomeBytes(kSlots * kSlotBytes);
  const SlotPieces whole{.bytes = kSlotBytes};
  const SlotPieces pieces{.count = 3, .bytes = 4096, .stride_bytes = 12'000};
  std::vector<uint32_t> want(2 * kSlots);
  std::vector<uint32_t> got(2 * kSlots);
  for (uint32_t i = 0; i < kSlots; ++i) {
    host_.Checksum(slots.data() + i * kSlotBytes, whole, &want[i]);
    host_.Checksum(slots.data() + i * kSlotBytes, pieces, &want[kSlots + i]);
  }
  const std::vector<std::byte> before = slots;
  OnDevice(slots, [&](std::byte* there) {
    const uint64_t calls = device_->calls();
    for (uint32_t i = 0; i < kSlots; ++i) ops_->Checksum(there + i * kSlotBytes, whole, &got[i]);
    for (uint32_t i = 0; i < kSlots; ++i) {
      ops_->Checksum(there + i * kSlotBytes, pieces, &got[kSlots + i]);
    }
    // Comes after them, though they wait.
    ops_->Zero(there, {.bytes = kSlots * kSlotBytes});
    EXPECT_LE(device_->calls() - calls, 2 * DivUp(kSlots, kChecksumsOfLaunch) + 1);
    Must(ops_->Synchronize());
  });
  EXPECT_EQ(got, want);
  EXPECT_NE(slots, before);
}

// More sections than one launch takes, of all lengths, some next to each other on the host and some
// not, and some without a checksum.
TEST_F(CudaBlockOps, CopiesSectionsWithTheirChecksums) {
  Prng prng(11);
  for (int round = 0; round < 12; ++round) {
    const auto count = static_cast<uint32_t>(1 + prng.NextBelow(round % 4 == 0 ? 300 : 7));
    const uint64_t longest = round % 4 == 0 ? 90 : 40'000;
    const uint64_t unit = round % 3 == 0 ? 1 : 64;
    std::vector<SlotSection> sections(count);
    std::vector<uint32_t> want_crcs(count, 17);
    uint64_t bytes = 0;
    uint64_t host_bytes = 0;
    for (SlotSection& section : sections) {
      section.bytes = RoundUp(1 + prng.NextBelow(longest), unit);
      bytes += section.bytes;
      host_bytes += section.bytes + (prng.NextBelow(3) == 0 ? 64 : 0);
    }
    std::vector<std::byte> slot = SomeBytes(bytes);
    std::vector<std::byte> want(host_bytes);
    std::vector<std::byte> got(host_bytes);
    std::vector<uint32_t> got_crcs(count, 17);
    // The sections in another memory, with the remaining bytes as gaps between some.
    const auto in = [&, seed = prng.Next64()](std::vector<std::byte>& host,
                                              std::vector<uint32_t>& crcs) {
      Prng gaps(seed);
      std::vector<SlotSection> placed = sections;
      uint64_t left = host_bytes - bytes;
      std::byte* at = host.data();
      for (uint32_t i = 0; i < count; ++i) {
        if (left > 0 && gaps.NextBelow(2) == 0) {
          at += 64;
          left -= 64;
        }
        placed[i].host = at;
        at += sections[i].bytes;
        if (gaps.NextBelow(8) != 0) placed[i].crc = &crcs[i];
      }
      return placed;
    };
    const std::vector<SlotSection> want_sections = in(want, want_crcs);
    const std::vector<SlotSection> got_sections = in(got, got_crcs);
    host_.CopyOut(slot.data(), {.bytes = bytes}, want_sections);
    const std::vector<std::byte> before = slot;
    OnDevice(slot, [&](std::byte* there) {
      ops_->CopyOut(there, {.bytes = bytes}, got_sections);
      Must(ops_->SynchronizeCopies(CopyWay::kOut));
      EXPECT_EQ(got, want);
      EXPECT_EQ(got_crcs, want_crcs);
      // A byte that changed shows in the checksum of its section.
      got_sections[count / 2].host[0] ^= std::byte{1};
      ops_->CopyIn(got_sections, {.bytes = bytes}, there);
      Must(ops_->SynchronizeCopies(CopyWay::kIn));
    });
    const bool wanted = got_sections[count / 2].crc != nullptr;
    EXPECT_EQ(got_crcs != want_crcs, wanted);
    got_crcs[count / 2] = want_crcs[count / 2];
    EXPECT_EQ(got_crcs, want_crcs);
    uint64_t differ = 0;
    for (uint64_t i = 0; i < bytes; ++i) differ += slot[i] != before[i] ? 1 : 0;
    EXPECT_EQ(differ, 1u);
  }
}

TEST_F(CudaBlockOps, MovesPiecesAndNothingElse) {
  const SlotPieces pieces{.count = 3, .bytes = 40, .stride_bytes = 100};
  std::vector<std::byte> from = SomeBytes(300);
  std::vector<std::byte> want = SomeBytes(300);
  std::vector<std::byte> got = want;
  std::vector<std::byte> out(120);
  std::vector<std::byte> out_want(120);
  host_.Copy(from.data(), want.data(), pieces);
  host_.CopyOut(from.data(), pieces, out_want.data());
  OnDevice(from, [&](std::byte* there) {
    OnDevice(got, [&](std::byte* to) { ops_->Copy(there, to, pieces); });
    ops_->CopyOut(there, pieces, out.data());
  });
  EXPECT_EQ(got, want);
  EXPECT_EQ(out, out_want);
  const SlotPieces behind{.count = 2, .bytes = 20, .stride_bytes = 100};
  host_.CopyIn(out.data(), pieces, want.data());
  host_.Zero(want.data() + 7, behind);
  OnDevice(got, [&](std::byte* to) {
    ops_->CopyIn(out.data(), pieces, to);
    Must(ops_->SynchronizeCopies(CopyWay::kIn));
    ops_->Zero(to + 7, behind);
  });
  EXPECT_EQ(got, want);
}

// More checksums than there is room for, and rows that take many pieces, with no fence in between.
TEST_F(CudaBlockOps, ResultsComeWithoutAWait) {
  constexpr uint32_t kSums = 4200;
  std::vector<std::byte> slot = SomeBytes(kSums + 40);
  std::vector<uint32_t> want(kSums);
  std::vector<uint32_t> got(kSums);
  for (uint32_t i = 0; i < kSums; ++i) {
    host_.Checksum(slot.data() + i, {.bytes = 40}, &want[i]);
  }
  OnDevice(slot, [&](const std::byte* there) {
    for (uint32_t i = 0; i < kSums; ++i) ops_->Checksum(there + i, {.bytes = 40}, &got[i]);
  });
  EXPECT_EQ(got, want);
  const StreamLayout stream = Layout(Codec::kF32, InnerAxis::kDim, 24, 16, false);
  std::vector<std::byte> rows = SomeBytes(SlotBytes(stream));
  std::vector<std::vector<float>> read(20, std::vector<float>(size_t{3} * 16 * 24));
  OnDevice(rows, [&](const std::byte* there) {
    for (std::vector<float>& out : read) {
      ops_->ReadRows(stream, there, {.begin = 0, .count = 16}, out.data(), 16 * 24);
    }
  });
  std::vector<float> read_want(read[0].size());
  host_.ReadRows(stream, rows.data(), {.begin = 0, .count = 16}, read_want.data(), 16 * 24);
  for (const std::vector<float>& out : read) {
    EXPECT_EQ(std::memcmp(out.data(), read_want.data(), out.size() * 4), 0);
  }
}

#if !defined(QUIRE_TEST_ON_CUDA)

/// The operations of a device that is the host, on streams that the test sees.
struct Late {
  explicit Late(uint64_t seed) : streams("emulated", seed) {}

  std::byte* Slot(uint64_t bytes) {
    return static_cast<std::byte*>(device->Allocate(bytes).value());
  }

  LateStreams streams;
  std::unique_ptr<Device> device = MakeHostDevice(&streams);
  std::unique_ptr<BlockOps> ops = MakeBlockOps(*device).value();
};

// Their results are copied.
TEST(LateBlockOps, ChecksumsComeToMemoryThatKernelsDoNotReachToo) {
  LateStreams streams("emulated", 3);
  const auto device = MakeHostDevice(&streams, /*reaches_host=*/false);
  const auto ops = MakeBlockOps(*device).value();
  constexpr uint64_t kBytes = 50'000;
  auto* const slot = static_cast<std::byte*>(device->Allocate(kBytes).value());
  std::vector<std::byte> out(kBytes);
  for (uint32_t round = 0; round < 3; ++round) {
    const std::vector<std::byte> in(kBytes, std::byte(round));
    uint32_t got[2] = {};
    uint32_t want = 0;
    ops->CopyIn(in.data(), {.bytes = kBytes}, slot);
    Must(ops->SynchronizeCopies(CopyWay::kIn));
    const SlotSection section = {.host = out.data(), .bytes = kBytes, .crc = &got[0]};
    ops->CopyOut(slot, {.bytes = kBytes}, {&section, 1});
    ops->Checksum(slot, {.bytes = kBytes}, &got[1]);
    Must(ops->SynchronizeCopies(CopyWay::kOut));
    Must(ops->Synchronize());
    HostBlockOps().Checksum(in.data(), {.bytes = kBytes}, &want);
    EXPECT_EQ(got[0], want);
    EXPECT_EQ(got[1], want);
  }
  device->Free(slot);
}

// Calls that the contract forbids give wrong bytes on this device; otherwise no suite that runs on
// it would notice them.
TEST(LateBlockOps, CopiesRunApartFromOperations) {
  constexpr uint64_t kBytes = 64;
  uint64_t too_early = 0;
  uint64_t overwritten = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Late late(seed);
    std::byte* const slot = late.Slot(kBytes);
    std::byte* const other = late.Slot(kBytes);
    const std::vector<std::byte> sevens(kBytes, std::byte{7});
    std::vector<std::byte> out(kBytes);
    late.ops->CopyIn(sevens.data(), {.bytes = kBytes}, slot);
    late.ops->Copy(slot, other, {.bytes = kBytes});  // without a fence
    EXPECT_TRUE(late.ops->Synchronize().has_value());
    too_early += other[0] != std::byte{7} ? 1 : 0;
    EXPECT_TRUE(late.ops->SynchronizeCopies(CopyWay::kIn).has_value());
    late.ops->CopyOut(slot, {.bytes = kBytes}, out.data());
    late.ops->Zero(slot, {.bytes = kBytes});
    EXPECT_TRUE(late.ops->Synchronize().has_value());
    EXPECT_TRUE(late.ops->SynchronizeCopies(CopyWay::kOut).has_value());
    overwritten += out[0] != std::byte{7} ? 1 : 0;
    for (std::byte* const memory : {slot, other}) late.device->Free(memory);
  }
  EXPECT_GT(too_early, 10u);
  EXPECT_GT(overwritten, 10u);
}

TEST(LateBlockOps, CopiesComeAfterTheOperationsBeforeThem) {
  constexpr uint64_t kBytes = 64;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Late late(seed);
    std::byte* const from = late.Slot(kBytes);
    std::byte* const slot = late.Slot(kBytes);
    std::memset(from, 5, kBytes);
    const std::vector<std::byte> sevens(kBytes, std::byte{7});
    std::vector<std::byte> out(kBytes);
    late.ops->Copy(from, slot, {.bytes = kBytes});
    late.ops->CopyOut(slot, {.bytes = kBytes}, out.data());
    EXPECT_TRUE(late.ops->SynchronizeCopies(CopyWay::kOut).has_value());
    EXPECT_EQ(out[kBytes - 1], std::byte{5});
    late.ops->Zero(slot, {.bytes = kBytes});
    late.ops->CopyIn(sevens.data(), {.bytes = kBytes}, slot);
    EXPECT_TRUE(late.ops->SynchronizeCopies(CopyWay::kIn).has_value());
    late.streams.RunAll();
    EXPECT_EQ(slot[0], std::byte{7}) << "what was zeroed before is not zeroed after";
    for (std::byte* const memory : {from, slot}) late.device->Free(memory);
  }
}

TEST(LateBlockOps, ChecksumsOfCopiesComeWithTheirFence) {
  uint64_t too_early = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Late late(seed);
    std::byte* const slot = late.Slot(64);
    std::vector<std::byte> sevens(64, std::byte{7});
    std::vector<std::byte> out(64);
    uint32_t want = 0;
    HostBlockOps().Checksum(sevens.data(), {.bytes = 64}, &want);
    uint32_t in_crc = 0;
    uint32_t out_crc = 0;
    const SlotSection in = {.host = sevens.data(), .bytes = 64, .crc = &in_crc};
    late.ops->CopyIn({&in, 1}, {.bytes = 64}, slot);
    const auto fence = late.ops->RecordCopies(CopyWay::kIn);
    too_early += in_crc != 0 ? 1 : 0;
    EXPECT_TRUE(late.ops->SynchronizeCopies(CopyWay::kOut).has_value());
    EXPECT_EQ(in_crc, 0u) << "the fence of the other way";
    fence->Wait();
    EXPECT_EQ(in_crc, want);
    const SlotSection to = {.host = out.data(), .bytes = 64, .crc = &out_crc};
    late.ops->CopyOut(slot, {.bytes = 64}, {&to, 1});
    EXPECT_TRUE(late.ops->SynchronizeCopies(CopyWay::kOut).has_value());
    EXPECT_EQ(out_crc, want);
    EXPECT_EQ(out, sevens);
    late.device->Free(slot);
  }
  EXPECT_EQ(too_early, 0u);
}

// Only callers that ask for the fence of a move wait for it.
TEST(LateBlockOps, OperationsDoNotWaitForCopies) {
  uint64_t left_behind = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Late late(seed);
    std::byte* const slot = late.Slot(64);
    std::vector<std::byte> out(64);
    for (int i = 0; i < 20; ++i) late.ops->CopyOut(slot, {.bytes = 64}, out.data());
    const auto copies = late.streams.Now(static_cast<uint32_t>(Stream::kOut));
    uint32_t crc = 0;
    late.ops->Checksum(slot, {.bytes = 64}, &crc);
    EXPECT_TRUE(late.ops->Synchronize().has_value());
    EXPECT_NE(crc, 0u);
    left_behind += late.streams.IsDone(copies) ? 0 : 1;
    late.streams.RunAll();
    late.device->Free(slot);
  }
  EXPECT_GT(left_behind, 40u);
}

TEST(LateBlockOps, ResultsComeWithTheFence) {
  uint64_t late_ones = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Late late(seed);
    std::byte* const slot = late.Slot(64);
    uint32_t crc = 0;
    late.ops->Checksum(slot, {.bytes = 64}, &crc);
    const auto fence = late.ops->Record();
    late.streams.RunAll();
    late_ones += crc == 0 ? 1 : 0;
    EXPECT_TRUE(fence->IsDone());
    uint32_t want = 0;
    HostBlockOps().Checksum(slot, {.bytes = 64}, &want);
    EXPECT_EQ(crc, want);
    late.device->Free(slot);
  }
  EXPECT_EQ(late_ones, 50u) << "who asks for it is not made to wait";
}

TEST(LateBlockOps, ADeviceThatFailedIsNamedByEveryFence) {
  Late late(1);
  std::byte* const slot = late.Slot(64);
  std::vector<std::byte> host(64, std::byte{3});
  late.ops->CopyIn(host.data(), {.bytes = 64}, slot);
  EXPECT_TRUE(late.ops->SynchronizeCopies(CopyWay::kIn).has_value());
  uint32_t crc = 17;
  late.streams.FailAfter(0);
  late.ops->Checksum(slot, {.bytes = 64}, &crc);
  late.ops->CopyOut(slot, {.bytes = 64}, host.data());
  for (const Result<void>& ended :
       {late.ops->Synchronize(), late.ops->SynchronizeCopies(CopyWay::kOut),
        late.ops->SynchronizeCopies(CopyWay::kIn), late.device->Synchronize()}) {
    ASSERT_FALSE(ended.has_value());
    EXPECT_EQ(ended.error().code, ErrorCode::kIo);
    EXPECT_EQ(ended.error().message.find("emulated: the device failed"), 0u)
        << ended.error().message;
  }
  EXPECT_EQ(crc, 17u) << "no result is delivered that is none";
  late.device->Free(slot);
}

#endif

}  // namespace
}  // namespace quire::cuda
