// One item from its blocks to its states: walks the splits of a lane subtree in tree order.
#include "attention/fixed-inl.h"
#include "attention/forms-inl.h"
#include "attention/scales-inl.h"
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
#include "codec/planes.h"
#include "codec/rotate.h"

HWY_BEFORE_NAMESPACE();
namespace quire::attention::HWY_NAMESPACE {

static_assert(kTileRows <= kAmxQueriesMax);

/// The slots of one sequence in one form; null where an item reads none.
struct SlotRow {
  SlotRow(const Item& item, const BlockTable& table)
      : base(table.base),
        stride_bytes(table.slot_stride_bytes),
        slots(item.has_splits() ? table.Row(item.task->sequence) : nullptr) {}

  bool Has(uint64_t block) const { return slots[block] != kNoSlot; }
  const std::byte* At(uint64_t block) const { return base + slots[block] * stride_bytes; }

  const std::byte* base;
  uint64_t stride_bytes;
  const uint32_t* slots;
};

class ItemRun {
 public:
  /// `amx`: tiles for integer codes, or null.
  ItemRun(const Item& item, const Scratch& scratch, AmxTiles* amx)
      : item_(item),
        shape_(*item.shape),
        scratch_(scratch),
        group_(item.group()),
        queries_(item.queries()),
        queries_per_head_(item.rows * group_),
        key_dim_(shape_.key.dim),
        value_dim_(shape_.value.dim),
        out_stride_(OutStride(shape_.value.dim)),
        fixed_stride_(FixedStride(shape_.key.dim)),
        first_position_(item.task->first_position + item.row_begin),
        has_open_form_(HasOpenForm(shape_)),
        sealed_(item, item.tables->sealed),
        open_(item, item.tables->open),
        amx_(!item.streams() || PaysForTiles(shape_, queries_per_head_) ? amx : nullptr),
        forms_{{shape_.key, shape_.value, amx_ != nullptr},
               {OpenKey(shape_), OpenValue(shape_), amx_ != nullptr}} {}

  States Run() {
    if (item_.has_splits()) ScaleQueries();
    const uint32_t lanes = kLanes / item_.lane_step;
    uint32_t closed = 0;  // lanes folded and pushed
    uint32_t top = 0;     // the state of the lane being folded
    Open(0, scratch_.stack[0]);
    SplitView views[2];
    const SplitView* next = &views[0];
    for (bool have = Find(0, FirstSplit(0), &views[0]); have;) {
      const SplitView& view = *next;
      SplitView* const after = next == &views[0] ? &views[1] : &views[0];
      have = Find(view.lane_order, view.split + kLanes, after);
      next = after;
      for (; closed < view.lane_order; ++closed) Close(closed, &top);
      Attend(view, have ? next->first() : nullptr);
      MergeStates(queries_, out_stride_, scratch_.factors, scratch_.stack[top], scratch_.split);
    }
    for (; closed < lanes; ++closed) Close(closed, &top);
    return scratch_.stack[0];
  }

 private:
  /// docs/numerics.md: q' = q * scale, rotated as K is, its fixed point, and the sum that mids are
  /// multiplied with.
  void ScaleQueries() {
    const Tag d;
    const Vec scale = hn::Set(d, shape_.scale);
    for (uint32_t row = 0; row < item_.rows; ++row) {
      const uint64_t of_row = item_.row_begin + row;
      const float* from = item_.sequences != nullptr
                              ? item_.sequences[of_row]->queries
                              : item_.task->queries + of_row * shape_.query_heads * key_dim_;
      const size_t values = size_t{group_} * key_dim_;
      for (uint32_t head = 0; head < item_.heads; ++head) {
        const float* of_head = from + (item_.head_begin + head) * values;
        float* to = scratch_.query + FirstQuery(row, head) * key_dim_;
        size_t i = 0;
        for (; i + kVecLanes <= values; i += kVecLanes) {
          hn::StoreU(hn::Mul(hn::LoadU(d, of_head + i), scale), d, to + i);
        }
        for (; i < values; ++i) to[i] = of_head[i] * shape_.scale;
      }
    }
    if (shape_.key.rotated) codec::Rotate(scratch_.query, queries_, shape_.key.dim);
    if (codec::HasIntegerCodes(shape_.key.codec)) FixQueries();
    if (!codec::HasMids(shape_.key.codec)) return;
    for (uint32_t q = 0; q < queries_; ++q) {
      float sum = 0.0f;
      for (size_t i = 0; i < key_dim_; ++i) sum += scratch_.query[q * key_dim_ + i];
      scratch_.query_sum[q] = sum;
    }
  }

  /// Query vectors of one KV head are neighbours, those of one row among them too.
  size_t FirstQuery(uint32_t row, uint32_t head) const {
    return size_t{head} * queries_per_head_ + size_t{row} * group_;
  }

  /// Query vectors of the tile that begins with `query`.
  uint32_t RowsFrom(uint32_t query) const {
    const uint32_t left = queries_ - query;
    return amx_ != nullptr ? std::min(left, kAmxQueriesMax) : TileRowsFor(left);
  }

  void FixQueries() {
    if (!item_.streams()) {
      for (uint32_t q = 0; q < queries_; q += RowsFrom(q)) FixSlice(q, RowsFrom(q));
      return;
    }
    const GroupSlices slices(queries_per_head_, forms_[0].integer_key.key_slice);
    for (uint32_t q = 0; q < queries_;) {
      for (uint32_t slice = 0; slice < slices.count; q += slices.size(slice++)) {
        FixSlice(q, slices.size(slice));
      }
    }
  }

  /// Query vectors [first, first + count), which are taken together.
  void FixSlice(size_t first, size_t count) {
    forms_[0].integer_key.fix_queries(
        scratch_.query + first * key_dim_, count, key_dim_, fixed_stride_,
        {.code_unit = codec::IntegerUnit(shape_.key.codec), .bias = forms_[0].integer_key.bias},
        scratch_.fixed_query + first * fixed_stride_, scratch_.query_units + first,
        scratch_.query_bias_terms + first);
  }

  FixedQueries Queries() const {
    return {scratch_.fixed_query, scratch_.query_units, scratch_.query_bias_terms, fixed_stride_};
  }
  FixedWeights Weights() const {
    return {scratch_.fixed_weights, scratch_.weight_units, scratch_.weight_bias_terms};
  }

  bool IsWanted(uint64_t lane) const { return ((item_.lanes >> lane) & 1) != 0; }

  /// The state of a lane that nothing of this item is folded into yet.
  void Open(uint32_t order, const States& state) const {
    ClearMax(queries_, state);
    const uint64_t lane = LaneAt(order);
    if (item_.from == nullptr || !IsWanted(lane)) return;
    ForStates(*item_.from, lane, [&](uint64_t at, size_t q) HWY_ATTR {
      state.max[q] = item_.from->max[at];
      if (state.max[q] == kEmptyMax) return;
      state.sum[q] = item_.from->sum[at];
      float* const out = state.out + q * out_stride_;
      std::fill_n(std::copy_n(item_.from->out + at * value_dim_, value_dim_, out),
                  out_stride_ - value_dim_, 0.0f);
    });
  }

  /// Leaves the finished state of a lane in `to`.
  void Keep(uint32_t order, const States& state) const {
    const uint64_t lane = LaneAt(order);
    if (!IsWanted(lane)) return;
    ForStates(*item_.to, lane, [&](uint64_t at, size_t q) HWY_ATTR {
      const bool empty = state.max[q] == kEmptyMax;
      item_.to->max[at] = state.max[q];
      item_.to->sum[at] = empty ? 0.0f : state.sum[q];
      float* const out = item_.to->out + at * value_dim_;
      if (empty) {
        std::fill_n(out, value_dim_, 0.0f);
      } else {
        std::copy_n(state.out + q * out_stride_, value_dim_, out);
      }
    });
  }

  /// f(index in `states`, query vector of the item) for one lane.
  template <class F>
  void ForStates(const LaneStates& states, uint64_t lane, const F& f) const {
    const uint64_t lanes = LaneCount(states.lanes);
    for (uint32_t row = 0; row < item_.rows; ++row) {
      const uint64_t of_row = (item_.states_row + row) * shape_.query_heads;
      const uint64_t first = states.At(0, 0, 0, static_cast<uint32_t>(lane));
      for (uint32_t head = 0; head < item_.heads; ++head) {
        const uint64_t of_head = of_row + uint64_t{item_.head_begin + head} * group_;
        for (uint32_t g = 0; g < group_; ++g) {
          f((of_head + g) * lanes + first, FirstQuery(row, head) + g);
        }
      }
    }
  }

  /// Ends lane `order`, which stays in `to`, or is pushed and merged with what the tree has
  /// complete: as many merges as `order` has trailing ones.
  void Close(uint32_t order, uint32_t* top) {
    if (item_.to != nullptr) {
      Keep(order, scratch_.stack[0]);
    } else {
      for (uint32_t ones = order; (ones & 1) != 0; ones /= 2) {
        --*top;
        MergeStates(queries_, out_stride_, scratch_.factors, scratch_.stack[*top],
                    scratch_.stack[*top + 1]);
      }
      ++*top;
    }
    if (order + 1 < kLanes / item_.lane_step) Open(order + 1, scratch_.stack[*top]);
  }

  uint64_t LaneAt(uint32_t order) const {
    const auto levels = static_cast<uint32_t>(std::countr_zero(kLanes / item_.lane_step));
    return item_.first_lane + uint64_t{item_.lane_step} * BitReverse(order, levels);
  }

  /// The item's first split of a lane, if it has any.
  uint64_t FirstSplit(uint32_t order) const {
    const uint64_t begin = item_.splits.begin;
    return begin + (LaneAt(order) - begin) % kLanes;
  }

  /// The first split at or after `split` of lane `order`, else of the next lanes, that a row sees.
  bool Find(uint32_t order, uint64_t split, SplitView* view) const {
    const uint64_t last = (first_position_ + item_.rows - 1) / kSplitTokens;
    const uint64_t end = std::min(item_.splits.end, last + 1);
    for (;;) {
      for (; split < end && IsWanted(split % kLanes); split += kLanes) {
        if (!Build(split, view->forms)) continue;
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
  bool Build(uint64_t split, Columns* forms) const {
    uint32_t seen = 0;  // bit c: column c
    for (uint32_t row = 0; row < item_.rows; ++row) {
      const VisibleTokens visible = VisibleInSplit(shape_, first_position_ + row, split);
      for (uint32_t r = 0; r < visible.count; ++r) {
        const uint32_t first = visible.ranges[r].begin / kColumnTokens;
        const uint32_t end = (visible.ranges[r].end + kColumnTokens - 1) / kColumnTokens;
        seen |= ((1u << end) - 1) & ~((1u << first) - 1);
      }
    }
    forms[0].count = forms[1].count = 0;
    for (; seen != 0; seen &= seen - 1) {
      const auto index = static_cast<uint32_t>(std::countr_zero(seen));
      const uint64_t token = split * kSplitTokens + index * kColumnTokens;
      const uint64_t block = token / shape_.key.block_tokens;
      const bool is_open = IsReadOpen(shape_, first_position_, block, open_.Has(block));
      const int form = is_open && has_open_form_ ? 1 : 0;
      AddColumn(forms_[form], (is_open ? open_ : sealed_).At(block), index,
                static_cast<uint32_t>(token % shape_.key.block_tokens), &forms[form]);
    }
    return forms[0].count + forms[1].count != 0;
  }

  void AddColumn(const Form& form, const std::byte* slot, uint32_t index, uint32_t in_block,
                 Columns* columns) const {
    const auto plane = [&](const StreamLayout& stream) {
      return slot + stream.offset_bytes + item_.head_begin * stream.head_stride_bytes;
    };
    const auto scales = [&](const StreamLayout& stream) {
      return slot + stream.scale_offset_bytes + item_.head_begin * stream.scale_head_stride_bytes +
             in_block * cn::F16Values::kBytes;
    };
    const uint32_t c = columns->count++;
    columns->index[c] = index;
    columns->key[c] = plane(form.key) + ColumnOffset(form.key, in_block);
    columns->value[c] = plane(form.value) + ColumnOffset(form.value, in_block);
    if (!IsIdentity(form.key.codec)) columns->key_scale[c] = scales(form.key);
    if (!IsIdentity(form.value.codec)) columns->value_scale[c] = scales(form.value);
  }

  StreamView ViewOf(const StreamLayout& stream) const {
    return {
        .layout = &stream,
        .heads = item_.heads,
        .group = queries_per_head_,
        .dim = stream.dim,
        .row_bytes = stream.block_tokens * CodeBytes(stream.codec),
        .head_stride_bytes = stream.head_stride_bytes,
        .column_bytes = codec::PlaneBytes(stream.codec, stream.inner, stream.dim, kColumnTokens),
        .token_bytes = stream.dim * CodeBytes(stream.codec),
        .block_columns = stream.block_tokens / kColumnTokens,
        .scale_head_stride_bytes = IsIdentity(stream.codec) ? 0 : stream.scale_head_stride_bytes};
  }

  /// The states of every query vector over one split, into scratch.split. `next` are the columns of
  /// the split that follows, or null.
  void Attend(const SplitView& view, const Columns* next) const {
    if (item_.streams()) {
      Stream(view, next);
    } else {
      Expand(view, next);
    }
  }

  void Stream(const SplitView& view, const Columns* next) const {
    LinesAhead ahead;
    const StreamView views[2] = {ViewOf(shape_.key), ViewOf(shape_.value)};
    if (FetchesEvenly(forms_[0])) ahead.Start(views[0], views[1], view.forms[0], next);
    for (int f = 0; f < 2; ++f) {
      const Form& form = forms_[f];
      const Columns& columns = view.forms[f];
      if (columns.count == 0) continue;
      if (form.has_integer_keys()) {
        form.integer_key.stream_scores(Queries(), ViewOf(form.key), ViewOf(form.value), columns,
                                       scratch_.scores, amx_, &ahead);
      } else {
        form.of_key.stream_scores(scratch_.query, ViewOf(form.key), ViewOf(form.value), columns,
                                  scratch_.scores, &ahead);
      }
    }
    const VisibleTokens visible = VisibleInSplit(shape_, first_position_, view.split);
    ClearSums();
    FetchValueScales(view, 0);
    for (uint32_t head = 0; head < item_.heads; ++head) WeighHead(view, visible, head, &ahead);
    for (int f = 0; f < 2; ++f) {
      const Form& form = forms_[f];
      const Columns& columns = view.forms[f];
      if (columns.count == 0) continue;
      if (form.has_integer_values()) {
        form.integer_value.stream_values(columns, ViewOf(form.key), ViewOf(form.value), next,
                                         Weights(), scratch_.split.out, out_stride_, amx_, &ahead);
        continue;
      }
      ValueRun runs[kColumnsPerSplit + 1];  // both visible ranges may share one column
      const uint32_t run_count = ListRuns(form, columns, visible, runs);
      form.of_value.stream_values(runs, run_count, ViewOf(form.key), ViewOf(form.value), next,
                                  scratch_.scores, scratch_.split.out, out_stride_, &ahead);
    }
    AddMidSums();
  }

  /// Products of one head's queries and keys to the weights of its values. Head by head, because
  /// the scores of all heads do not fit the first-level cache.
  void WeighHead(const SplitView& view, const VisibleTokens& visible, uint32_t head,
                 LinesAhead* ahead) const {
    constexpr uint32_t kTurns = 3;  // through the query vectors, below
    const uint32_t lines = DivUp(ahead->LinesOfSoftmax(queries_per_head_), kTurns * queries_);
    if (head + 1 < item_.heads) FetchValueScales(view, head + 1);
    const uint32_t begin = head * queries_per_head_;
    const uint32_t end = begin + queries_per_head_;
    HeadScales scales;
    for (int f = 0; f < 2; ++f) {
      const Form& form = forms_[f];
      const Columns& columns = view.forms[f];
      if (columns.count == 0) continue;
      if (!IsIdentity(form.key.codec)) {
        LoadScales(form.key, columns, columns.key_scale, head, &scales);
        ScaleScoresOf(form, columns, scales, begin, queries_per_head_);
      }
      if (shape_.alibi_slopes != nullptr) AddDistances(view.split, columns, begin, end - begin);
    }
    const States& split = scratch_.split;
    for (uint32_t q = begin; q < end; ++q) {
      split.max[q] = MaxScore(visible, Scores(q));
      ahead->Fetch(lines);
    }
    for (uint32_t q = begin; q < end; ++q) {
      split.sum[q] = WeighScores(visible, split.max[q], Scores(q));
      ahead->Fetch(lines);
    }
    for (int f = 0; f < 2; ++f) {
      const Form& form = forms_[f];
      const Columns& columns = view.forms[f];
      if (columns.count == 0 || IsIdentity(form.value.codec)) continue;
      LoadScales(form.value, columns, columns.value_scale, head, &scales);
      const SeenColumns seen(visible, ColumnBits(columns));
      for (uint32_t q = begin; q < end; ++q) {
        ahead->Fetch(lines);
        if (form.has_integer_values()) {
          FixWeightsOf(q, form, seen, scales, visible);
        } else {
          ScaleWeights(columns, scales, form.of_value.weight_unit, Scores(q));
        }
      }
    }
  }

  /// Fetches the scales of V's planes of one head, which are wanted when the weights of the head
  /// before it are ready. (Sooner, and K drives them out again.)
  void FetchValueScales(const SplitView& view, uint32_t head) const {
    for (int f = 0; f < 2; ++f) {
      const StreamLayout& value = forms_[f].value;
      if (IsIdentity(value.codec)) continue;
      const Columns& columns = view.forms[f];
      for (uint32_t c = 0; c < columns.count; ++c) {
        hwy::Prefetch(columns.value_scale[c] + head * value.scale_head_stride_bytes);
      }
    }
  }

  float* Scores(uint32_t query) const { return scratch_.scores + size_t{query} * kSplitTokens; }

  void ClearSums() const {
    std::fill_n(scratch_.split.out, queries_ * out_stride_, 0.0f);
    std::fill_n(scratch_.mid_sum, queries_, 0.0f);
  }

  void AddMidSums() const {
    if (!codec::HasMids(shape_.value.codec)) return;
    AddMids(scratch_.mid_sum, queries_, scratch_.split.out, out_stride_);
  }

  /// Scores of query vectors [q, q + count) of one head.
  void ScaleScoresOf(const Form& form, const Columns& columns, const HeadScales& scales, uint32_t q,
                     uint32_t count) const {
    for (const uint32_t end = q + count; q < end; ++q) {
      if (codec::HasMids(form.key.codec)) {
        ScaleScores<true>(columns, scales, scratch_.query_sum[q], Scores(q));
      } else {
        ScaleScores<false>(columns, scales, 0.0f, Scores(q));
      }
    }
  }

  /// ALiBi, for query vectors [q, q + count).
  void AddDistances(uint64_t split, const Columns& columns, uint32_t q, uint32_t count) const {
    const float* const slopes = shape_.alibi_slopes + size_t{item_.head_begin} * group_;
    for (const uint32_t end = q + count; q < end; ++q) {
      const uint64_t position = PositionOf(q % queries_per_head_ / group_);
      const auto behind = static_cast<int64_t>(position - split * kSplitTokens);
      const float slope = slopes[q / queries_per_head_ * group_ + q % group_];
      AddSlope(columns, slope, -static_cast<float>(behind), Scores(q));
    }
  }

  uint64_t PositionOf(uint32_t row) const {
    if (item_.sequences == nullptr) return first_position_ + row;
    return item_.sequences[item_.row_begin + row]->first_position;
  }

  void FixWeightsOf(uint32_t q, const Form& form, const SeenColumns& seen, const HeadScales& scales,
                    const VisibleTokens& visible) const {
    constexpr size_t kGroups = FixedWeights::kGroups;
    const Codec codec = form.value.codec;
    const IntegerValues values = {.code_unit = codec::IntegerUnit(codec),
                                  .bias = form.integer_value.bias};
    const auto fix = codec::HasMids(codec) ? FixWeights<true> : FixWeights<false>;
    fix(visible, seen, scales, values, Scores(q),
        {.codes = scratch_.fixed_weights + size_t{q} * kSplitTokens,
         .units = scratch_.weight_units + q * kGroups,
         .bias_terms = scratch_.weight_bias_terms + q * kGroups,
         .mid_sum = &scratch_.mid_sum[q]});
  }

  uint32_t ListRuns(const Form& form, const Columns& columns, const VisibleTokens& visible,
                    ValueRun* runs) const {
    const StreamView view = ViewOf(form.value);
    uint32_t count = 0;
    for (uint32_t c = 0; c < columns.count; ++c) {
      const uint32_t first = columns.index[c] * kColumnTokens;
      for (uint32_t r = 0; r < visible.count; ++r) {
        const uint32_t begin = std::max(visible.ranges[r].begin, first);
        const uint32_t end = std::min(visible.ranges[r].end, first + kColumnTokens);
        if (begin >= end) continue;
        runs[count++] = {columns.value[c] + (begin - first) * view.token_bytes, begin, end - begin};
      }
    }
    return count;
  }

  void Expand(const SplitView& view, const Columns* next) const {
    HeadScales key_scales[2];
    HeadScales value_scales[2];
    for (int f = 0; f < 2; ++f) {
      const Form& form = forms_[f];
      const Columns& columns = view.forms[f];
      for (uint32_t c = 0; c < columns.count; ++c) {
        ExpandKeyColumn(form, columns, c);
        ExpandValueColumn(form, columns, c);
      }
      if (!IsIdentity(form.key.codec)) {
        LoadScales(form.key, columns, columns.key_scale, 0, &key_scales[f]);
      }
      if (!IsIdentity(form.value.codec)) {
        LoadScales(form.value, columns, columns.value_scale, 0, &value_scales[f]);
      }
    }
    ClearSums();
    uint32_t rows = 0;
    for (uint32_t q = 0; q < queries_; q += rows) {
      rows = RowsFrom(q);
      if (next != nullptr) FetchShare(*next, q, q + rows);
      for (int f = 0; f < 2; ++f) {
        if (forms_[f].has_integer_keys()) {
          forms_[f].integer_key.score_tile(Queries().From(q), rows, scratch_.key_pairs, key_dim_,
                                           view.forms[f], Scores(q), amx_);
        } else {
          ScoreTile(q, rows, view.forms[f]);
        }
        if (!IsIdentity(forms_[f].key.codec)) {
          ScaleScoresOf(forms_[f], view.forms[f], key_scales[f], q, rows);
        }
        if (shape_.alibi_slopes != nullptr) AddDistances(view.split, view.forms[f], q, rows);
      }
      WeighTile(q, rows, view, value_scales);
    }
    AddMidSums();
  }

  /// Fetches what the next split is expanded from, a share of it with every tile of query vectors:
  /// memory works while this split is computed.
  void FetchShare(const Columns& next, uint32_t query_begin, uint32_t query_end) const {
    const StreamView key = ViewOf(forms_[0].key);
    const size_t value_bytes = ViewOf(forms_[0].value).column_bytes;
    // A column of K is contiguous, or its channels are a row apart.
    const bool contiguous =
        codec::HasIntegerCodes(key.layout->codec) || key.layout->inner == InnerAxis::kDim;
    const size_t key_step = contiguous ? kLineBytes : std::max(key.row_bytes, kLineBytes);
    const size_t key_end = contiguous ? key.column_bytes : key.dim * key.row_bytes;
    const uint32_t end = next.count * query_end / queries_;
    for (uint32_t c = next.count * query_begin / queries_; c < end; ++c) {
      for (size_t at = 0; at < key_end; at += key_step) hwy::Prefetch(next.key[c] + at);
      for (size_t at = 0; at < value_bytes; at += kLineBytes) hwy::Prefetch(next.value[c] + at);
    }
  }

  void ExpandKeyColumn(const Form& form, const Columns& columns, uint32_t c) const {
    const StreamLayout& key = form.key;
    const uint32_t index = columns.index[c];
    if (form.has_integer_keys()) {
      form.integer_key.expand_key(columns.key[c], key.dim, index, scratch_.key_pairs);
      return;
    }
    const auto expand =
        key.inner == InnerAxis::kDim ? form.of_key.expand_key_rows : form.of_key.expand_key;
    expand(columns.key[c], key.block_tokens * CodeBytes(key.codec), key_dim_,
           scratch_.key + index * key_dim_ * kColumnTokens);
  }

  void ExpandValueColumn(const Form& form, const Columns& columns, uint32_t c) const {
    const uint32_t index = columns.index[c];
    if (form.has_integer_values()) {
      form.integer_value.expand_value(columns.value[c], value_dim_, index, scratch_.value_pairs);
      return;
    }
    const uint32_t first = index * kColumnTokens;
    form.of_value.expand_value(columns.value[c], value_dim_, scratch_.value + first * kPanelDims);
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

  /// Softmax and weighted values of query vectors [q, q + rows). Between two neighbouring ends of
  /// any vector's range, all tokens are seen by the same vectors: if that is all vectors they take
  /// the register tile, else they are computed one by one.
  void WeighTile(uint32_t q, uint32_t rows, const SplitView& view, const HeadScales* scales) const {
    VisibleTokens visible[kAmxQueriesMax];
    uint32_t ends[4 * kAmxQueriesMax];
    uint32_t end_count = 0;
    for (uint32_t r = 0; r < rows; ++r) {
      visible[r] = VisibleTo(q + r, view.split);
      scratch_.split.max[q + r] =
          visible[r].count == 0 ? kEmptyMax : MaxScore(visible[r], Scores(q + r));
    }
    for (uint32_t r = 0; r < rows; ++r) {
      if (visible[r].count == 0) continue;
      scratch_.split.sum[q + r] = WeighScores(visible[r], scratch_.split.max[q + r], Scores(q + r));
    }
    for (int f = 0; f < 2; ++f) {
      const Columns& columns = view.forms[f];
      if (columns.count == 0) continue;
      if (forms_[f].has_integer_values()) {
        WeighIntegerTile(q, rows, forms_[f], columns, scales[f], visible);
      } else if (!IsIdentity(forms_[f].value.codec)) {
        for (uint32_t r = 0; r < rows; ++r) {
          ScaleWeights(columns, scales[f], 1.0f, Scores(q + r));
        }
      }
    }
    const bool open_alone = forms_[0].has_integer_values();
    if (open_alone && (view.forms[1].count == 0 || forms_[1].has_integer_values())) return;
    for (uint32_t r = 0; r < rows; ++r) {
      if (open_alone) visible[r] = InColumns(visible[r], view.forms[1]);
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

  void WeighIntegerTile(uint32_t q, uint32_t rows, const Form& form, const Columns& columns,
                        const HeadScales& scales, const VisibleTokens* visible) const {
    const uint32_t bits = ColumnBits(columns);
    for (uint32_t r = 0; r < rows; ++r) {
      FixWeightsOf(q + r, form, SeenColumns(visible[r], bits), scales, visible[r]);
    }
    form.integer_value.weigh_tile(Weights().From(q), rows, scratch_.value_pairs,
                                  static_cast<uint32_t>(out_stride_ / kPanelDims),
                                  columns.index[0] / kColumnsPerGroup,
                                  columns.index[columns.count - 1] / kColumnsPerGroup + 1,
                                  scratch_.split.out + q * out_stride_, out_stride_, amx_);
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
  const uint32_t queries_per_head_;
  const size_t key_dim_;
  const size_t value_dim_;
  const size_t out_stride_;
  const size_t fixed_stride_;
  const uint64_t first_position_;
  const bool has_open_form_;
  const SlotRow sealed_;
  const SlotRow open_;
  AmxTiles* const amx_;
  const Form forms_[2];
};

}  // namespace quire::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
