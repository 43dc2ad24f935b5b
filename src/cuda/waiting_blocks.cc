#include "cuda/waiting_blocks.h"

#include <algorithm>
#include <optional>
#include <span>
#include <tuple>

#include "cuda/kernels/encode-inl.h"

namespace quire::cuda {
namespace {

auto FieldsOf(const StreamLayout& stream) {
  return std::tie(stream.codec, stream.inner, stream.heads, stream.dim, stream.block_tokens,
                  stream.offset_bytes, stream.head_stride_bytes, stream.scale_offset_bytes,
                  stream.scale_head_stride_bytes, stream.rotated);
}
bool IsSame(const WrittenStream& a, const WrittenStream& b) {
  return FieldsOf(a.layout) == FieldsOf(b.layout) && a.dtype == b.dtype &&
         a.token_stride == b.token_stride && a.head_stride == b.head_stride;
}
bool IsSame(const SealedStream& a, const SealedStream& b) {
  return FieldsOf(a.open) == FieldsOf(b.open) && FieldsOf(a.sealed) == FieldsOf(b.sealed);
}

bool IsCutAlike(const ChecksumArgs& a, const ChecksumArgs& b) {
  const auto fields = [](const ChecksumArgs& args) {
    return std::tie(args.count, args.bytes, args.stride_bytes, args.begin, args.sections,
                    args.sums);
  };
  return fields(a) == fields(b) && std::equal(a.ends, a.ends + a.sections, b.ends);
}

/// Which stream of a launch this is, if it has room for one more block of it.
template <class Args, class StreamOfLaunch>
std::optional<uint32_t> FindStream(Args& args, const StreamOfLaunch& stream) {
  if (args.count == kBlocksOfLaunch) return std::nullopt;
  const std::span known(args.streams, args.stream_count);
  const auto found =
      std::ranges::find_if(known, [&](const auto& other) { return IsSame(other, stream); });
  const auto at = static_cast<uint32_t>(found - known.begin());
  if (at < args.stream_count) return at;
  if (at == kStreamsOfLaunch) return std::nullopt;
  args.streams[args.stream_count++] = stream;
  return at;
}

}  // namespace

bool WaitingBlocks::Write(const WrittenStream& stream, const WrittenBlock& block) {
  if (sums_.slot_count != 0) return false;  // they are of the bytes before
  const auto of_seals = std::span(seals_.blocks, seals_.count);
  if (std::ranges::any_of(of_seals, [&](const SealedBlock& seal) {
        return seal.open_slot == block.slot || seal.sealed_slot == block.slot;
      })) {
    return false;
  }
  const auto of_writes = std::span(writes_.blocks, writes_.count);
  if (std::ranges::any_of(of_writes, [&](const WrittenBlock& write) {
        const StreamLayout& layout = writes_.streams[write.stream].layout;
        return write.slot == block.slot && layout.offset_bytes == stream.layout.offset_bytes &&
               write.token_begin < block.token_begin + block.tokens &&
               block.token_begin < write.token_begin + write.tokens;
      })) {
    return false;
  }
  const auto at = FindStream(writes_, stream);
  if (!at) return false;
  WrittenBlock& added = writes_.blocks[writes_.count++];
  added = block;
  added.stream = static_cast<uint16_t>(*at);
  writes_.heads_max = std::max(writes_.heads_max, stream.layout.heads);
  writes_.tokens_max = std::max(writes_.tokens_max, uint32_t{block.tokens});
  return true;
}

bool WaitingBlocks::Seal(const SealedStream& stream, const SealedBlock& block) {
  if (sums_.slot_count != 0) return false;
  const auto of_seals = std::span(seals_.blocks, seals_.count);
  if (std::ranges::any_of(of_seals, [&](const SealedBlock& seal) {
        const StreamLayout& layout = seals_.streams[seal.stream].sealed;
        return seal.sealed_slot == block.open_slot || seal.open_slot == block.sealed_slot ||
               (seal.sealed_slot == block.sealed_slot &&
                layout.offset_bytes == stream.sealed.offset_bytes);
      })) {
    return false;
  }
  const auto at = FindStream(seals_, stream);
  if (!at) return false;
  SealedBlock& added = seals_.blocks[seals_.count++];
  added = block;
  added.stream = *at;
  seals_.tiles_max = std::max(seals_.tiles_max, EncodeTiles(stream.open));
  return true;
}

bool WaitingBlocks::Sum(const ChecksumArgs& args) {
  if (sums_.slot_count == 0) {
    sums_ = args;
    return true;
  }
  const uint32_t sums = sums_.slot_count * sums_.sections;
  if (!IsCutAlike(sums_, args) || args.results != sums_.results + sums ||
      sums + args.sections > kChecksumsOfLaunch) {
    return false;
  }
  sums_.slots[sums_.slot_count++] = args.slots[0];
  return true;
}

}  // namespace quire::cuda
