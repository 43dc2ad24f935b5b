// Fetching evenly. Where codes are expanded, widened or weighed between reads, memory would run
// dry if each line were fetched only with one that is read. So what is wanted next, V of this
// split and then K of the next, is fetched evenly through all that is done with a split.
#include "attention/decode-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_AHEAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_AHEAD_INL_H_
#undef QUIRE_ATTENTION_AHEAD_INL_H_
#else
#define QUIRE_ATTENTION_AHEAD_INL_H_
#endif

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

/// The planes that lines are fetched of in turn. Intel's cores fetch ahead by themselves in each
/// page that they see read forward, so four planes give more than one. On AMD's two are faster, on
/// Zen 5 by up to a seventh; but where planes have no more than 1 KiB (codes of half a byte), on
/// Zen 4 four are by 1 to 6 %.
inline uint32_t PlanesInTurn(size_t plane_bytes) {
#if defined(__x86_64__)
  static const bool is_amd = __builtin_cpu_is("amd") != 0;
  if (is_amd && !(IsZen4() && plane_bytes <= 1024)) return 2;
#endif
  return kStreams;
}

/// The lines that are fetched during one split.
class LinesAhead {
 public:
  /// Those of V of `columns`, then of K of `next` (or null).
  void Start(const StreamView& key, const StreamView& value, const Columns& columns,
             const Columns* next) {
    wanted_[0] = {columns.value, columns.count, &value};
    wanted_[1] = {next == nullptr ? nullptr : next->key, next == nullptr ? 0 : next->count, &key};
    lines_ = wanted_[0].lines() + wanted_[1].lines();
    planes_in_turn_ = PlanesInTurn(value.column_bytes);
    stream_ = 0;
    Begin(0, 0);
  }

  /// Of the whole split, fetched or not.
  uint32_t lines() const { return lines_; }
  /// The share of softmax, which takes the longer the more query vectors there are to a KV head.
  uint32_t LinesOfSoftmax(uint32_t group) const { return lines_ * group / (group + 24); }

  /// Fetches the next `lines`, as far as there are any: of a few planes in turn. Nothing where
  /// fetching is left to the hardware.
  HWY_INLINE void Fetch(uint32_t lines) {
    if constexpr (!kFetchesAhead) return;
    for (; lines > 0 && stream_ < kStreamsWanted; --lines) {
      FetchFar(planes_[run_] + at_);
      if (++run_ < runs_) continue;
      run_ = 0;
      at_ += kLineBytes;
      if (at_ >= wanted_[stream_].stream->column_bytes) NextPlanes();
    }
  }

 private:
  struct Wanted {
    uint32_t lines() const {
      if (stream == nullptr) return 0;
      return static_cast<uint32_t>(count * stream->heads * DivUp(stream->column_bytes, kLineBytes));
    }

    const std::byte* const* columns = nullptr;  // of the first head
    uint32_t count = 0;
    const StreamView* stream = nullptr;
  };
  static constexpr uint32_t kStreamsWanted = 2;

  void NextPlanes() {
    if (head_ + 1 < wanted_[stream_].stream->heads) return Begin(first_, head_ + 1);
    Begin(first_ + planes_in_turn_, 0);
  }

  /// The planes of `head` of the columns from `first` on, or of the next stream.
  void Begin(uint32_t first, uint32_t head) {
    while (stream_ < kStreamsWanted && first >= wanted_[stream_].count) {
      ++stream_;
      first = 0;
    }
    if (stream_ == kStreamsWanted) return;
    const Wanted& wanted = wanted_[stream_];
    first_ = first;
    head_ = head;
    run_ = 0;
    at_ = 0;
    runs_ = std::min(planes_in_turn_, wanted.count - first);
    for (uint32_t i = 0; i < runs_; ++i) {
      planes_[i] = wanted.columns[first + i] + head * wanted.stream->head_stride_bytes;
    }
  }

  Wanted wanted_[kStreamsWanted];
  uint32_t planes_in_turn_ = kStreams;
  uint32_t lines_ = 0;
  uint32_t stream_ = kStreamsWanted;
  uint32_t first_ = 0;
  uint32_t head_ = 0;
  const std::byte* planes_[kStreams] = {};
  uint32_t runs_ = 0;
  uint32_t run_ = 0;
  size_t at_ = 0;
};

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
