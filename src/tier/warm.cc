#include "tier/warm.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <utility>

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
  }
}

StoreOutcome WarmStore::Insert(const PutRequest& request, uint64_t epoch) {
  const RecordIdentity& identity = request.identity;
  const RecordLayout& layout = *request.layout;
  if (identity.erase_epoch < epoch) return StoreOutcome::kErased;
  if (identity.erase_epoch > epoch) return StoreOutcome::kUnknownEpoch;
  if (const auto known = by_key_.find(identity.key); known != by_key_.end()) {
    records_.splice(records_.end(), records_, known->second);
    return StoreOutcome::kPresent;
  }
  const uint64_t size_bytes = layout.record_bytes();
  const uint64_t taken_bytes = size_bytes + kEntryBytes;
  if (taken_bytes > options_.bytes_cap) return StoreOutcome::kTooLarge;
  const auto publisher = publishers_.find(identity.publisher);
  if (publisher != publishers_.end() && taken_bytes > publisher->second.bytes_quota) {
    return StoreOutcome::kQuota;
  }
  const auto at = MakeRoom(identity.publisher, size_bytes);
  if (!at) return StoreOutcome::kNoSpace;
  struct GiveBack {
    ~GiveBack() {
      if (!kept) arena.Give(at, bytes);
    }
    Arena& arena;
    uint64_t at;
    uint64_t bytes;
    bool kept = false;
  } place{.arena = arena_, .at = *at, .bytes = size_bytes};
  Record record{.key = identity.key,
                .publisher = identity.publisher,
                .erase_epoch = identity.erase_epoch,
                .location = {.sequence = sequence_++},
                .at = *at,
                .size_bytes = size_bytes};
  const std::span<std::byte> bytes = BytesOf(record);
  std::vector<uint32_t> crcs(request.crcs.begin(), request.crcs.end());
  for (size_t i = 0; i < request.sections.size(); ++i) {
    const std::span<const std::byte> section = request.sections[i];
    std::ranges::copy(
        section, bytes.begin() + static_cast<ptrdiff_t>(layout.header_bytes() + layout.offset(i)));
    if (request.crcs.empty()) crcs.push_back(Crc32c(section));
  }
  EncodeHeader(identity, layout, request.priority, record.location, crcs,
               bytes.first(layout.header_bytes()));
  // The parent of a first block is its root, which is no record.
  if (identity.block_index == 0 && identity.parent != Digest{} &&
      !by_key_.contains(identity.parent)) {
    record.root = {.key = identity.parent, .block_tokens = layout.token_count()};
  }
  Publisher& of = publishers_[identity.publisher];
  uint64_t* const of_root = record.root.block_tokens != 0 ? &of.roots[record.root] : nullptr;
  Records one;
  one.push_back(std::move(record));
  by_key_[identity.key] = one.begin();
  // Nothing fails from here on.
  records_.splice(records_.end(), one);
  place.kept = true;
  if (of_root != nullptr) ++*of_root;
  PublisherUsage& usage = of.usage;
  ++usage.records;
  usage.bytes_live += size_bytes;
  usage.bytes += taken_bytes;
  stats_.bytes += taken_bytes;
  ++stats_.records;
  return StoreOutcome::kOk;
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
    if (record->publisher == publisher) take(record);
  }
  if (own.usage.bytes - freed + bytes > own.bytes_quota) return std::nullopt;
  const size_t for_quota = victims.size();
  // The next one that may go for the others' sake; the end: there is none.
  auto next = records_.begin();
  const auto take_next = [&]() QUIRE_REQUIRES(mutex_) {
    for (; next != records_.end(); ++next) {
      const auto chosen = victims.begin() + static_cast<ptrdiff_t>(for_quota);
      if (std::find(victims.begin(), chosen, next) != chosen) continue;
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
    Remove(victim);
  }
  return at;
}

void WarmStore::Forget(Records::iterator record) {
  arena_.Give(record->at, record->size_bytes);
  Remove(record);
}

void WarmStore::Remove(Records::iterator record) {
  Publisher& of = publishers_[record->publisher];
  const auto root = of.roots.find(record->root);
  if (root != of.roots.end() && --root->second == 0) of.roots.erase(root);
  PublisherUsage& usage = of.usage;
  const uint64_t taken_bytes = record->size_bytes + kEntryBytes;
  --usage.records;
  usage.bytes_live -= record->size_bytes;
  usage.bytes -= taken_bytes;
  stats_.bytes -= taken_bytes;
  --stats_.records;
  Wipe(BytesOf(*record));
  by_key_.erase(record->key);
  records_.erase(record);
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

void WarmStore::Touch(std::span<const Digest> keys, std::span<Presence> out) {
  if (below_ != nullptr) {
    below_->Touch(keys, out);
  } else {
    std::ranges::fill(out, Presence::kAbsent);
  }
  MutexLock lock(mutex_);
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto known = by_key_.find(keys[i]);
    if (known == by_key_.end()) continue;
    records_.splice(records_.end(), records_, known->second);
    out[i] = Presence::kPresent;
  }
}

void WarmStore::Get(std::span<const LoadRequest> loads, uint64_t deadline_us) {
  for (const LoadRequest& load : loads) {
    StoreCompletion completion{.tag = load.tag, .outcome = StoreOutcome::kAbsent};
    const uint64_t epoch = EpochOf(load.identity.publisher);
    {
      MutexLock lock(mutex_);
      const bool late = deadline_us != 0 && clock_.NowMicros() >= deadline_us;
      if (late) completion.outcome = StoreOutcome::kDeadline;
      const bool answered = late || Answer(load, epoch, &completion);
      if (answered || below_ == nullptr) {
        ++alone_.loads[static_cast<size_t>(completion.outcome)];
        ++alone_.misses[static_cast<size_t>(completion.miss)];
        done_.push_back(completion);
        continue;
      }
    }
    if (IsWhole(load)) below_loads_.push_back(load);
    below_->Get({&load, 1}, deadline_us);
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
  if (good) {
    const auto stored = StoredSections(header);
    for (uint32_t i = 0; good && i < load.section_count; ++i) {
      const uint32_t section = load.section_first + i;
      const auto from = bytes.subspan(layout.header_bytes() + layout.offset(section),
                                      layout.sections()[section].bytes);
      good = Crc32c(from) == stored[section].crc;
    }
    if (!good) completion->miss = RecordMiss::kPayloadDamaged;
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
  const auto stored = StoredSections(header);
  for (uint32_t i = 0; i < load.section_count; ++i) {
    const uint32_t section = load.section_first + i;
    const auto from = bytes.subspan(layout.header_bytes() + layout.offset(section),
                                    layout.sections()[section].bytes);
    std::ranges::copy(from, load.out[i].begin());
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

uint64_t WarmStore::EpochOf(const PublisherId& publisher) const {
  if (below_ != nullptr) return below_->EpochOf(publisher);
  MutexLock lock(mutex_);
  const auto known = epochs_.find(publisher);
  return known == epochs_.end() ? 0 : known->second;
}

void WarmStore::Flush(uint64_t tag) {
  if (below_ != nullptr) return below_->Flush(tag);
  done_.push_back({.tag = tag, .outcome = StoreOutcome::kOk});
}

void WarmStore::Tick(std::vector<StoreCompletion>& done, uint64_t wait_us) {
  if (below_ != nullptr) {
    std::vector<StoreCompletion> ended;
    below_->Tick(ended, done_.empty() ? wait_us : 0);
    for (const StoreCompletion& completion : ended) {
      const auto load = std::ranges::find(below_loads_, completion.tag, &LoadRequest::tag);
      if (load == below_loads_.end()) continue;
      // Loads that share a tag cannot be told apart: none of them is kept.
      const bool alone = std::ranges::count(below_loads_, completion.tag, &LoadRequest::tag) == 1;
      if (completion.outcome == StoreOutcome::kOk && alone) Promote(*load);
      below_loads_.erase(load);
    }
    done.insert(done.end(), ended.begin(), ended.end());
  }
  done.insert(done.end(), done_.begin(), done_.end());
  done_.clear();
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
