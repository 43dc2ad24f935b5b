// Fetching while matrix tiles compute (amx-inl.h): a product takes so long that memory would run
// dry if each plane were fetched only while another one is read. So what is wanted next, V of this
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

/// The lines that are fetched during one split.
class LinesAhead {
 public:
  /// Those of V of `columns`, then of K of `next` (or null).
  void Start(const StreamView& key, const StreamView& value, const Columns& columns,
             const Columns* next) {
    parts_[0] = {columns.value, columns.count, &value};
    parts_[1] = {next == nullptr ? nullptr : next->key, next == nullptr ? 0 : next->count, &key};
    lines_ = parts_[0].lines() + parts_[1].lines();
    part_ = 0;
    Begin(0, 0);
  }

  /// Of the whole split, fetched or not.
  uint32_t lines() const { return lines_; }
  /// The share of softmax, which takes the longer the more query vectors there are to a KV head.
  uint32_t LinesOfSoftmax(uint32_t group) const { return lines_ * group / (group + 24); }

  /// Fetches the next `lines`, as far as there are any: of a few planes in turn, because a core
  /// gets more from several pages than from one.
  HWY_INLINE void Fetch(uint32_t lines) {
    for (; lines > 0 && part_ < kParts; --lines) {
      FetchFar(planes_[run_] + at_);
      if (++run_ < runs_) continue;
      run_ = 0;
      at_ += kLineBytes;
      if (at_ >= parts_[part_].stream->column_bytes) NextPlanes();
    }
  }

 private:
  struct Part {
    uint32_t lines() const {
      if (stream == nullptr) return 0;
      return static_cast<uint32_t>(count * stream->heads * DivUp(stream->column_bytes, kLineBytes));
    }

    const std::byte* const* columns = nullptr;  // of the first head
    uint32_t count = 0;
    const StreamView* stream = nullptr;
  };
  static constexpr uint32_t kParts = 2;

  void NextPlanes() {
    if (head_ + 1 < parts_[part_].stream->heads) return Begin(first_, head_ + 1);
    Begin(first_ + kStreams, 0);
  }

  /// The planes of `head` of the columns from `first` on, or the next part.
  void Begin(uint32_t first, uint32_t head) {
    while (part_ < kParts && first >= parts_[part_].count) {
      ++part_;
      first = 0;
    }
    if (part_ == kParts) return;
    const Part& part = parts_[part_];
    first_ = first;
    head_ = head;
    run_ = 0;
    at_ = 0;
    runs_ = std::min(kStreams, part.count - first);
    for (uint32_t i = 0; i < runs_; ++i) {
      planes_[i] = part.columns[first + i] + head * part.stream->head_stride_bytes;
    }
  }

  Part parts_[kParts];
  uint32_t lines_ = 0;
  uint32_t part_ = kParts;
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
