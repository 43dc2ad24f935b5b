// The buffers of shared memory that stages of K and V come into, in turn: while one is multiplied,
// the next ones are on their way. The staging (cuda/kernels/mma_attend.h) decides how they come;
// the products look up here where a number lies.
#ifndef QUIRE_CUDA_KERNELS_MMA_BUFFERS_INL_H_
#define QUIRE_CUDA_KERNELS_MMA_BUFFERS_INL_H_

#include <cstdint>

#include "cuda/kernels/bulk.h"
#include "cuda/kernels/mma_attend.h"
#include "cuda/kernels/mma_integers-inl.h"
#include "cuda/kernels/mma_stage-inl.h"
#include "cuda/kernels/warp-inl.h"

namespace quire::cuda {

template <class Thread, bool kFolds, Staging kStaging>
class StageBuffers {
 public:
  static constexpr bool kBulk = kStaging == Staging::kBulk;
  static constexpr uint32_t kTokens = StageTokensOf(kFolds, kStaging);

  QUIRE_KERNEL StageBuffers(Thread& self, const MmaArgs& mma)
      : self_(self),
        warp_(self),
        layout_(mma.shared),
        key_dim_(mma.splits.shape.key.dim),
        count_(layout_.buffers),
        stage_bytes_(layout_.stage_bytes) {}

  /// Before the first stage of a split. `codes`: all of its stages are codes.
  QUIRE_KERNEL void StartSplit(bool codes) {
    if constexpr (kStaging == Staging::kCodes) {
      codes_ = codes && layout_.has_code_buffers;
      count_ = codes_ ? kCodeBuffers : layout_.buffers;
      stage_bytes_ = codes_ ? layout_.stage_bytes / 2 : layout_.stage_bytes;
      next_ = 0;
    }
  }
  QUIRE_KERNEL uint32_t count() const { return count_; }

  /// Before the first stage; every thread syncs between the two.
  QUIRE_KERNEL void Open() {
    warp_.Lanes([&](uint32_t lane) {
      const uint32_t row = lane % 8 + OuterHalf(lane) * 8;
      const uint32_t column = InnerHalf(lane) * 8;
      for (uint32_t t = 0; t < kKeySteps; ++t) {
        const uint32_t step = kFolds ? t : warp_.number();
        key_at_(lane, t) = KeyAt(row, step * kMmaStep + column);
      }
      value_at_(lane, 0) = kBulk ? Swizzled(kBoxChannels, row * kBoxChannels + column)
                                 : row * layout_.value_stride + column;
    });
    if constexpr (kBulk) {
      warp_.One([&] {
        for (uint32_t i = 0; i < layout_.buffers; ++i) self_.InitBarrier(Barriers() + i);
        self_.FenceBulk();
      });
    }
  }

  /// Requests a stage into the buffer `ahead` of the next one that is entered; all threads are done
  /// with its old contents.
  template <bool kKeys>
  QUIRE_KERNEL void Start(StageArgs stage, uint32_t ahead) {
    stage.to = Buffer(ahead);
    if constexpr (kBulk) {
      if (warp_.number() == 0) Ask<kKeys>(stage, Barriers() + NumberOf(ahead));
      return;
    }
    Copy<kKeys>(stage);
    self_.CommitCopies();
  }
  /// In the place of a stage, where there is no further one: stages are waited for by their number.
  QUIRE_KERNEL void StartNone() {
    if constexpr (kStaging == Staging::kCodes) self_.CommitCopies();
  }

  /// Returns when this thread's share of the next stage is there: then all sync.
  template <bool kKeys>
  QUIRE_KERNEL void Wait(const StageArgs& stage) {
    if constexpr (kBulk) {
      self_.WaitBytes(Barriers() + next_, parity_);
      if (!kKeys) ClearBehindEnd(stage);
    } else if (codes_) {
      self_.template WaitCopies<kCodeBuffers - 2>();
    } else {
      self_.template WaitCopies<0>();
    }
  }

  /// Its numbers; the one behind it is the next.
  QUIRE_KERNEL const uint16_t* Enter() {
    const uint16_t* const here = Buffer(0);
    if (++next_ == count_) {
      next_ = 0;
      parity_ ^= 1u;
    }
    return here;
  }

  // Rows of LoadMatrices<true>, whose matrices are the first factor of an instruction, or in blocks
  // that fold two second factors: the first number of a lane's, from the first of a stage on.

  /// Sixteen tokens of K, of the warp's in a stage those of step `t`, of as many channels: from
  /// the first number of those channels on.
  QUIRE_KERNEL uint32_t KeysAt(uint32_t lane, uint32_t t) const { return key_at_(lane, t); }
  QUIRE_KERNEL uint32_t ChannelAt(uint32_t channel) const {
    return channel * (kBulk ? layout_.box_tokens : layout_.key_stride);
  }
  /// The same where rows are tokens: rows of LoadMatrices<false>.
  QUIRE_KERNEL uint32_t KeyRowsAt(uint32_t lane, uint32_t t, uint32_t channel) const {
    const uint32_t step = kFolds ? t : warp_.number();
    const uint32_t token = step * kMmaStep + lane % 8 + InnerHalf(lane) * 8;
    return token * layout_.key_token_stride + channel + OuterHalf(lane) * 8;
  }
  /// Channels of V of step `m` of sixteen, of tokens of step `t`.
  QUIRE_KERNEL uint32_t ValuesAt(uint32_t lane, uint32_t t, uint32_t m) const {
    if constexpr (!kBulk) {
      return value_at_(lane, 0) + t * kMmaStep * layout_.value_stride + m * kMmaStep;
    }
    constexpr uint32_t kSteps = kBoxChannels / kMmaStep;
    // Swizzling changes bits that a step has and bits that it has not: they do not meet.
    return (m / kSteps * kTokens + t * kMmaStep) * kBoxChannels +
           (value_at_(lane, 0) ^ m % kSteps * kMmaStep);
  }

 private:
  /// Of sixteen tokens of K, that a warp multiplies.
  static constexpr uint32_t kKeySteps = kFolds ? kTokens / kMmaStep : 1;

  // Which of the four matrices a lane has a row of: by sums of the instruction (tokens of K,
  // channels of V), and by terms of each. A first factor has two of the sums, then those of other
  // terms; of second factors the words of one come first.
  QUIRE_KERNEL static uint32_t InnerHalf(uint32_t lane) {
    return kFolds ? lane / 16 : lane / 8 % 2;
  }
  QUIRE_KERNEL static uint32_t OuterHalf(uint32_t lane) {
    return kFolds ? lane / 8 % 2 : lane / 16;
  }

  /// Eight tokens from `column` on, of one of the first sixteen channels.
  QUIRE_KERNEL uint32_t KeyAt(uint32_t row, uint32_t column) const {
    if constexpr (!kBulk) return row * layout_.key_stride + column;
    const uint32_t width = layout_.box_tokens;
    return column / width * key_dim_ * width + Swizzled(width, row * width + column % width);
  }

  QUIRE_KERNEL uint32_t NumberOf(uint32_t ahead) const {
    const uint32_t number = next_ + ahead;
    return number < count_ ? number : number - count_;
  }
  QUIRE_KERNEL uint16_t* Buffer(uint32_t ahead) const {
    const uint32_t at = NumberOf(ahead) * stage_bytes_;
    return reinterpret_cast<uint16_t*>(self_.shared() + layout_.stage_at + at);
  }
  QUIRE_KERNEL uint64_t* Barriers() const {
    return reinterpret_cast<uint64_t*>(self_.shared() + layout_.barriers_at);
  }
  /// log2 of the boxes of V beside each other.
  QUIRE_KERNEL static uint32_t PanelBits(const StageArgs& stage) {
    static_assert(kMmaChannels == 2 * kBoxChannels);
    return stage.channels > kBoxChannels ? 1 : 0;
  }

  template <bool kKeys>
  QUIRE_KERNEL void Copy(StageArgs& stage) {
    if constexpr (kStaging == Staging::kCodes) {
      if (stage.stream->codec > Codec::kBf16) return CopyColumn<kKeys>(stage);
    }
    stage.stride = !kKeys                                   ? layout_.value_stride
                   : stage.stream->inner == InnerAxis::kDim ? layout_.key_token_stride
                                                            : layout_.key_stride;
    Stager<Thread, kTokens, kKeys>(self_, warp_, stage).Run();
  }

  /// Codes of sixteen tokens by each warp: of K those that it multiplies itself. Of a column that
  /// is not read codes are zeros.
  template <bool kKeys>
  QUIRE_KERNEL void CopyColumn(const StageArgs& stage) {
    static_assert(kTokens / kMmaStep == kMmaWarps);
    const StreamLayout& stream = *stage.stream;
    const uint32_t column = warp_.number();
    const std::byte* const plane = stage.PlaneOf(column);
    const bool valid = plane != nullptr;
    const std::byte* const begin = valid ? plane : stage.table->base;  // else nothing is read
    const uint32_t in_block = stage.InBlock(column);
    const uint32_t bytes = ColumnBytes(stream.codec, stage.channels);
    std::byte* const to = reinterpret_cast<std::byte*>(stage.to) + column * bytes;
    constexpr uint32_t kAtOnce = kWarpLanes * 16;
    const auto copy = [&](uint32_t lane, const std::byte* from, uint32_t step) {
      QUIRE_DEVICE_UNROLL_BY(4)
      for (uint32_t at = lane * 16; at < bytes; at += kAtOnce, from += step) {
        self_.CopyAsync(to + at, from, valid);
      }
    };
    if (IsInteger(stream.codec)) {  // in tiles, one behind the other
      const std::byte* const first = begin +
                                     in_block / kMmaStep * ColumnBytes(stream.codec, stream.dim) +
                                     ColumnBytes(stream.codec, stage.channel_begin);
      warp_.Lanes([&](uint32_t lane) { copy(lane, first + lane * 16, kAtOnce); });
    } else if (kKeys) {
      warp_.Lanes([&](uint32_t lane) {
        copy(lane, begin + in_block + lane * stream.block_tokens, kWarpLanes * stream.block_tokens);
      });
    } else {
      const uint32_t runs = stage.channels / 16;
      warp_.Lanes([&](uint32_t lane) {
        QUIRE_DEVICE_UNROLL_BY(1)
        for (uint32_t i = lane; i < bytes / 16; i += kWarpLanes) {
          const uint32_t row = (in_block + i / runs) * stream.dim;
          self_.CopyAsync(to + i * 16, begin + row + stage.channel_begin + i % runs * 16, valid);
        }
      });
    }
  }

  /// Every stage has the same boxes. Those that have no slot, or are not read, lie outside of the
  /// array and are zeros.
  /// By the threads of one warp, a box each.
  template <bool kKeys>
  QUIRE_KERNEL void Ask(const StageArgs& stage, uint64_t* barrier) {
    const uint32_t panel_bits = kKeys ? 0 : PanelBits(stage);
    warp_.Lanes([&](uint32_t lane) {
      if (lane != 0) return;
      const uint32_t channels = kKeys ? stage.channels : kBoxChannels << panel_bits;
      self_.ExpectBytes(barrier, 2 * kTokens * channels);
    });
    warp_.Sync();
    warp_.Lanes([&](uint32_t lane) {
      const uint32_t t = (lane >> panel_bits) * layout_.box_tokens;
      if (t >= kTokens) return;
      const uint32_t block = (stage.first + t) >> stage.block_bits;
      const auto in_block = static_cast<int32_t>(stage.first + t - (block << stage.block_bits));
      const auto slot = static_cast<int32_t>(stage.slots[block]);
      static_assert(static_cast<int32_t>(kNoSlot) < 0);
      const auto head = static_cast<int32_t>(stage.kv_head);
      if constexpr (kKeys) {
        const uint32_t at = t * stage.channels;
        self_.CopyBulk(stage.to + at, *stage.boxes, {{in_block, 0, head, slot}}, barrier);
      } else {
        const uint32_t panel = lane & panel_bits;
        const auto channel = static_cast<int32_t>(stage.channel_begin + panel * kBoxChannels);
        const uint32_t at = (panel * kTokens + t) * kBoxChannels;
        self_.CopyBulk(stage.to + at, *stage.boxes, {{channel, in_block, head, slot}}, barrier);
      }
    });
  }

  /// Of a box that is read in part, the tokens that are not written yet.
  QUIRE_KERNEL void ClearBehindEnd(const StageArgs& stage) {
    if (stage.first >= stage.end || stage.first + kTokens <= stage.end) return;
    constexpr uint32_t kWords = kBoxChannels / 2;  // of a token
    const uint32_t begin = stage.end - stage.first;
    const uint32_t words = (kTokens - begin) * kWords;
    auto* const rows = reinterpret_cast<uint32_t*>(Buffer(0));
    QUIRE_DEVICE_UNROLL_BY(1)
    for (uint32_t panel = 0; panel >> PanelBits(stage) == 0; ++panel) {
      warp_.Share(words, [&](uint32_t i) { rows[(panel * kTokens + begin) * kWords + i] = 0; });
    }
    self_.FenceBulk();
  }

  Thread& self_;
  const Warp<Thread> warp_;
  const MmaShared& layout_;
  const uint32_t key_dim_;
  bool codes_ = false;  // kCodeBuffers are in use
  uint32_t count_;
  uint32_t stage_bytes_;
  uint32_t next_ = 0;    // buffer that is entered
  uint32_t parity_ = 0;  // of its barrier's phase
  Fragment<uint32_t, kKeySteps> key_at_;
  Fragment<uint32_t, 1> value_at_;
};

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MMA_BUFFERS_INL_H_
