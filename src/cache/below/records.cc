#include "cache/below/records.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/hash.h"
#include "codec/slot_layout.h"

namespace quire::cache {
namespace {

constexpr uint16_t kAllStreams = 2;   // as the stream of a section that has K and V
constexpr uint16_t kErrorStream = 3;  // of the section that has the error of the others
constexpr uint16_t kTokenStream = 4;  // of the section that has the tokens of a run

/// Appends the sections of one group in one form.
SectionRange AddSections(const codec::SlotLayout& layout, uint32_t group, ArenaLayout arena,
                         std::vector<tier::SectionSpec>& sections) {
  const auto first = static_cast<uint32_t>(sections.size());
  const auto revision = static_cast<uint16_t>(arena);
  struct Piece {
    uint32_t layer;
    uint16_t stream;
    const StreamLayout* layout;
  };
  std::vector<Piece> pieces;
  for (uint32_t layer = 0; layer < layout.layer_count(); ++layer) {
    if (layout.group_of(layer) != group) continue;
    pieces.push_back({layer, 0, &layout.key(layer)});
    if (&layout.value(layer) != &layout.key(layer)) {
      pieces.push_back({layer, 1, &layout.value(layer)});
    }
  }
  const auto group_of = [&](uint32_t layer) {
    const auto& groups = layout.geometry().groups;
    return static_cast<uint16_t>(&layout.geometry_group(layer) - groups.data());
  };
  if (arena != ArenaLayout::kBlockMajor) {
    sections.push_back({.group = group_of(pieces.front().layer),
                        .encoding = static_cast<uint16_t>(pieces.front().layout->codec),
                        .layout_revision = revision,
                        .layer_first = pieces.front().layer,
                        .layer_count = static_cast<uint32_t>(pieces.size()),
                        .head_count = pieces.front().layout->heads,
                        .bytes = layout.slot_bytes(group)});
    return {first, 1};
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    const uint64_t end_bytes =
        i + 1 < pieces.size() ? pieces[i + 1].layout->offset_bytes : layout.slot_bytes(group);
    sections.push_back({.group = group_of(pieces[i].layer),
                        .stream = pieces[i].stream,
                        .encoding = static_cast<uint16_t>(pieces[i].layout->codec),
                        .layout_revision = revision,
                        .layer_first = pieces[i].layer,
                        .layer_count = 1,
                        .head_count = pieces[i].layout->heads,
                        .bytes = end_bytes - pieces[i].layout->offset_bytes});
  }
  return {first, static_cast<uint32_t>(pieces.size())};
}

}  // namespace

Result<RecordShapes> RecordShapes::Create(const SlotClasses& classes, const CacheOptions& options) {
  PerClass<SectionRange> ranges{};
  const auto layout_of = [&](bool open) {
    std::vector<tier::SectionSpec> sections;
    for (uint32_t group = 0; group < classes.group_count(); ++group) {
      const auto& slots = open ? classes.open_layout() : classes.store_layout();
      const ArenaLayout arena = open ? ArenaLayout::kBlockMajor : options.layout;
      ranges[open ? classes.OpenClassOf(group) : group] =
          AddSections(slots, group, arena, sections);
    }
    if (classes.has_ladder() && !open) {
      sections.push_back({.stream = kErrorStream, .bytes = sizeof(FormError)});
    }
    auto layout = tier::RecordLayout::Create(classes.block_tokens(), std::move(sections));
    if (!layout)
      layout.error() = {ErrorCode::kUnsupported, "cache options: store: " + layout.error().message};
    return layout;
  };
  QUIRE_ASSIGN(tier::RecordLayout sealed, layout_of(false));
  RecordShapes shapes(std::move(sealed));
  shapes.has_error_ = classes.has_ladder();
  if (classes.count() > classes.group_count() && !classes.has_ladder()) {
    QUIRE_ASSIGN(shapes.twins_, layout_of(true));
  }
  shapes.profile_ = ProfileFingerprint(options.profile);
  shapes.geometry_ = GeometryFingerprint(options.geometry);
  shapes.group_count_ = classes.group_count();
  shapes.ranges_ = ranges;
  if (classes.only_windows() || classes.residual_blocks() > 0 ||
      options.layout != ArenaLayout::kBlockMajor) {
    return shapes;
  }
  shapes.layers_.resize(classes.layout().layer_count());
  const std::span<const tier::SectionSpec> sections = shapes.sealed_.sections();
  for (uint32_t i = 0; i < sections.size(); ++i) {
    const uint32_t group = classes.layout().group_of(sections[i].layer_first);
    LayerBytes& layer = shapes.layers_[sections[i].layer_first];
    if (layer.bytes == 0) {
      layer = {.group = group, .offset = shapes.slot_bytes_[group], .sections = {.first = i}};
    }
    layer.bytes += sections[i].bytes;
    ++layer.sections.count;
    shapes.slot_bytes_[group] += sections[i].bytes;
  }
  return shapes;
}

// Nothing: a header has no room for so many sections.
std::optional<tier::RecordLayout> RecordShapes::RunOf(uint32_t blocks) const {
  std::vector<tier::SectionSpec> sections;
  for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
    tier::SectionSpec section =
        *std::ranges::find(sealed_.sections(), layer, &tier::SectionSpec::layer_first);
    section.stream = kAllStreams;
    section.bytes = layers_[layer].bytes;
    sections.insert(sections.end(), blocks, section);
  }
  auto layout = tier::RecordLayout::Create(blocks * sealed_.token_count(), std::move(sections));
  if (!layout) return std::nullopt;
  return std::move(*layout);
}

uint64_t RecordShapes::SplitBytes() const {
  if (layers_.empty() || sealed_.token_count() == kSplitTokens) return 0;
  const auto layout = RunOf(kSplitTokens / sealed_.token_count());
  return layout ? layout->record_bytes() : 0;
}

void RecordShapes::FitRuns(uint64_t record_bytes_max) {
  if (layers_.empty()) return;
  for (uint32_t blocks = kSplitTokens / sealed_.token_count(); blocks > 1; blocks /= 2) {
    auto layout = RunOf(blocks);
    if (!layout || layout->record_bytes() > record_bytes_max) continue;
    auto entry = tier::RecordLayout::Create(
        sealed_.token_count(),
        {{.stream = kTokenStream, .bytes = layout->token_count() * sizeof(TokenId)}});
    if (!entry) return;
    run_ = std::move(layout);
    run_entry_ = *std::move(entry);
    run_blocks_ = blocks;
    return;
  }
}

uint64_t RecordShapes::block_bytes() const {
  return std::accumulate(slot_bytes_.begin(), slot_bytes_.end(), uint64_t{0});
}

uint32_t RecordShapes::JoinRun(uint32_t group, uint32_t block,
                               std::span<const uint32_t> crcs) const {
  Crc32cJoiner joiner;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    if (layers_[layer].group != group) continue;
    joiner.Add(crcs[layer * run_blocks_ + block], layers_[layer].bytes);
  }
  return joiner.value();
}

tier::RecordIdentity RecordShapes::IdentityOf(tier::RecordIdentity block, bool of_twins) const {
  if (of_twins) {
    block.parent = block.key;
    block.key = TwinKey(block.key);
  }
  block.profile = profile_;
  block.geometry = geometry_;
  return block;
}

void RecordShapes::CutPayload(uint32_t slot_class, std::byte* payload, std::span<uint32_t> crcs,
                              std::vector<SlotSection>& out) const {
  const auto [first, count] = ranges_[slot_class];
  const tier::RecordLayout& layout = record(slot_class >= group_count_);
  for (uint32_t i = 0; i < count; ++i) {
    out.push_back({.host = payload + layout.offset(first + i),
                   .bytes = layout.sections()[first + i].bytes,
                   .crc = &crcs[i]});
  }
}

uint32_t RecordShapes::Join(uint32_t slot_class, std::span<const uint32_t> crcs) const {
  const auto [first, count] = ranges_[slot_class];
  const auto specs = record(slot_class >= group_count_).sections().subspan(first, count);
  Crc32cJoiner joiner;
  for (size_t i = 0; i < specs.size(); ++i) joiner.Add(crcs[i], specs[i].bytes);
  return joiner.value();
}

}  // namespace quire::cache
