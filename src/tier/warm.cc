#include "tier/warm.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <utility>

#include "base/canary.h"
#include "base/check.h"
#include "base/stream_copy.h"
#include "base/wiped_vector.h"

namespace quire::tier {
namespace {

/// What a record takes besides its bytes: its entry, those of the map and of the list.
constexpr uint64_t kEntryBytes = 512;

bool IsWhole(const LoadRequest& load) {
  return load.section_first == 0 && load.section_count == load.layout->sections().size();
}

}  // namespace

size_t WarmStore::DigestHash::operator()(const Digest& digest) const {
  size_t hash = 0;  // keys are digests: any of their bytes are as good as others
  std::memcpy(&hash, digest.data(), sizeof(hash));
  return hash;
}

WarmStore::WarmStore(const WarmOptions& options, const Clock& clock, std::unique_ptr<Store> below)
    : options_(options),
      clock_(clock),
      below_(std::move(below)),
      memory_(options.allocator != nullptr ? *options.allocator : PlainHostAllocator(),
              options.bytes_cap, "the warm tier"),
      arena_(options.bytes_cap) {
  MutexLock lock(mutex_);
  stats_.bytes_cap = options.bytes_cap;
  if (memory_.pinned()) stats_.pinned_bytes = options.bytes_cap;
}

WarmStore::~WarmStore() {
  MutexLock lock(mutex_);
  while (!records_.empty()) Forget(records_.begin());
  for (const auto& [key, place] : placed_) GivePlace(place);
}

void WarmStore::Put(std::span<const PutRequest> requests) {
  for (const PutRequest& request : requests) {
    const uint64_t epoch = EpochOf(request.identity.publisher);
    StoreOutcome outcome = StoreOutcome::kOk;
    {
      MutexLock lock(mutex_);
      outcome = Insert(request, epoch);
      if (below_ == nullptr) ++alone_.puts[static_cast<size_t>(outcome)];
    }
    if (below_ != nullptr) {
      below_->Put({&request, 1});
    } else {
      done_.push_back({.tag = request.tag, .outcome = outcome});
    }
    // The store below has read what lay there.
    if (outcome != StoreOutcome::kOk) Withdraw(request.identity.key);
  }
}

std::span<std::byte> WarmStore::Place(const RecordIdentity& identity, const RecordLayout& layout) {
  const uint64_t epoch = EpochOf(identity.publisher);
  MutexLock lock(mutex_);
  if (placed_.contains(identity.key)) return {};
  if (Admit(identity, layout, epoch) != StoreOutcome::kOk) return {};
  Placed& entry = placed_[identity.key];
  const auto place = TakePlace(identity.publisher, layout.record_bytes());
  if (!place) {
    placed_.erase(identity.key);
    return {};
  }
  entry = *place;
  return memory_.bytes().subspan(entry.at + layout.header_bytes(), layout.payload_bytes());
}

void WarmStore::Withdraw(const Digest& key) {
  MutexLock lock(mutex_);
  const auto placed = placed_.find(key);
  if (placed == placed_.end()) return;
  GivePlace(placed->second);
  placed_.erase(placed);
}

StoreOutcome WarmStore::Admit(const RecordIdentity& identity, const RecordLayout& layout,
                              uint64_t epoch) {
  if (identity.erase_epoch < epoch) return StoreOutcome::kErased;
  if (identity.erase_epoch > epoch) return StoreOutcome::kUnknownEpoch;
  if (const auto known = by_key_.find(identity.key); known != by_key_.end()) {
    records_.splice(records_.end(), records_, known->second);
    return StoreOutcome::kPresent;
  }
  const uint64_t taken_bytes = layout.record_bytes() + kEntryBytes;
  if (taken_bytes > options_.bytes_cap) return StoreOutcome::kTooLarge;
  const auto publisher = publishers_.find(identity.publisher);
  if (publisher != publishers_.end() && taken_bytes > publisher->second.bytes_quota) {
    return StoreOutcome::kQuota;
  }
  return StoreOutcome::kOk;
}

StoreOutcome WarmStore::Insert(const PutRequest& request, uint64_t epoch) {
  const RecordIdentity& identity = request.identity;
  const RecordLayout& layout = *request.layout;
  if (const StoreOutcome admitted = Admit(identity, layout, epoch); admitted != StoreOutcome::kOk) {
    return admitted;
  }
  struct GiveBack {
    ~GiveBack() {
      if (place) give(*place);
    }
    std::function<void(const Placed&)> give;
    std::optional<Placed> place{};
  } kept{.give = [this](const Placed& place) QUIRE_REQUIRES(mutex_) { GivePlace(place); }};
  if (const auto placed = placed_.find(identity.key); placed != placed_.end()) {
    kept.place = placed->second;
    placed_.erase(placed);
  } else {
    kept.place = TakePlace(identity.publisher, layout.record_bytes());
  }
  if (!kept.place) return StoreOutcome::kNoSpace;
  QUIRE_CHECK(kept.place->size_bytes == layout.record_bytes());
  Record record{.key = identity.key,
                .publisher = identity.publisher,
                .erase_epoch = identity.erase_epoch,
                .location = {.sequence = sequence_++},
                .at = kept.place->at,
                .size_bytes = kept.place->size_bytes};
  const std::span<std::byte> bytes = BytesOf(record);
  std::vector<uint32_t> crcs(request.crcs.begin(), request.crcs.end());
  for (size_t i = 0; i < request.sections.size(); ++i) {
    const std::span<const std::byte> section = request.sections[i];
    std::byte* const to = bytes.data() + layout.header_bytes() + layout.offset(i);
    if (section.data() != to) std::copy_n(section.begin(), section.size(), to);
    if (request.crcs.empty()) crcs.push_back(Crc32c(section));
    // Another record may have lain there.
    const bool is_last = i + 1 == request.sections.size();
    std::fill(to + section.size(),
              is_last ? bytes.data() + bytes.size()
                      : bytes.data() + layout.header_bytes() + layout.offset(i + 1),
              std::byte{0});
  }
  EncodeHeader(identity, layout, record.location, crcs, bytes.first(layout.header_bytes()));
  // The parent of a first block is its root, which is no record.
  if (identity.block_index == 0 && identity.parent != Digest{} &&
      !by_key_.contains(identity.parent)) {
    record.root = {.key = identity.parent, .block_tokens = layout.token_count()};
  }
  Publisher& of = publishers_[identity.publisher];
  uint64_t* const of_root = record.root.block_tokens != 0 ? &of.roots[record.root] : nullptr;
  Records one;
  one.push_back(record);
  by_key_[identity.key] = one.begin();
  // Nothing fails from here on.
  records_.splice(records_.end(), one);
  if (of_root != nullptr) ++*of_root;
  ++of.usage.records;
  of.usage.bytes_live += kept.place->size_bytes;
  ++stats_.records;
  kept.place.reset();
  return StoreOutcome::kOk;
}

bool WarmStore::IsLent(const Record& record) {
  return record.loans > 0 && !Planted(Canary::kForgetLoan);
}

std::optional<WarmStore::Placed> WarmStore::TakePlace(const PublisherId& publisher,
                                                      uint64_t size_bytes) {
  const auto at = MakeRoom(publisher, size_bytes);
  if (!at) return std::nullopt;
  publishers_.at(publisher).usage.bytes += size_bytes + kEntryBytes;
  stats_.bytes += size_bytes + kEntryBytes;
  return Placed{.publisher = publisher, .at = *at, .size_bytes = size_bytes};
}

void WarmStore::GivePlace(const Placed& place) {
  Clear(place, place.at, place.at);
  arena_.Give(place.at, place.size_bytes);
}

void WarmStore::Clear(const Placed& place, uint64_t begin, uint64_t end) {
  const uint64_t place_end = place.at + place.size_bytes;
  const uint64_t before = std::clamp(begin, place.at, place_end);
  const uint64_t after = std::clamp(end, before, place_end);
  Wipe(memory_.bytes().subspan(place.at, before - place.at));
  Wipe(memory_.bytes().subspan(after, place_end - after));
  publishers_.at(place.publisher).usage.bytes -= place.size_bytes + kEntryBytes;
  stats_.bytes -= place.size_bytes + kEntryBytes;
}

// The least recently used: own records while the quota is exceeded, then whatever floors do not
// keep. Nothing goes before it is certain that there will be room.
std::optional<uint64_t> WarmStore::MakeRoom(const PublisherId& publisher, uint64_t size_bytes) {
  const uint64_t bytes = size_bytes + kEntryBytes;
  const Publisher& own = publishers_[publisher];
  std::map<PublisherId, uint64_t> gone;  // bytes of the victims
  std::vector<Records::iterator> victims;
  uint64_t freed = 0;
  const auto take = [&](Records::iterator record) {
    const uint64_t taken_bytes = record->size_bytes + kEntryBytes;
    gone[record->publisher] += taken_bytes;
    freed += taken_bytes;
    victims.push_back(record);
  };
  for (auto record = records_.begin(); record != records_.end(); ++record) {
    if (own.usage.bytes - freed + bytes <= own.bytes_quota) break;
    if (record->publisher == publisher && !IsLent(*record)) take(record);
  }
  if (own.usage.bytes - freed + bytes > own.bytes_quota) return std::nullopt;
  const size_t for_quota = victims.size();
  // The next one that may go for the others' sake; the end: there is none.
  auto next = records_.begin();
  const auto take_next = [&]() QUIRE_REQUIRES(mutex_) {
    for (; next != records_.end(); ++next) {
      const auto chosen = victims.begin() + static_cast<ptrdiff_t>(for_quota);
      if (IsLent(*next) || std::find(victims.begin(), chosen, next) != chosen) continue;
      if (next->publisher != publisher) {
        const Publisher& other = publishers_[next->publisher];
        const uint64_t floor = below_ == nullptr ? other.bytes_floor : 0;
        const uint64_t left = other.usage.bytes - gone[next->publisher];
        if (left < floor + next->size_bytes + kEntryBytes) continue;
      }
      take(next++);
      return true;
    }
    return false;
  };
  arena_.Prepare();
  while (stats_.bytes - freed + bytes > options_.bytes_cap) {
    if (!take_next()) return std::nullopt;
  }
  size_t given = 0;
  const auto give = [&]() QUIRE_REQUIRES(mutex_) {
    for (; given < victims.size(); ++given) {
      arena_.Give(victims[given]->at, victims[given]->size_bytes);
    }
  };
  give();
  std::optional<uint64_t> at = arena_.Take(size_bytes);
  try {
    while (!at && take_next()) {
      give();
      at = arena_.Take(size_bytes);
    }
  } catch (const std::bad_alloc&) {
    at = std::nullopt;
  }
  if (!at) {
    for (size_t i = 0; i < given; ++i) arena_.TakeAt(victims[i]->at, victims[i]->size_bytes);
    return std::nullopt;
  }
  for (const auto victim : victims) {
    ++stats_.evicted;
    Unlist(victim);
    Clear(PlaceOf(*victim), *at, *at + size_bytes);
    records_.erase(victim);
  }
  return at;
}

void WarmStore::Forget(Records::iterator record) {
  Unlist(record);
  if (IsLent(*record)) {
    record->forgotten = true;
    forgotten_.splice(forgotten_.end(), records_, record);
    return;
  }
  GivePlace(PlaceOf(*record));
  records_.erase(record);
}

void WarmStore::Unlist(Records::iterator record) {
  Publisher& of = publishers_[record->publisher];
  const auto root = of.roots.find(record->root);
  if (root != of.roots.end() && --root->second == 0) of.roots.erase(root);
  --of.usage.records;
  of.usage.bytes_live -= record->size_bytes;
  --stats_.records;
  by_key_.erase(record->key);
}

void WarmStore::Find(std::span<const Digest> keys, std::span<Presence> out) const {
  if (below_ != nullptr) {
    below_->Find(keys, out);
  } else {
    std::ranges::fill(out, Presence::kAbsent);
  }
  MutexLock lock(mutex_);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (by_key_.contains(keys[i])) out[i] = Presence::kPresent;
  }
}

std::vector<RecordRoot> WarmStore::RootsOf(const PublisherId& publisher) const {
  std::vector<RecordRoot> roots;
  if (below_ != nullptr) roots = below_->RootsOf(publisher);
  MutexLock lock(mutex_);
  if (const auto known = publishers_.find(publisher); known != publishers_.end()) {
    for (const auto& [root, count] : known->second.roots) roots.push_back(root);
  }
  std::ranges::sort(roots);
  const auto repeated = std::ranges::unique(roots);
  roots.erase(repeated.begin(), repeated.end());
  return roots;
}

void WarmStore::SetLimits(const PublisherLimits& limits) {
  if (below_ != nullptr) below_->SetLimits(limits);
  MutexLock lock(mutex_);
  Publisher& publisher = publishers_[limits.publisher];
  publisher.bytes_quota = limits.bytes_quota;
  publisher.bytes_floor = limits.bytes_floor;
}

// What it has no room for itself goes below all the same.
uint64_t WarmStore::FitRecords(uint64_t record_bytes) {
  if (below_ != nullptr) return below_->FitRecords(record_bytes);
  return options_.bytes_cap - std::min(options_.bytes_cap, kEntryBytes);
}

void WarmStore::Touch(std::span<const RecordUse> uses, std::span<Presence> out) {
  if (below_ != nullptr) {
    below_->Touch(uses, out);
  } else {
    std::ranges::fill(out, Presence::kAbsent);
  }
  MutexLock lock(mutex_);
  for (size_t i = 0; i < uses.size(); ++i) {
    const auto known = by_key_.find(uses[i].key);
    if (known == by_key_.end()) continue;
    records_.splice(records_.end(), records_, known->second);
    if (below_ == nullptr) out[i] = Presence::kPresent;
  }
}

void WarmStore::Get(std::span<const LoadRequest> loads, uint64_t deadline_us) {
  for (const LoadRequest& load : loads) {
    StoreCompletion completion{.tag = load.tag, .outcome = StoreOutcome::kAbsent};
    const uint64_t epoch = EpochOf(load.identity.publisher);
    bool answered = false;
    {
      MutexLock lock(mutex_);
      const bool late = deadline_us != 0 && clock_.NowMicros() >= deadline_us;
      if (late) completion.outcome = StoreOutcome::kDeadline;
      answered = late || Answer(load, epoch, &completion) || below_ == nullptr;
      if (answered) {
        ++alone_.loads[static_cast<size_t>(completion.outcome)];
        ++alone_.misses[static_cast<size_t>(completion.miss)];
      }
    }
    if (!answered) {
      if (IsWhole(load)) below_loads_.push_back(load);
      below_->Get({&load, 1}, deadline_us);
      continue;
    }
    if (completion.outcome == StoreOutcome::kOk && below_ != nullptr) {
      Presence presence = Presence::kUnknown;
      below_->Find({&load.identity.key, 1}, {&presence, 1});
      completion.is_durable = presence == Presence::kPresent;
    }
    done_.push_back(completion);
  }
}

bool WarmStore::Answer(const LoadRequest& load, uint64_t epoch, StoreCompletion* completion) {
  if (load.identity.erase_epoch < epoch) {
    completion->outcome = StoreOutcome::kErased;
    return true;
  }
  const auto known = by_key_.find(load.identity.key);
  if (known == by_key_.end()) return false;
  const Record& record = *known->second;
  const RecordLayout& layout = *load.layout;
  completion->outcome = StoreOutcome::kMiss;
  const std::span<const std::byte> bytes = BytesOf(record);
  if (record.size_bytes != layout.record_bytes()) {
    completion->miss = RecordMiss::kOtherLayout;
    return below_ == nullptr;
  }
  const std::span<const std::byte> header = bytes.first(layout.header_bytes());
  completion->miss = MatchHeader(header, load.identity, layout, record.location);
  bool good = completion->miss == RecordMiss::kNone;
  if (good && load.loan == nullptr) {
    const auto stored = StoredSections(header);
    for (uint32_t i = 0; good && i < load.section_count; ++i) {
      const uint32_t section = load.section_first + i;
      const auto from = bytes.subspan(layout.header_bytes() + layout.offset(section),
                                      layout.sections()[section].bytes);
      good = StreamCopyCrc(from, load.out[i].data()) == stored[section].crc;
    }
    if (!good) {
      completion->miss = RecordMiss::kPayloadDamaged;
      for (const std::span<std::byte> out : load.out) Wipe(out);
    }
  }
  if (!good) {
    const bool damaged = completion->miss == RecordMiss::kPayloadDamaged ||
                         completion->miss == RecordMiss::kHeaderDamaged ||
                         completion->miss == RecordMiss::kNotARecord;
    if (damaged) {
      ++stats_.damaged;
      Forget(known->second);
    }
    return below_ == nullptr;
  }
  if (load.loan != nullptr) {
    loans_[next_loan_] = known->second;
    *load.loan = {.number = next_loan_++, .payload = bytes.subspan(layout.header_bytes())};
    ++known->second->loans;
  }
  const auto stored = StoredSections(header);
  for (uint32_t i = 0; i < load.section_count; ++i) {
    const uint32_t section = load.section_first + i;
    if (!load.crcs.empty()) load.crcs[i] = stored[section].crc;
  }
  records_.splice(records_.end(), records_, known->second);
  ++stats_.loads;
  *completion = {.tag = load.tag, .outcome = StoreOutcome::kOk};
  return true;
}

void WarmStore::Promote(const LoadRequest& load) {
  const std::vector<std::span<const std::byte>> sections(load.out.begin(), load.out.end());
  const PutRequest request{
      .identity = load.identity, .layout = load.layout, .sections = sections, .crcs = load.crcs};
  const uint64_t epoch = EpochOf(load.identity.publisher);
  MutexLock lock(mutex_);
  if (Insert(request, epoch) == StoreOutcome::kOk) ++stats_.promoted;
}

void WarmStore::Return(const Loan& loan, bool damaged) {
  MutexLock lock(mutex_);
  const auto found = loans_.find(loan.number);
  const Records::iterator record = found->second;
  loans_.erase(found);
  --record->loans;
  if (!record->forgotten) {
    if (!damaged) return;
    ++stats_.damaged;
    return Forget(record);
  }
  if (record->loans > 0) return;
  GivePlace(PlaceOf(*record));
  forgotten_.erase(record);
}

void WarmStore::Cancel(uint64_t tag) {
  std::erase_if(below_loads_, [&](const LoadRequest& load) { return load.tag == tag; });
  if (below_ != nullptr) below_->Cancel(tag);
}

void WarmStore::Erase(const PublisherId& publisher, uint64_t epoch, uint64_t tag) {
  {
    MutexLock lock(mutex_);
    if (below_ == nullptr) epochs_[publisher] = std::max(epochs_[publisher], epoch);
    for (auto record = records_.begin(); record != records_.end();) {
      const auto next = std::next(record);
      if (record->publisher == publisher && record->erase_epoch < epoch) Forget(record);
      record = next;
    }
  }
  if (below_ != nullptr) {
    below_->Erase(publisher, epoch, tag);
  } else {
    done_.push_back({.tag = tag, .outcome = StoreOutcome::kOk});
  }
}

bool WarmStore::Drop(const Digest& key) {
  std::erase_if(below_loads_, [&](const LoadRequest& load) { return load.identity.key == key; });
  MutexLock lock(mutex_);
  const auto known = by_key_.find(key);
  if (known == by_key_.end()) return false;
  Forget(known->second);
  return true;
}

void WarmStore::Remove(const Digest& key, uint64_t tag) {
  const bool was_here = Drop(key);
  if (below_ != nullptr) {
    below_removals_[tag] = {.key = key, .was_here = was_here};
    below_->Remove(key, tag);
  } else {
    done_.push_back({.tag = tag, .outcome = was_here ? StoreOutcome::kOk : StoreOutcome::kAbsent});
  }
}

std::optional<uint64_t> WarmStore::RecordBytesOf(const Digest& key) const {
  {
    MutexLock lock(mutex_);
    const auto known = by_key_.find(key);
    if (known != by_key_.end()) return known->second->size_bytes;
  }
  return below_ == nullptr ? std::nullopt : below_->RecordBytesOf(key);
}

uint64_t WarmStore::EpochOf(const PublisherId& publisher) const {
  if (below_ != nullptr) return below_->EpochOf(publisher);
  MutexLock lock(mutex_);
  const auto known = epochs_.find(publisher);
  return known == epochs_.end() ? 0 : known->second;
}

void WarmStore::Flush(uint64_t tag) {
  if (below_ == nullptr) {
    flushed_.push_back({.tag = tag, .outcome = StoreOutcome::kOk});
    return;
  }
  below_flushes_.push_back(tag);
  below_->Flush(tag);
}

void WarmStore::Tick(std::vector<StoreCompletion>& done, uint64_t wait_us) {
  if (below_ != nullptr) {
    std::vector<StoreCompletion> ended;
    below_->Tick(ended, done_.empty() ? wait_us : 0);
    for (StoreCompletion& completion : ended) {
      if (const auto removal = below_removals_.extract(completion.tag)) {
        // It may have been read meanwhile.
        const bool was_here = Drop(removal.mapped().key) || removal.mapped().was_here;
        if (was_here && completion.outcome == StoreOutcome::kAbsent) {
          completion.outcome = StoreOutcome::kOk;
        }
      }
      if (std::erase(below_flushes_, completion.tag) > 0) {
        flushed_.push_back(completion);
        continue;
      }
      done.push_back(completion);
      const auto load = std::ranges::find(below_loads_, completion.tag, &LoadRequest::tag);
      if (load == below_loads_.end()) continue;
      // Loads that share a tag cannot be told apart: none of them is kept.
      const bool alone = std::ranges::count(below_loads_, completion.tag, &LoadRequest::tag) == 1;
      if (completion.outcome == StoreOutcome::kOk && alone) Promote(*load);
      below_loads_.erase(load);
    }
  }
  done.insert(done.end(), done_.begin(), done_.end());
  done_.clear();
  MutexLock lock(mutex_);
  if (!forgotten_.empty()) return;
  done.insert(done.end(), flushed_.begin(), flushed_.end());
  flushed_.clear();
}

StoreStats WarmStore::Stats() const {
  StoreStats stats;
  if (below_ != nullptr) stats = below_->Stats();
  MutexLock lock(mutex_);
  stats.memory_bytes += stats_.bytes;
  stats.damaged += stats_.damaged;
  for (size_t i = 0; i < stats.loads.size(); ++i) stats.loads[i] += alone_.loads[i];
  for (size_t i = 0; i < stats.misses.size(); ++i) stats.misses[i] += alone_.misses[i];
  if (below_ != nullptr) return stats;
  stats.puts = alone_.puts;
  stats.records = stats_.records;
  stats.bytes = stats_.bytes;
  stats.bytes_cap = stats_.bytes_cap;
  stats.evicted = stats_.evicted;
  for (const auto& [id, publisher] : publishers_) stats.bytes_live += publisher.usage.bytes_live;
  return stats;
}

PublisherUsage WarmStore::UsageOf(const PublisherId& publisher) const {
  if (below_ != nullptr) return below_->UsageOf(publisher);
  MutexLock lock(mutex_);
  const auto known = publishers_.find(publisher);
  return known == publishers_.end() ? PublisherUsage{} : known->second.usage;
}

WarmStats WarmStore::warm_stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

std::span<std::byte> WarmStore::BytesOfForTest(const Digest& key) {
  MutexLock lock(mutex_);
  const auto known = by_key_.find(key);
  if (known == by_key_.end()) return {};
  return BytesOf(*known->second);
}

}  // namespace quire::tier
