// Reading from a cold store: loads pass through staging, are compared with their identity and their
// checksums there, and only then are copied to where they are wanted. Scrubbing reads the same way.
#ifndef QUIRE_TIER_COLD_READER_H_
#define QUIRE_TIER_COLD_READER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "tier/cold_state.h"

namespace quire::tier {

class ColdReader {
 public:
  explicit ColdReader(ColdState& state) : state_(state) {}

  void Get(const LoadRequest& request, uint64_t deadline_us);
  void Cancel(uint64_t tag);
  void Tick(uint64_t now_us);
  void OnIo(uint32_t number, const IoCompletion& completion);

  /// Reads a record in the background and forgets it when it is damaged.
  void Scrub(const ColdEntry& entry);
  bool scrubbing() const { return scrubs_ > 0; }
  /// A record as it lies on the disk, header first.
  struct Copied {
    bool is_done = false;
    std::vector<std::byte> bytes{};  // none: it could not be read, or was damaged and is forgotten
  };
  /// The same, and copies it. Null: there is no staging for it just now.
  std::shared_ptr<Copied> Copy(const ColdEntry& entry);

 private:
  struct Piece {          // of a load: bytes that are next to each other on disk and in memory
    uint64_t offset = 0;  // in the segment
    uint64_t bytes = 0;
    uint32_t chunk = 0;
  };
  struct Load {
    LoadRequest request{};
    uint64_t deadline_us = 0;
    uint64_t begin_us = 0;
    ColdEntry entry{};
    std::vector<Piece> pieces{};
    // Not null: it is not read again.
    std::shared_ptr<const KnownHeaders::Header> known{};
    uint64_t payload_begin = 0;  // of what is read, in the payload
    uint32_t requests = 0;       // in flight
    std::optional<StoreOutcome> failure{};
    bool truncated = false;
    bool started = false;
    bool ended = false;  // its completion was given: nothing of the caller may be touched
    bool scrub = false;
    std::shared_ptr<Copied> copy{};  // of what is scrubbed; may be null
  };
  struct Read {
    uint32_t load = 0;
    uint64_t bytes = 0;
  };

  std::optional<StoreCompletion> Refuse(const LoadRequest& request,
                                        std::optional<ColdEntry> entry) const;
  bool ReadWhole(const ColdEntry& entry, std::shared_ptr<Copied> copy);
  void PlanPieces(Load& load) const;
  void AddRun(Load& load, uint64_t offset, uint64_t bytes) const;
  void StartWaiting();
  bool Start(uint32_t number);
  void Finish(uint32_t number);
  void NoteUnreadable(const ColdEntry& entry);
  void End(Load& load, StoreOutcome outcome, RecordMiss miss = RecordMiss::kNone);
  RecordMiss Verify(Load& load);
  RecordMiss VerifyScrubbed(Load& load);
  bool IsDamage(const Load& load, RecordMiss miss);
  bool Checks(Load& load, uint64_t header_bytes, size_t first, size_t count);
  std::vector<std::span<std::byte>> SectionOf(Load& load, uint32_t section);
  bool CopyOut(Load& load);
  bool OpenOut(Load& load);
  void CopySection(Load& load, uint64_t payload_offset, std::span<std::byte> out);
  void KeepHeader(const Load& load);
  KnownHeaders::Place PlaceOf(const ColdEntry& entry) const;
  std::span<const std::byte> HeaderOf(const Load& load);
  std::span<std::byte> BytesOf(const Piece& piece);

  ColdState& state_;
  std::vector<std::optional<Load>> loads_;
  std::vector<uint32_t> free_;
  std::deque<uint32_t> waiting_;
  InFlight<Read> reads_;
  std::set<KeyPrefix> unreadable_;  // that the disk failed to read the last time
  uint32_t reads_in_flight_ = 0;
  uint32_t scrubs_ = 0;
};

}  // namespace quire::tier

#endif  // QUIRE_TIER_COLD_READER_H_
