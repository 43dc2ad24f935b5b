#include "tier/cold_writer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/bits.h"
#include "base/canary.h"
#include "base/check.h"
#include "base/log.h"
#include "base/wiped_vector.h"

namespace quire::tier {
namespace {

constexpr uint64_t kFullRetryUs = 30'000'000;   // a full disk may have room again
constexpr uint64_t kFailedRestUs = 30'000'000;  // a place where writing failed may take it again

}  // namespace

void ColdWriter::Put(const PutRequest& request) {
  const auto refuse = [&](StoreOutcome outcome) {
    ++state_.stats.puts[static_cast<size_t>(outcome)];
    state_.End(request.tag, outcome);
  };
  const KeyPrefix key = PrefixOf(request.identity.key);
  if (const auto outcome = Refuse(request)) {
    // It was made again: those before it may have been lost, and it is of use once more.
    if (*outcome == StoreOutcome::kPresent) state_.Use(key, request.identity.block_index);
    return refuse(*outcome);
  }
  // It ends as the first one does: that may fail still.
  if (const auto same = pending_.find(key); same != pending_.end()) {
    return same->second.push_back(request.tag);
  }
  const auto segment = SegmentFor(request);
  if (!segment) return refuse(segment.error());
  Pending& pending = AppendTo(*segment, request);
  pending.entry.used = state_.uses.Use(request.identity.block_index);
  pending.root = RootOf(request);
  state_.stats.bytes_put += request.layout->record_bytes();
}

StoreOutcome ColdWriter::Rewrite(const PutRequest& request, const ColdEntry& from) {
  if (const auto refused = RefuseEpoch(request.identity)) return *refused;
  if (IsTooLarge(*request.layout)) return StoreOutcome::kTooLarge;
  if (IsWriting(from.key)) return StoreOutcome::kBusy;
  const auto now = state_.index.Find(from.key);
  if (!now || now->segment != from.segment || now->page != from.page) return StoreOutcome::kAbsent;
  const auto segment = SegmentFor(request);
  if (!segment) return segment.error();
  Pending& pending = AppendTo(*segment, request);
  pending.entry.used = now->used;
  pending.root = RootOf(request);
  pending.from = from;
  return StoreOutcome::kOk;
}

ColdWriter::Pending& ColdWriter::AppendTo(uint32_t segment, const PutRequest& request) {
  const uint64_t offset = state_.segments[segment].end;
  const uint64_t bytes = request.layout->record_bytes();
  AppendRecord(segment, request,
               {.segment = segment,
                .offset = offset,
                .generation = state_.segments[segment].generation,
                .sequence = state_.sequence++});
  if (open_.records.empty()) open_.begin_us = state_.clock.NowMicros();
  const KeyPrefix key = PrefixOf(request.identity.key);
  pending_[key];
  open_.records.push_back({.tag = request.tag,
                           .entry = {.key = key,
                                     .segment = segment,
                                     .page = static_cast<uint32_t>(offset / kRecordAlignment),
                                     .pages = static_cast<uint32_t>(bytes / kRecordAlignment)},
                           .publisher = request.identity.publisher,
                           .erase_epoch = request.identity.erase_epoch});
  ++state_.stats.writes_pending;
  return open_.records.back();
}

// The parent of a block's twins is the block, which was put before them.
std::optional<RecordRoot> ColdWriter::RootOf(const PutRequest& request) const {
  const Digest& parent = request.identity.parent;
  if (request.identity.block_index > 0 || parent == Digest{}) return std::nullopt;
  const KeyPrefix key = PrefixOf(parent);
  if (pending_.contains(key) || state_.index.Find(key)) return std::nullopt;
  return RecordRoot{.key = parent, .block_tokens = request.layout->token_count()};
}

std::optional<StoreOutcome> ColdWriter::Refuse(const PutRequest& request) {
  if (const auto refused = RefuseEpoch(request.identity)) return refused;
  if (state_.index.Find(PrefixOf(request.identity.key))) return StoreOutcome::kPresent;
  if (IsTooLarge(*request.layout)) return StoreOutcome::kTooLarge;
  return std::nullopt;
}

bool ColdWriter::IsTooLarge(const RecordLayout& layout) const {
  const uint64_t staging = state_.write_staging.chunks() * state_.write_staging.chunk_bytes();
  return layout.record_bytes() > std::min(state_.segments.record_bytes_max(), staging);
}

std::optional<StoreOutcome> ColdWriter::RefuseEpoch(const RecordIdentity& identity) {
  if (!state_.Serves(identity.publisher, identity.erase_epoch)) {
    const bool old = identity.erase_epoch < state_.epochs.Of(identity.publisher);
    return old ? StoreOutcome::kErased : StoreOutcome::kUnknownEpoch;
  }
  // After a crash a record of an epoch that the files do not know would look like old files.
  if (!state_.epochs.IsSaved(identity.publisher)) {
    if (state_.epochs_damaged) return StoreOutcome::kUnknownEpoch;
    if (!state_.KeepEpoch(identity.publisher)) return StoreOutcome::kNoSpace;
    return state_.epochs_failed ? StoreOutcome::kIo : StoreOutcome::kBusy;
  }
  return std::nullopt;
}

bool ColdWriter::StagingHas(uint64_t bytes, uint64_t room) const {
  const uint64_t more = bytes > room ? bytes - room : 0;
  return DivUp(more, state_.write_staging.chunk_bytes()) <= state_.write_staging.free_chunks();
}

std::expected<uint32_t, StoreOutcome> ColdWriter::SegmentFor(const PutRequest& request) {
  const uint64_t bytes = request.layout->record_bytes();
  const PublisherId& publisher = request.identity.publisher;
  const auto active = state_.segments.ActiveOf(publisher);
  if (active) {
    const Stream& stream = streams_[*active];
    const Segment& segment = state_.segments[*active];
    const bool fits = !segment.failed && bytes <= state_.segments.segment_bytes() - segment.end;
    const uint64_t filled = segment.end - stream.chunk_begin;
    const uint64_t room = stream.chunk ? state_.write_staging.chunk_bytes() - filled : 0;
    if (fits && !StagingHas(bytes, room)) return std::unexpected(StoreOutcome::kBusy);
    if (fits) return *active;
  }
  // No records go before it is certain that these can come.
  if (!StagingHas(bytes, 0)) return std::unexpected(StoreOutcome::kBusy);
  if (active) Seal(*active);
  const auto number = NewSegment(publisher);
  if (!number) return number;
  Begin(*number, publisher, request.identity.erase_epoch);
  return number;
}

std::expected<uint32_t, StoreOutcome> ColdWriter::NewSegment(const PublisherId& publisher) {
  const uint64_t now_us = state_.clock.NowMicros();
  bool may_make = now_us >= make_after_us_;
  // What a segment still has is not given up for a write that is likely to fail there again.
  const auto rests = [&](uint32_t segment) {
    return state_.segments[segment].failed && now_us < recycle_failed_after_us_;
  };
  while (true) {
    const auto number = state_.segments.Choose(publisher, may_make, [&](uint32_t segment) {
      return rests(segment) ? std::numeric_limits<double>::infinity()
                            : state_.index.WorthOf(segment, state_.uses.now());
    });
    if (!number) {
      switch (number.error()) {
        case SegmentTable::Refusal::kQuota: return std::unexpected(StoreOutcome::kQuota);
        case SegmentTable::Refusal::kBusy: return std::unexpected(StoreOutcome::kBusy);
        case SegmentTable::Refusal::kProtected: return std::unexpected(StoreOutcome::kNoSpace);
      }
    }
    state_.segments.Reserve(*number);
    const SegmentState state = state_.segments[*number].state;
    if (state == SegmentState::kMissing && !MakeSegment(*number)) {
      may_make = false;
      continue;
    }
    if (state != SegmentState::kFree && rests(*number)) return std::unexpected(StoreOutcome::kIo);
    if (state == SegmentState::kActive) Seal(*number);
    if (state_.segments[*number].state == SegmentState::kSealed) {
      state_.stats.evicted += state_.ForgetSegment(*number);
    }
    return *number;
  }
}

bool ColdWriter::MakeSegment(uint32_t number) {
  const auto file = state_.files.Open(
      state_.PathOf(SegmentName(number)),
      {.create = true, .direct = true, .bytes_preallocated = state_.segments.segment_bytes()});
  if (!file) {
    make_after_us_ = state_.clock.NowMicros() + kFullRetryUs;
    if (std::exchange(state_.stats.disk_full, true)) return false;  // it was said before
    LogWarn("store {}: no more segments can be made, {} of {} are there: {}",
            state_.options.directory, state_.segments.files(), state_.segments.segments_max(),
            file.error().message);
    return false;
  }
  state_.stats.disk_full = false;
  state_.segments[number].file = *file;
  state_.segments[number].state = SegmentState::kFree;
  state_.directory_stale = true;
  state_.stats.bytes += state_.segments.segment_bytes();
  return true;
}

void ColdWriter::Begin(uint32_t number, const PublisherId& publisher, uint64_t erase_epoch) {
  Segment& segment = state_.segments[number];
  segment.Leave();
  segment.state = SegmentState::kActive;
  segment.publisher = publisher;
  segment.erase_epoch = erase_epoch;
  segment.generation = ++state_.generation;
  segment.tail = 0;
  segment.failed = false;
  state_.stored.insert(publisher);
  streams_[number] = {};
  if (segment.HasLeftoversBeside(publisher)) WriteFront(number);
}

// A scan takes a segment for that of the newest header in it. Were that still the former owner's
// when something of the new one is there already, torn by a crash perhaps, it would count as the
// former one's and outlive its erasure. So a void of the new generation is durable before.
void ColdWriter::WriteFront(uint32_t number) {
  Segment& segment = state_.segments[number];
  const Staging& page = fronts_.try_emplace(number, kRecordAlignment, 1).first->second;
  EncodeVoid({.segment = number, .offset = 0, .generation = segment.generation}, kRecordAlignment,
             page.memory());
  segment.end = kRecordAlignment;
  ++segment.writes;
  state_.stats.bytes_written += kRecordAlignment;
  state_.Submit(IoOwner::kWriter,
                writes_.Add({.segment = number, .bytes = kRecordAlignment, .front = true}),
                {.kind = IoKind::kWrite,
                 .file = segment.file,
                 .data = page.memory().data(),
                 .bytes = kRecordAlignment});
}

void ColdWriter::OnFront(const Write& write) {
  Segment& segment = state_.segments[write.segment];
  --segment.writes;
  if (!segment.failed && !write.sync) {
    return Sync({.segment = write.segment, .sync = true, .front = true});
  }
  if (!segment.failed) segment.tail = kRecordAlignment;
  fronts_.erase(write.segment);
}

void ColdWriter::Resume(uint32_t segment) { streams_[segment] = {}; }

void ColdWriter::Close(const PublisherId& publisher) {
  if (const auto active = state_.segments.ActiveOf(publisher)) Seal(*active);
}

void ColdWriter::Seal(uint32_t number) {
  if (streams_[number].chunk) SendChunk(number);
  streams_.erase(number);
  state_.segments[number].state = SegmentState::kSealed;
  state_.segments[number].catalogue_stale = true;
}

void ColdWriter::AppendRecord(uint32_t number, const PutRequest& request,
                              const RecordLocation& location) {
  const RecordLayout& layout = *request.layout;
  QUIRE_CHECK(request.sections.size() == layout.sections().size());
  QUIRE_CHECK(request.crcs.empty() || request.crcs.size() == request.sections.size());
  // The segment is in use until the commit ends.
  if (open_.segments.insert(number).second) ++state_.segments[number].writes;
  if (state_.keys != nullptr) return AppendSealed(number, request, location);
  crcs_.assign(request.crcs.begin(), request.crcs.end());
  for (size_t i = 0; i < request.sections.size(); ++i) {
    QUIRE_CHECK(request.sections[i].size() == layout.sections()[i].bytes);
    if (request.crcs.empty()) crcs_.push_back(Crc32c(request.sections[i]));
  }
  header_.resize(layout.header_bytes());
  EncodeHeader(request.identity, layout, location, crcs_, header_);
  Append(number, header_);
  Wipe(std::span(header_));  // it has the tokens
  uint64_t written = 0;
  for (size_t i = 0; i < request.sections.size(); ++i) {
    AppendZeros(number, layout.offset(i) - written);
    Append(number, request.sections[i]);
    written = layout.offset(i) + request.sections[i].size();
  }
  AppendZeros(number, layout.payload_bytes() - written);
}

// Sections are sealed where they are written from. The header has their checksums, so it comes
// last, and what is full before is held back.
void ColdWriter::AppendSealed(uint32_t number, const PutRequest& request,
                              const RecordLocation& location) {
  const RecordLayout& layout = *request.layout;
  const auto key = state_.keys->KeyFor(request.identity.publisher);
  QUIRE_CHECK(key.has_value());  // SealedStore has made it
  RecordSealer sealer(*key, request.identity, layout);
  holds_back_ = true;
  const auto header = Room(number, layout.header_bytes());
  crcs_.clear();
  uint64_t written = 0;
  for (uint32_t i = 0; i < request.sections.size(); ++i) {
    const uint64_t bytes = layout.sections()[i].bytes;
    AppendZeros(number, layout.offset(i) - written);
    const auto pieces = Room(number, bytes);
    sealer.Seal(i, request.sections[i], pieces);
    uint32_t crc = 0;
    for (const auto piece : pieces) crc = Crc32c(piece, crc);
    crcs_.push_back(crc);
    written = layout.offset(i) + bytes;
  }
  AppendZeros(number, layout.payload_bytes() - written);
  header_.resize(layout.header_bytes());
  EncodeHeader(request.identity, layout, location, crcs_, header_);
  std::span<const std::byte> left = header_;
  for (const auto piece : header) {
    std::ranges::copy(left.first(piece.size()), piece.begin());
    left = left.subspan(piece.size());
  }
  holds_back_ = false;
  SubmitHeld();
}

void ColdWriter::AppendZeros(uint32_t number, uint64_t count) {
  static constexpr std::array<std::byte, kRecordAlignment> kZeros = {};
  Append(number, std::span(kZeros).first(count));
}

void ColdWriter::Append(uint32_t number, std::span<const std::byte> bytes) {
  const bool held_back = std::exchange(holds_back_, true);
  for (const auto piece : Room(number, bytes.size())) {
    std::copy_n(bytes.begin(), piece.size(), piece.begin());
    bytes = bytes.subspan(piece.size());
  }
  holds_back_ = held_back;
  SubmitHeld();
}

// The next bytes of a segment, to be filled in.
std::vector<std::span<std::byte>> ColdWriter::Room(uint32_t number, uint64_t bytes) {
  Stream& stream = streams_[number];
  uint64_t& end = state_.segments[number].end;
  std::vector<std::span<std::byte>> pieces;
  while (bytes > 0) {
    if (!stream.chunk) {
      stream.chunk = state_.write_staging.Take();
      stream.chunk_begin = end;
    }
    const std::span<std::byte> chunk = state_.write_staging[*stream.chunk];
    const uint64_t filled = end - stream.chunk_begin;
    const uint64_t count = std::min<uint64_t>(bytes, chunk.size() - filled);
    pieces.push_back(chunk.subspan(filled, count));
    end += count;
    bytes -= count;
    if (filled + count == chunk.size()) SendChunk(number);
  }
  return pieces;
}

void ColdWriter::SendChunk(uint32_t number) {
  Stream& stream = streams_[number];
  const uint32_t chunk = *std::exchange(stream.chunk, std::nullopt);
  const uint64_t bytes = state_.segments[number].end - stream.chunk_begin;
  ++open_.requests;
  ++state_.segments[number].writes;
  state_.stats.bytes_written += bytes;
  const uint32_t write =
      writes_.Add({.segment = number, .chunk = chunk, .bytes = bytes, .commit = commits_ + 1});
  held_.push_back({.number = write,
                   .segment = number,
                   .request = {.kind = IoKind::kWrite,
                               .file = state_.segments[number].file,
                               .offset = stream.chunk_begin,
                               .data = state_.write_staging[chunk].data(),
                               .bytes = bytes}});
  SubmitHeld();
}

// Zeros that are on their way to the same place must not come after what is written there. Where
// writing has failed nothing more is written.
void ColdWriter::SubmitHeld() {
  if (holds_back_) return;
  std::erase_if(held_, [&](const Held& held) {
    const Segment& segment = state_.segments[held.segment];
    const uint64_t end = held.request.offset + held.request.bytes;
    if (fronts_.contains(held.segment) || end > segment.wiping_from) return false;
    if (segment.failed) {
      EndWrite(writes_.Take(held.number));
    } else {
      state_.Submit(IoOwner::kWriter, held.number, held.request);
    }
    return true;
  });
}

void ColdWriter::Sync(const Write& write) {
  Segment& segment = state_.segments[write.segment];
  ++segment.writes;
  state_.Submit(IoOwner::kWriter, writes_.Add(write),
                {.kind = IoKind::kSync, .file = segment.file});
}

void ColdWriter::EndWrite(const Write& write) {
  --state_.segments[write.segment].writes;
  if (!write.sync) state_.write_staging.Give(write.chunk);
  Commit& commit = write.commit == commits_ + 1 ? open_ : *closing_;
  --commit.requests;
}

void ColdWriter::OnIo(uint32_t number, const IoCompletion& completion) {
  const Write write = writes_.Take(number);
  Segment& segment = state_.segments[write.segment];
  if (completion.error || completion.bytes != write.bytes) {
    // After a failed sync it is unknown what is on disk: the segment takes nothing more.
    if (!segment.failed) {
      LogWarn("store {}: {}: {} failed", state_.options.directory, SegmentName(write.segment),
              write.sync ? "sync" : "write");
    }
    segment.failed = true;
    recycle_failed_after_us_ = state_.clock.NowMicros() + kFailedRestUs;
  }
  write.front ? OnFront(write) : EndWrite(write);
}

void ColdWriter::Tick(uint64_t now_us, bool flush) {
  SubmitHeld();
  if (closing_ && closing_->requests == 0) {
    if (!closing_->syncing) SyncSegments();
    if (closing_->requests == 0) EndCommit();
  }
  if (closing_ || open_.records.empty()) return;
  const bool due = now_us - open_.begin_us >= state_.options.commit_interval_us;
  if (due || flush) StartCommit();
}

void ColdWriter::StartCommit() {
  for (auto& [number, stream] : streams_) {
    if (stream.chunk) SendChunk(number);
  }
  ++commits_;
  closing_ = std::exchange(open_, {});
}

void ColdWriter::SyncSegments() {
  closing_->syncing = true;
  if (Planted(Canary::kForgetSync)) return;
  if (state_.directory_stale) {
    const auto synced = state_.files.SyncDirectory(state_.options.directory);
    if (synced) {
      state_.directory_stale = false;
    } else {
      for (const uint32_t number : closing_->segments) state_.segments[number].failed = true;
    }
  }
  for (const uint32_t number : closing_->segments) {
    if (state_.segments[number].failed) continue;
    ++closing_->requests;
    Sync({.segment = number, .sync = true, .commit = commits_});
  }
}

void ColdWriter::EndCommit() {
  Commit commit = *std::exchange(closing_, std::nullopt);
  if (Planted(Canary::kSwapRecords) && commit.records.size() > 1) {
    std::swap(commit.records[0].entry.page, commit.records[1].entry.page);
    std::swap(commit.records[0].entry.segment, commit.records[1].entry.segment);
  }
  for (const Pending& pending : commit.records) {
    StoreOutcome outcome = Enter(pending);
    if (!pending.from) {
      ++state_.stats.puts[static_cast<size_t>(outcome)];
      state_.End(pending.tag, outcome);
    }
    if (outcome == StoreOutcome::kOk || Planted(Canary::kTellPresent)) {
      outcome = StoreOutcome::kPresent;
    }
    const auto same = pending_.extract(pending.entry.key);
    for (const uint64_t tag : same.mapped()) {
      ++state_.stats.puts[static_cast<size_t>(outcome)];
      state_.End(tag, outcome);
    }
  }
  state_.stats.writes_pending -= commit.records.size();
  for (const uint32_t number : commit.segments) {
    Segment& segment = state_.segments[number];
    --segment.writes;
    segment.catalogue_stale = true;
    // Records that were not committed lie behind the failure: the stream ends here.
    segment.failures = segment.failed ? segment.failures + 1 : 0;
    if (!segment.failed) continue;
    if (segment.state == SegmentState::kActive) Seal(number);
    segment.Fail();
    failed_.push_back(number);
  }
}

StoreOutcome ColdWriter::Enter(const Pending& pending) {
  Segment& segment = state_.segments[pending.entry.segment];
  if (segment.failed && pending.from) ++rewrites_failed_;
  if (segment.failed) return StoreOutcome::kIo;
  if (!state_.Serves(pending.publisher, pending.erase_epoch)) return StoreOutcome::kErased;
  ColdEntry entry = pending.entry;
  const auto before = pending.from ? state_.index.Move(*pending.from, entry) : std::nullopt;
  if (before) {
    entry.used = before->used;
    stale_.push_back(*before);
    ++state_.stats.renewed;
  } else if (!state_.index.Insert(entry)) {
    return StoreOutcome::kPresent;
  }
  state_.CountIn(entry);
  if (pending.root) state_.roots.Add(entry.segment, pending.publisher, *pending.root);
  segment.tail =
      std::max<uint64_t>(segment.tail, (uint64_t{entry.page} + entry.pages) * kRecordAlignment);
  return StoreOutcome::kOk;
}

}  // namespace quire::tier
