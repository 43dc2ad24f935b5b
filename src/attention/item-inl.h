// One item from its blocks to its states: walks the splits of a lane subtree in tree order.
#include "attention/decode-inl.h"
#include "attention/prefill-inl.h"
#include "attention/softmax-inl.h"
#include "hwy/highway.h"

#if defined(QUIRE_ATTENTION_ITEM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_ATTENTION_ITEM_INL_H_
#undef QUIRE_ATTENTION_ITEM_INL_H_
#else
#define QUIRE_ATTENTION_ITEM_INL_H_
#endif

#include <algorithm>
#include <bit>

#include "base/bits.h"
#include "base/check.h"

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

/// The functions of one codec, for K and for V.
struct CodecFunctions {
  void (*stream_scores)(const float*, const StreamView&, const StreamView&, const Columns&, float*);
  void (*stream_values)(const ValueRun*, uint32_t, const StreamView&, const Columns*, const float*,
                        float*, size_t);
  void (*expand_key)(const std::byte*, size_t, size_t, float*);
  void (*expand_key_rows)(const std::byte*, size_t, size_t, float*);
  void (*expand_value)(const std::byte*, size_t, float*);
};

template <class Values>
constexpr CodecFunctions FunctionsOf() {
  return {&StreamScores<Values>, &StreamValues<Values>, &ExpandKey<Values>, &ExpandKeyRows<Values>,
          &ExpandValue<Values>};
}

inline CodecFunctions FunctionsFor(Codec codec) {
  switch (codec) {
    case Codec::kF32: return FunctionsOf<cn::F32Values>();
    case Codec::kF16: return FunctionsOf<cn::F16Values>();
    case Codec::kBf16: return FunctionsOf<cn::Bf16Values>();
    default: break;
  }
  QUIRE_CHECK_MSG(false, "codec was checked by Supports");
}

/// One split of the walk: its place in the order of lanes, and what the rows see of it.
struct SplitView {
  uint32_t lane_order = 0;  // lanes of the subtree in tree order: 0 .. kLanes / lane_step - 1
  uint64_t split = 0;
  Columns columns;
};

class ItemRun {
 public:
  ItemRun(const Item& item, const Scratch& scratch)
      : item_(item),
        shape_(*item.shape),
        scratch_(scratch),
        group_(item.group()),
        queries_(item.queries()),
        key_dim_(shape_.key.dim),
        value_dim_(shape_.value.dim),
        out_stride_(OutStride(shape_.value.dim)),
        first_position_(item.task->first_position + item.row_begin),
        key_(FunctionsFor(shape_.key.codec)),
        value_(FunctionsFor(shape_.value.codec)) {}

  States Run() {
    ScaleQueries();
    const uint32_t lanes = kLanes / item_.lane_step;
    uint32_t closed = 0;  // lanes folded and pushed
    uint32_t top = 0;     // the state of the lane being folded
    ClearMax(queries_, scratch_.stack[0]);
    SplitView views[2];
    const SplitView* next = &views[0];
    for (bool have = Find(0, FirstSplit(0), &views[0]); have;) {
      const SplitView& view = *next;
      SplitView* const after = next == &views[0] ? &views[1] : &views[0];
      have = Find(view.lane_order, view.split + kLanes, after);
      next = after;
      for (; closed < view.lane_order; ++closed) Close(closed, &top);
      Attend(view, have ? &next->columns : nullptr);
      MergeStates(queries_, out_stride_, scratch_.factors, scratch_.stack[top], scratch_.split);
    }
    for (; closed < lanes; ++closed) Close(closed, &top);
    return scratch_.stack[0];
  }

 private:
  /// docs/numerics.md: q' = q * scale.
  void ScaleQueries() {
    const Tag d;
    const Vec scale = hn::Set(d, shape_.scale);
    for (uint32_t row = 0; row < item_.rows; ++row) {
      const uint64_t vector = uint64_t{item_.row_begin + row} * shape_.query_heads +
                              uint64_t{item_.head_begin} * group_;
      const float* from = item_.task->queries + vector * key_dim_;
      const size_t values = size_t{item_.queries_per_row()} * key_dim_;
      float* to = scratch_.query + row * values;
      size_t i = 0;
      for (; i + kVecLanes <= values; i += kVecLanes) {
        hn::StoreU(hn::Mul(hn::LoadU(d, from + i), scale), d, to + i);
      }
      for (; i < values; ++i) to[i] = from[i] * shape_.scale;
    }
  }

  /// Pushes the finished lane `order` and merges what the tree has complete: as many merges as
  /// `order` has trailing ones.
  void Close(uint32_t order, uint32_t* top) {
    for (uint32_t ones = order; (ones & 1) != 0; ones /= 2) {
      --*top;
      MergeStates(queries_, out_stride_, scratch_.factors, scratch_.stack[*top],
                  scratch_.stack[*top + 1]);
    }
    ++*top;
    if (*top < kTreeLevels) ClearMax(queries_, scratch_.stack[*top]);
  }

  uint64_t FirstSplit(uint32_t order) const {
    const auto levels = static_cast<uint32_t>(std::countr_zero(kLanes / item_.lane_step));
    return item_.first_lane + uint64_t{item_.lane_step} * BitReverse(order, levels);
  }

  /// The first split at or after `split` of lane `order`, else of the next lanes, that a row sees.
  bool Find(uint32_t order, uint64_t split, SplitView* view) const {
    const uint64_t last = (first_position_ + item_.rows - 1) / kSplitTokens;
    for (;;) {
      for (; split <= last; split += kLanes) {
        if (!Build(split, &view->columns)) continue;
        view->lane_order = order;
        view->split = split;
        return true;
      }
      if (++order == kLanes / item_.lane_step) return false;
      split = FirstSplit(order);
    }
  }

  /// Lists the columns of a split that some row sees; nothing else is touched, its blocks may be
  /// gone.
  bool Build(uint64_t split, Columns* columns) const {
    uint32_t seen = 0;  // bit c: column c
    for (uint32_t row = 0; row < item_.rows; ++row) {
      const VisibleTokens visible = VisibleInSplit(shape_, first_position_ + row, split);
      for (uint32_t r = 0; r < visible.count; ++r) {
        const uint32_t first = visible.ranges[r].begin / kColumnTokens;
        const uint32_t end = (visible.ranges[r].end + kColumnTokens - 1) / kColumnTokens;
        seen |= ((1u << end) - 1) & ~((1u << first) - 1);
      }
    }
    columns->count = 0;
    const uint64_t own_block = first_position_ / shape_.key.block_tokens;
    for (; seen != 0; seen &= seen - 1) {
      const auto index = static_cast<uint32_t>(std::countr_zero(seen));
      const uint64_t token = split * kSplitTokens + index * kColumnTokens;
      const uint64_t block = token / shape_.key.block_tokens;
      const uint64_t in_block = token % shape_.key.block_tokens;
      const std::byte* slot =
          block >= own_block ? item_.task->open[block] : item_.task->sealed[block];
      const uint32_t c = columns->count++;
      columns->index[c] = index;
      columns->key[c] =
          Plane(shape_.key, slot) + in_block * KeyValueBytes() * (KeyInRows() ? key_dim_ : 1);
      columns->value[c] = Plane(shape_.value, slot) + in_block * value_dim_ * ValueValueBytes();
    }
    return columns->count != 0;
  }

  const std::byte* Plane(const StreamLayout& stream, const std::byte* slot) const {
    return slot + stream.offset_bytes + item_.head_begin * stream.head_stride_bytes;
  }
  bool KeyInRows() const { return shape_.key.inner == InnerAxis::kDim; }
  size_t KeyValueBytes() const { return shape_.key.codec == Codec::kF32 ? 4 : 2; }
  size_t ValueValueBytes() const { return shape_.value.codec == Codec::kF32 ? 4 : 2; }
  StreamView KeyView() const {
    return {.heads = item_.heads,
            .group = group_,
            .dim = key_dim_,
            .row_bytes = KeyRowBytes(),
            .head_stride_bytes = shape_.key.head_stride_bytes,
            .block_columns = shape_.key.block_tokens / kColumnTokens};
  }
  StreamView ValueView() const {
    return {.heads = item_.heads,
            .group = group_,
            .dim = value_dim_,
            .head_stride_bytes = shape_.value.head_stride_bytes,
            .block_columns = shape_.value.block_tokens / kColumnTokens};
  }
  size_t KeyRowBytes() const { return shape_.key.block_tokens * KeyValueBytes(); }

  /// The states of every query vector over one split, into scratch.split. `next` are the columns of
  /// the split that follows, or null.
  void Attend(const SplitView& view, const Columns* next) const {
    if (StreamsOneRow(shape_, item_.rows)) {
      Stream(view, next);
    } else {
      Expand(view);
    }
  }

  void Stream(const SplitView& view, const Columns* next) const {
    key_.stream_scores(scratch_.query, KeyView(), ValueView(), view.columns, scratch_.scores);
    const VisibleTokens visible = VisibleInSplit(shape_, first_position_, view.split);
    for (uint32_t q = 0; q < queries_; ++q) {
      Softmax(visible, scratch_.scores + size_t{q} * kSplitTokens, &scratch_.split.max[q],
              &scratch_.split.sum[q]);
    }
    std::fill_n(scratch_.split.out, queries_ * out_stride_, 0.0f);
    ValueRun runs[kColumnsPerSplit + 1];  // both visible ranges may share one column
    const uint32_t run_count = ListRuns(view.columns, visible, runs);
    value_.stream_values(runs, run_count, ValueView(), next, scratch_.scores, scratch_.split.out,
                         out_stride_);
  }

  uint32_t ListRuns(const Columns& columns, const VisibleTokens& visible, ValueRun* runs) const {
    uint32_t count = 0;
    for (uint32_t c = 0; c < columns.count; ++c) {
      const uint32_t first = columns.index[c] * kColumnTokens;
      for (uint32_t r = 0; r < visible.count; ++r) {
        const uint32_t begin = std::max(visible.ranges[r].begin, first);
        const uint32_t end = std::min(visible.ranges[r].end, first + kColumnTokens);
        if (begin >= end) continue;
        const size_t skipped_bytes = (begin - first) * value_dim_ * ValueValueBytes();
        runs[count++] = {columns.value[c] + skipped_bytes, begin, end - begin};
      }
    }
    return count;
  }

  void Expand(const SplitView& view) const {
    const Columns& columns = view.columns;
    const size_t key_panel = key_dim_ * kColumnTokens;
    const auto expand_key = KeyInRows() ? key_.expand_key_rows : key_.expand_key;
    for (uint32_t c = 0; c < columns.count; ++c) {
      const uint32_t index = columns.index[c];
      expand_key(columns.key[c], KeyRowBytes(), key_dim_, scratch_.key + index * key_panel);
      value_.expand_value(columns.value[c], value_dim_,
                          scratch_.value + index * kColumnTokens * kPanelDims);
    }
    std::fill_n(scratch_.split.out, queries_ * out_stride_, 0.0f);
    uint32_t rows = 0;
    for (uint32_t q = 0; q < queries_; q += rows) {
      rows = TileRowsFor(queries_ - q);
      ScoreTile(q, rows, columns);
      WeighTile(q, rows, view.split);
    }
  }

  /// Scores of query vectors [q, q + rows) against every run of neighbouring columns.
  void ScoreTile(uint32_t q, uint32_t rows, const Columns& columns) const {
    const size_t key_panel = key_dim_ * kColumnTokens;
    uint32_t end = 0;
    for (uint32_t c = 0; c < columns.count; c = end) {
      end = c + 1;
      while (end < columns.count && columns.index[end] == columns.index[end - 1] + 1) ++end;
      OuterRows<true>(rows, scratch_.query + q * key_dim_, key_dim_,
                      scratch_.key + columns.index[c] * key_panel, key_panel, end - c, key_dim_,
                      scratch_.scores + size_t{q} * kSplitTokens + columns.index[c] * kColumnTokens,
                      kSplitTokens);
    }
  }

  VisibleTokens VisibleTo(uint32_t query, uint64_t split) const {
    return VisibleInSplit(shape_, first_position_ + query / group_, split);
  }

  /// Softmax and weighted values of query vectors [q, q + rows). Between two ends of anyone's range
  /// all tokens are seen by the same vectors: all of them take the register tile, some go one by
  /// one.
  void WeighTile(uint32_t q, uint32_t rows, uint64_t split) const {
    VisibleTokens visible[kTileRows];
    uint32_t ends[4 * kTileRows];
    uint32_t end_count = 0;
    for (uint32_t r = 0; r < rows; ++r) {
      visible[r] = VisibleTo(q + r, split);
      if (visible[r].count == 0) {
        scratch_.split.max[q + r] = kEmptyMax;
        continue;
      }
      Softmax(visible[r], scratch_.scores + size_t{q + r} * kSplitTokens,
              &scratch_.split.max[q + r], &scratch_.split.sum[q + r]);
      for (uint32_t i = 0; i < visible[r].count; ++i) {
        ends[end_count++] = visible[r].ranges[i].begin;
        ends[end_count++] = visible[r].ranges[i].end;
      }
    }
    std::sort(ends, ends + end_count);
    end_count = static_cast<uint32_t>(std::unique(ends, ends + end_count) - ends);
    for (uint32_t i = 0; i + 1 < end_count; ++i) {
      WeighSegment(q, rows, visible, {ends[i], ends[i + 1]});
    }
  }

  static bool Sees(const VisibleTokens& visible, TokenRange tokens) {
    for (uint32_t i = 0; i < visible.count; ++i) {
      if (visible.ranges[i].begin <= tokens.begin && tokens.end <= visible.ranges[i].end) {
        return true;
      }
    }
    return false;
  }

  void WeighSegment(uint32_t q, uint32_t rows, const VisibleTokens* visible,
                    TokenRange tokens) const {
    uint32_t seeing = 0;
    for (uint32_t r = 0; r < rows; ++r) seeing += Sees(visible[r], tokens) ? 1 : 0;
    if (seeing == rows) {
      WeighRows(q, rows, tokens);
      return;
    }
    for (uint32_t r = 0; r < rows; ++r) {
      if (Sees(visible[r], tokens)) WeighRows(q + r, 1, tokens);
    }
  }

  void WeighRows(uint32_t q, uint32_t rows, TokenRange tokens) const {
    OuterRows<false>(rows, scratch_.scores + size_t{q} * kSplitTokens + tokens.begin, kSplitTokens,
                     scratch_.value + size_t{tokens.begin} * kPanelDims,
                     size_t{kSplitTokens} * kPanelDims,
                     static_cast<uint32_t>(out_stride_ / kPanelDims), tokens.end - tokens.begin,
                     scratch_.split.out + q * out_stride_, out_stride_);
  }

  const Item& item_;
  const AttentionShape& shape_;
  const Scratch& scratch_;
  const uint32_t group_;
  const uint32_t queries_;
  const size_t key_dim_;
  const size_t value_dim_;
  const size_t out_stride_;
  const uint64_t first_position_;
  const CodecFunctions key_;
  const CodecFunctions value_;
};

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
