// How the blocks of one cache look as records: which bytes of a slot are which section.
#ifndef QUIRE_CACHE_BELOW_RECORDS_H_
#define QUIRE_CACHE_BELOW_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/state/slot_classes.h"
#include "quire/block_ops.h"
#include "quire/identity.h"
#include "tier/record.h"

namespace quire::cache {

/// Fingerprints that records carry: each says by itself what the root key hashes together.
Digest ProfileFingerprint(const NumericProfile& profile);
Digest GeometryFingerprint(const Geometry& geometry);
/// The key of a block's open forms, which are a record of their own.
Digest TwinKey(const Digest& block_key);
/// The key of a run, which is a record of its own, from that of its last block.
Digest RunKey(const Digest& last_block_key);
/// The key of a run's entry, from that of the block that names it.
Digest RunEntryKey(const Digest& block_key);

/// Consecutive sections of a record.
struct SectionRange {
  uint32_t first = 0;
  uint32_t count = 0;
};

/// One layer in the slot of its group, and in the record of a block.
struct LayerBytes {
  uint32_t group = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  SectionRange sections{};
};

/// The slots of one block.
template <typename Byte>
using BlockSlots = PerGroup<std::span<Byte>>;

/// The records of a cache: one of all sealed forms of a block, and where codecs encode one of its
/// open forms. Block-major a section is one stream of one layer, so that layers can be checked
/// alone; in other arenas it is all of a slot.
///
/// Threads: immutable
class RecordShapes {
 public:
  /// Errors: kUnsupported a block has more layers or bytes than a record may hold
  static Result<RecordShapes> Create(const SlotClasses& classes, const CacheOptions& options);

  /// What a form of a block has to be; `block` says it of its sealed forms, but for the
  /// fingerprints. It points to what that points to.
  tier::RecordIdentity IdentityOf(tier::RecordIdentity block, bool of_twins) const;
  const tier::RecordLayout& sealed() const { return sealed_; }
  bool has_twins() const { return twins_.has_value(); }
  /// Needs has_twins().
  const tier::RecordLayout& twins() const { return *twins_; }
  const tier::RecordLayout& record(bool of_twins) const { return of_twins ? twins() : sealed(); }
  /// With a precision ladder the last section of a block's record is its FormError.
  bool has_error() const { return has_error_; }
  /// In the record that a class belongs to.
  SectionRange sections(uint32_t slot_class) const { return ranges_[slot_class]; }
  /// Of the record of a whole split; 0: there are no runs, as all layers have windows, or blocks
  /// other forms.
  uint64_t SplitBytes() const;
  /// Makes runs as long as a store takes them, up to a split.
  void FitRuns(uint64_t record_bytes_max);
  /// Blocks of a run; 1: there are no runs.
  uint32_t run_blocks() const { return run_blocks_; }
  /// Needs runs.
  const tier::RecordLayout& run() const { return *run_; }
  /// Of a run's entry: its only section is the tokens of the run. Needs runs.
  const tier::RecordLayout& run_entry() const { return *run_entry_; }
  std::span<const LayerBytes> layers() const { return layers_; }
  /// The sections of one layer in a run.
  SectionRange RunSections(uint32_t layer) const {
    return {.first = layer * run_blocks_, .count = run_blocks_};
  }
  /// Appends all sections of a run. Shape: blocks [run_blocks]
  template <typename Byte>
  void CutRun(const std::vector<BlockSlots<Byte>>& blocks,
              std::vector<std::span<Byte>>& out) const {
    for (const LayerBytes& layer : layers_) {
      for (const BlockSlots<Byte>& slots : blocks) {
        out.push_back(slots[layer.group].subspan(layer.offset, layer.bytes));
      }
    }
  }
  /// Of the sealed slots of one group, and of all of a block.
  uint64_t slot_bytes(uint32_t group) const { return slot_bytes_[group]; }
  uint64_t block_bytes() const;
  /// The blocks of a run that lie one after the other, of each its groups in order, for CutRun.
  /// Shape: bytes [run_blocks, block_bytes]
  template <typename Byte>
  std::vector<BlockSlots<Byte>> BlocksIn(std::span<Byte> bytes) const {
    std::vector<BlockSlots<Byte>> blocks(run_blocks_);
    for (BlockSlots<Byte>& slots : blocks) {
      for (uint32_t group = 0; group < group_count_; ++group) {
        slots[group] = bytes.first(slot_bytes_[group]);
        bytes = bytes.subspan(slot_bytes_[group]);
      }
    }
    return blocks;
  }
  /// The checksum of a group's slot of a run's `block`th block. Shape: crcs [run().sections()]
  uint32_t JoinRun(uint32_t group, uint32_t block, std::span<const uint32_t> crcs) const;
  /// Appends the sections of a slot. Shape: bytes [slot_bytes], pieces one after the other
  template <typename Byte>
  void Cut(uint32_t slot_class, std::span<Byte> bytes, std::vector<std::span<Byte>>& out) const {
    const auto [first, count] = ranges_[slot_class];
    uint64_t done = 0;
    for (const tier::SectionSpec& section :
         record(slot_class >= group_count_).sections().subspan(first, count)) {
      out.push_back(bytes.subspan(done, section.bytes));
      done += section.bytes;
    }
  }
  /// Appends the sections of a slot as they lie in a payload. Their checksums go to `crcs`.
  /// Shape: payload [payload_bytes], crcs [sections(slot_class).count]
  void CutPayload(uint32_t slot_class, std::byte* payload, std::span<uint32_t> crcs,
                  std::vector<SlotSection>& out) const;
  /// The checksum of a slot from those of its sections. Shape: crcs [sections(slot_class).count]
  uint32_t Join(uint32_t slot_class, std::span<const uint32_t> crcs) const;

 private:
  explicit RecordShapes(tier::RecordLayout sealed) : sealed_(std::move(sealed)) {}
  std::optional<tier::RecordLayout> RunOf(uint32_t blocks) const;

  Digest profile_{};
  Digest geometry_{};
  uint32_t group_count_ = 1;
  bool has_error_ = false;
  tier::RecordLayout sealed_;
  std::optional<tier::RecordLayout> twins_{};
  PerClass<SectionRange> ranges_{};
  PerGroup<uint64_t> slot_bytes_{};
  std::vector<LayerBytes> layers_{};  // empty: nothing streams, and there are no runs
  uint32_t run_blocks_ = 1;
  std::optional<tier::RecordLayout> run_{};
  std::optional<tier::RecordLayout> run_entry_{};
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_BELOW_RECORDS_H_
