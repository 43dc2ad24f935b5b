#include "tier/cold_reader.h"

#include <algorithm>
#include <bit>

#include "base/bits.h"
#include "base/canary.h"
#include "base/check.h"
#include "base/wiped_vector.h"
#include "tier/record_seal.h"

namespace quire::tier {

void ColdReader::Get(const LoadRequest& request, uint64_t deadline_us) {
  const RecordLayout& layout = *request.layout;
  QUIRE_CHECK(request.section_count > 0 && request.out.size() == request.section_count);
  QUIRE_CHECK(request.crcs.empty() || request.crcs.size() == request.section_count);
  QUIRE_CHECK(uint64_t{request.section_first} + request.section_count <= layout.sections().size());
  Load load = {
      .request = request, .deadline_us = deadline_us, .begin_us = state_.clock.NowMicros()};
  ++state_.stats.loads_pending;
  const auto entry = state_.index.Find(PrefixOf(request.identity.key));
  if (const auto refused = Refuse(request, entry)) {
    return End(load, refused->outcome, refused->miss);
  }
  load.entry = *entry;
  PlanPieces(load);
  if (load.pieces.size() > state_.read_staging.chunks()) return End(load, StoreOutcome::kTooLarge);
  // From here on the segment is in use: it may not be written anew.
  ++state_.segments[load.entry.segment].reads;
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(loads_.size()));
    loads_.emplace_back();
  }
  const uint32_t number = free_.back();
  free_.pop_back();
  loads_[number] = std::move(load);
  waiting_.push_back(number);
  StartWaiting();
}

std::optional<StoreCompletion> ColdReader::Refuse(const LoadRequest& request,
                                                  std::optional<ColdEntry> entry) const {
  const RecordIdentity& identity = request.identity;
  if (identity.erase_epoch < state_.epochs.Of(identity.publisher)) {
    return StoreCompletion{.outcome = StoreOutcome::kErased};
  }
  if (!entry || !state_.Serves(identity.publisher, identity.erase_epoch)) {
    return StoreCompletion{.outcome = StoreOutcome::kAbsent};
  }
  // The index knows the length: what cannot be the record is not even read.
  if (entry->pages * kRecordAlignment != request.layout->record_bytes() &&
      !Planted(Canary::kTrustCatalogue)) {
    return StoreCompletion{.outcome = StoreOutcome::kMiss, .miss = RecordMiss::kOtherLayout};
  }
  return std::nullopt;
}

void ColdReader::AddRun(Load& load, uint64_t offset, uint64_t bytes) const {
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t count = std::min(state_.read_staging.chunk_bytes(), bytes - done);
    load.pieces.push_back({.offset = offset + done, .bytes = count});
    done += count;
  }
}

void ColdReader::PlanPieces(Load& load) const {
  const RecordLayout& layout = *load.request.layout;
  const uint64_t record = load.entry.page * kRecordAlignment;
  const size_t last = load.request.section_first + load.request.section_count - 1;
  const uint64_t begin = RoundDown(layout.offset(load.request.section_first), kRecordAlignment);
  const uint64_t end =
      RoundUp(layout.offset(last) + layout.sections()[last].bytes, kRecordAlignment);
  load.payload_begin = begin;
  load.known = state_.headers.Find(PlaceOf(load.entry));
  if (load.known != nullptr) {
    AddRun(load, record + layout.header_bytes() + begin, end - begin);
  } else if (begin == 0) {
    AddRun(load, record, layout.header_bytes() + end);
  } else {
    AddRun(load, record, layout.header_bytes());
    AddRun(load, record + layout.header_bytes() + begin, end - begin);
  }
}

void ColdReader::Scrub(const ColdEntry& entry) {
  if (!ReadWhole(entry, nullptr)) return;
  state_.stats.bytes_scrubbed += entry.pages * kRecordAlignment;
}

std::shared_ptr<ColdReader::Copied> ColdReader::Copy(const ColdEntry& entry) {
  auto copy = std::make_shared<Copied>();
  return ReadWhole(entry, copy) ? copy : nullptr;
}

// False: loads come first.
bool ColdReader::ReadWhole(const ColdEntry& entry, std::shared_ptr<Copied> copy) {
  Load load = {.entry = entry, .ended = true, .scrub = true, .copy = std::move(copy)};
  AddRun(load, entry.page * kRecordAlignment, entry.pages * kRecordAlignment);
  if (load.pieces.size() > state_.read_staging.free_chunks()) return false;
  ++state_.segments[entry.segment].reads;
  ++scrubs_;
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(loads_.size()));
    loads_.emplace_back();
  }
  const uint32_t number = free_.back();
  free_.pop_back();
  loads_[number] = std::move(load);
  QUIRE_CHECK(Start(number));
  return true;
}

void ColdReader::StartWaiting() {
  while (!waiting_.empty() && reads_in_flight_ < state_.options.reads_max) {
    const uint32_t number = waiting_.front();
    Load& load = *loads_[number];
    const RecordIdentity& identity = load.request.identity;
    // Not even the staging has what was erased while it waited.
    const bool served = state_.Serves(identity.publisher, identity.erase_epoch);
    if (!load.ended && !served) End(load, StoreOutcome::kErased);
    if (!load.ended && !Start(number)) return;
    waiting_.pop_front();
    if (!loads_[number]->started) Finish(number);  // it ended while it waited
  }
}

bool ColdReader::Start(uint32_t number) {
  Load& load = *loads_[number];
  if (load.pieces.size() > state_.read_staging.free_chunks()) return false;
  load.started = true;
  const FileId file = state_.segments[load.entry.segment].file;
  for (Piece& piece : load.pieces) {
    piece.chunk = state_.read_staging.Take();
    if (!load.scrub) ++state_.stats.read_requests;
    ++load.requests;
    ++reads_in_flight_;
    const uint32_t read = reads_.Add({.load = number, .bytes = piece.bytes});
    state_.Submit(IoOwner::kReader, read,
                  {.kind = IoKind::kRead,
                   .file = file,
                   .offset = piece.offset,
                   .data = state_.read_staging[piece.chunk].data(),
                   .bytes = piece.bytes});
  }
  return true;
}

void ColdReader::OnIo(uint32_t number, const IoCompletion& completion) {
  const Read read = reads_.Take(number);
  Load& load = *loads_[read.load];
  --reads_in_flight_;
  state_.stats.bytes_read += completion.bytes;
  if (completion.error) load.failure = StoreOutcome::kIo;
  load.truncated |= completion.bytes != read.bytes;
  if (--load.requests == 0) Finish(read.load);
}

void ColdReader::Finish(uint32_t number) {
  Load& load = *loads_[number];
  if (load.started && load.failure) {
    NoteUnreadable(load.entry);
    if (!load.ended) End(load, *load.failure);
  } else if (load.started && (!load.ended || load.scrub)) {
    unreadable_.erase(load.entry.key);
    RecordMiss miss = RecordMiss::kTruncated;
    if (!load.truncated) miss = load.scrub ? VerifyScrubbed(load) : Verify(load);
    const RecordIdentity& identity = load.request.identity;
    const bool served = !load.ended && state_.Serves(identity.publisher, identity.erase_epoch);
    if (miss == RecordMiss::kNone && served && !CopyOut(load)) miss = RecordMiss::kPayloadDamaged;
    if (miss != RecordMiss::kNone && IsDamage(load, miss)) state_.Quarantine(load.entry);
    if (miss == RecordMiss::kNone && load.copy != nullptr) {
      for (const Piece& piece : load.pieces) {
        const auto bytes = BytesOf(piece);
        load.copy->bytes.insert(load.copy->bytes.end(), bytes.begin(), bytes.end());
      }
    }
    if (!load.ended && miss != RecordMiss::kNone) End(load, StoreOutcome::kMiss, miss);
    if (!load.ended) {
      if (served) {
        KeepHeader(load);
        state_.Use(load.entry.key, identity.block_index);
      }
      End(load, served ? StoreOutcome::kOk : StoreOutcome::kErased);
    }
  }
  if (load.started) {
    for (const Piece& piece : load.pieces) state_.read_staging.Give(piece.chunk);
  }
  if (load.scrub) --scrubs_;
  if (load.copy != nullptr) load.copy->is_done = true;
  --state_.segments[load.entry.segment].reads;
  loads_[number].reset();
  free_.push_back(number);
}

// A disk that fails once may have had a bad moment. Twice in a row means for good:
// it is forgotten, so that it can be stored again elsewhere.
void ColdReader::NoteUnreadable(const ColdEntry& entry) {
  constexpr size_t kRememberedMax = 1024;
  if (unreadable_.size() >= kRememberedMax) unreadable_.clear();
  if (unreadable_.insert(entry.key).second) return;
  unreadable_.erase(entry.key);
  state_.Quarantine(entry);
}

void ColdReader::End(Load& load, StoreOutcome outcome, RecordMiss miss) {
  load.ended = true;
  StoreStats& stats = state_.stats;
  --stats.loads_pending;
  ++stats.loads[static_cast<size_t>(outcome)];
  if (outcome == StoreOutcome::kMiss) ++stats.misses[static_cast<size_t>(miss)];
  if (outcome == StoreOutcome::kOk) {
    const uint64_t us = std::max<uint64_t>(state_.clock.NowMicros() - load.begin_us, 1);
    const auto bin = static_cast<size_t>(std::bit_width(us) - 1);
    ++stats.load_us_log2[std::min(bin, stats.load_us_log2.size() - 1)];
  }
  state_.End(load.request.tag, outcome, miss);
}

void ColdReader::Cancel(uint64_t tag) {
  for (auto& load : loads_) {
    if (load && !load->ended && load->request.tag == tag) End(*load, StoreOutcome::kCancelled);
  }
}

void ColdReader::Tick(uint64_t now_us) {
  for (auto& load : loads_) {
    if (load && !load->ended && load->deadline_us != 0 && now_us >= load->deadline_us) {
      End(*load, StoreOutcome::kDeadline);
    }
  }
  StartWaiting();
}

KnownHeaders::Place ColdReader::PlaceOf(const ColdEntry& entry) const {
  return {.generation = state_.segments[entry.segment].generation,
          .segment = entry.segment,
          .page = entry.page};
}

// A caller that reads some sections of a record reads the others later.
void ColdReader::KeepHeader(const Load& load) {
  const RecordLayout& layout = *load.request.layout;
  if (load.known != nullptr || load.request.section_count == layout.sections().size()) return;
  state_.headers.Keep(PlaceOf(load.entry), HeaderOf(load).first(layout.header_bytes()));
}

std::span<const std::byte> ColdReader::HeaderOf(const Load& load) {
  if (load.known != nullptr) return *load.known;
  return BytesOf(load.pieces.front());
}

std::span<std::byte> ColdReader::BytesOf(const Piece& piece) {
  return state_.read_staging[piece.chunk].first(piece.bytes);
}

RecordMiss ColdReader::Verify(Load& load) {
  const LoadRequest& request = load.request;
  const std::span<const std::byte> header = HeaderOf(load);
  const RecordLocation location = {.segment = load.entry.segment,
                                   .offset = load.entry.page * kRecordAlignment,
                                   .generation = state_.segments[load.entry.segment].generation};
  RecordMiss miss = MatchHeader(header, request.identity, *request.layout, location);
  if (Planted(Canary::kTrustCatalogue)) {
    const auto summary = InspectHeader(header);
    miss = summary ? RecordMiss::kNone : summary.error();
  }
  if (miss != RecordMiss::kNone) return miss;
  if (Planted(Canary::kSkipVerify)) return miss;
  if (state_.keys != nullptr) return miss;  // tags say what checksums do: see OpenOut
  const bool good =
      Checks(load, request.layout->header_bytes(), request.section_first, request.section_count);
  return good ? RecordMiss::kNone : RecordMiss::kPayloadDamaged;
}

// Where a section lies in what was read.
std::vector<std::span<std::byte>> ColdReader::SectionOf(Load& load, uint32_t section) {
  const RecordLayout& layout = *load.request.layout;
  const uint64_t begin = load.entry.page * kRecordAlignment + layout.header_bytes() +
                         layout.offset(section);  // in the segment
  const uint64_t end = begin + layout.sections()[section].bytes;
  std::vector<std::span<std::byte>> pieces;
  for (const Piece& piece : load.pieces) {
    const uint64_t from = std::max(begin, piece.offset);
    const uint64_t to = std::min(end, piece.offset + piece.bytes);
    if (from < to) pieces.push_back(BytesOf(piece).subspan(from - piece.offset, to - from));
  }
  return pieces;
}

RecordMiss ColdReader::VerifyScrubbed(Load& load) {
  const auto summary = InspectHeader(HeaderOf(load));
  if (!summary) return summary.error();
  if (summary->is_void || PrefixOf(summary->key) != load.entry.key) return RecordMiss::kOtherKey;
  if (summary->record_bytes() != load.entry.pages * kRecordAlignment) {
    return RecordMiss::kOtherLayout;
  }
  const bool good = Checks(load, summary->header_bytes, 0, summary->section_count);
  return good ? RecordMiss::kNone : RecordMiss::kPayloadDamaged;
}

// A record that is what the index says stays, though it is not what this caller wanted.
bool ColdReader::IsDamage(const Load& load, RecordMiss miss) {
  if (load.truncated || miss == RecordMiss::kPayloadDamaged || miss == RecordMiss::kOtherLocation) {
    return true;
  }
  const auto summary = InspectHeader(HeaderOf(load));
  return !summary || summary->is_void || PrefixOf(summary->key) != load.entry.key;
}

// Unless the header is known it is the start of the first piece, and the payload follows it.
bool ColdReader::Checks(Load& load, uint64_t header_bytes, size_t first, size_t count) {
  SectionChecker checker(StoredSections(HeaderOf(load)), load.payload_begin);
  uint64_t skipped = load.known != nullptr ? 0 : header_bytes;
  for (const Piece& piece : load.pieces) {
    const uint64_t skip = std::min(skipped, piece.bytes);
    checker.Feed(BytesOf(piece).subspan(skip));
    skipped -= skip;
  }
  return checker.Good(first, count);
}

// False: a sealed section is not what was sealed.
bool ColdReader::CopyOut(Load& load) {
  if (state_.keys != nullptr) return OpenOut(load);
  const LoadRequest& request = load.request;
  for (uint32_t i = 0; i < request.section_count; ++i) {
    CopySection(load, request.layout->offset(request.section_first + i), request.out[i]);
  }
  const auto stored = StoredSections(HeaderOf(load)).subspan(request.section_first);
  for (size_t i = 0; i < request.crcs.size(); ++i) request.crcs[i] = stored[i].crc;
  return true;
}

bool ColdReader::OpenOut(Load& load) {
  const LoadRequest& request = load.request;
  RecordOpener opener(*state_.keys, request.identity, *request.layout);
  for (uint32_t i = 0; i < request.section_count; ++i) {
    const uint32_t section = request.section_first + i;
    if (opener.Open(section, SectionOf(load, section), request.out[i])) continue;
    for (const auto out : request.out.first(i + 1)) Wipe(out);
    return false;
  }
  for (size_t i = 0; i < request.crcs.size(); ++i) request.crcs[i] = Crc32c(request.out[i]);
  return true;
}

void ColdReader::CopySection(Load& load, uint64_t payload_offset, std::span<std::byte> out) {
  const uint64_t begin = load.entry.page * kRecordAlignment + load.request.layout->header_bytes() +
                         payload_offset;  // in the segment
  for (const Piece& piece : load.pieces) {
    const uint64_t from = std::max(begin, piece.offset);
    const uint64_t to = std::min(begin + out.size(), piece.offset + piece.bytes);
    if (from >= to) continue;
    const auto bytes = BytesOf(piece).subspan(from - piece.offset, to - from);
    std::copy_n(bytes.begin(), bytes.size(), out.begin() + static_cast<ptrdiff_t>(from - begin));
  }
}

}  // namespace quire::tier
