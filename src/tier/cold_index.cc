#include "tier/cold_index.h"

#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "tier/use_clock.h"

namespace quire::tier {
namespace {

// Entries in chunks: growing copies nothing and wastes at most a chunk.
class EntryChunks {
 public:
  ColdEntry& operator[](uint32_t id) { return chunks_[id / kChunk][id % kChunk]; }
  const ColdEntry& operator[](uint32_t id) const { return chunks_[id / kChunk][id % kChunk]; }
  uint32_t capacity() const { return static_cast<uint32_t>(chunks_.size()) * kChunk; }
  void Grow() { chunks_.push_back(std::make_unique<ColdEntry[]>(kChunk)); }
  uint64_t memory_bytes() const {
    return chunks_.size() * kChunk * sizeof(ColdEntry) + chunks_.capacity() * sizeof(void*);
  }

 private:
  static constexpr uint32_t kChunk = 4096;
  std::vector<std::unique_ptr<ColdEntry[]>> chunks_;
};

// Keys are hashes already.
size_t HashOf(const KeyPrefix& key) {
  size_t hash = 0;
  std::memcpy(&hash, key.data(), sizeof(hash));
  return hash;
}

struct IdHash {
  using is_transparent = void;
  const EntryChunks* entries;
  size_t operator()(uint32_t id) const { return HashOf((*entries)[id].key); }
  size_t operator()(const KeyPrefix& key) const { return HashOf(key); }
};

struct IdEqual {
  using is_transparent = void;
  const EntryChunks* entries;
  bool operator()(uint32_t a, uint32_t b) const { return a == b; }
  bool operator()(uint32_t id, const KeyPrefix& key) const { return (*entries)[id].key == key; }
  bool operator()(const KeyPrefix& key, uint32_t id) const { return (*entries)[id].key == key; }
};

}  // namespace

struct ColdIndex::Tables {
  struct SegmentList {
    uint32_t first = kNone;
    bool hidden = false;
  };

  SegmentList& ListOf(uint32_t segment) {
    if (segment >= lists.size()) lists.resize(segment + 1);
    return lists[segment];
  }
  std::optional<uint32_t> Find(const KeyPrefix& key) const {
    const auto found = ids.find(key);
    if (found == ids.end()) return std::nullopt;
    if (lists[entries[*found].segment].hidden) return std::nullopt;
    return *found;
  }
  uint32_t Take() {
    if (free == kNone) {
      const uint32_t begin = entries.capacity();
      entries.Grow();
      for (uint32_t id = entries.capacity(); id-- > begin;) Free(id);
    }
    const uint32_t id = free;
    free = entries[id].next;
    return id;
  }
  void Free(uint32_t id) {
    entries[id].next = free;
    free = id;
  }

  void Add(const ColdEntry& entry) {
    const uint32_t id = Take();
    SegmentList& list = ListOf(entry.segment);
    entries[id] = entry;
    entries[id].next = list.first;
    list.first = id;
    ids.insert(id);
  }
  void Drop(uint32_t id) {
    uint32_t* link = &lists[entries[id].segment].first;
    while (*link != id) link = &entries[*link].next;
    *link = entries[id].next;
    ids.erase(id);
    Free(id);
  }

  EntryChunks entries;
  uint32_t free = kNone;
  std::vector<SegmentList> lists;
  absl::flat_hash_set<uint32_t, IdHash, IdEqual> ids{0, IdHash{&entries}, IdEqual{&entries}};
};

KeyPrefix PrefixOf(const Digest& key) {
  KeyPrefix prefix;
  std::copy_n(key.begin(), prefix.size(), prefix.begin());
  return prefix;
}

ColdIndex::ColdIndex() : tables_(std::make_unique<Tables>()) {}
ColdIndex::~ColdIndex() = default;

bool ColdIndex::Insert(const ColdEntry& entry) {
  MutexLock lock(mutex_);
  Tables& tables = *tables_;
  if (const auto found = tables.ids.find(entry.key); found != tables.ids.end()) {
    if (!tables.lists[tables.entries[*found].segment].hidden) return false;
    tables.Drop(*found);  // what is hidden is in the way of nothing
  }
  tables.Add(entry);
  return true;
}

std::optional<ColdEntry> ColdIndex::Move(const ColdEntry& from, const ColdEntry& to) {
  MutexLock lock(mutex_);
  Tables& tables = *tables_;
  const auto id = tables.Find(from.key);
  if (!id) return std::nullopt;
  const ColdEntry before = tables.entries[*id];
  if (before.segment != from.segment || before.page != from.page) return std::nullopt;
  tables.Drop(*id);
  ColdEntry moved = to;
  moved.used = before.used;
  tables.Add(moved);
  return before;
}

std::optional<ColdEntry> ColdIndex::Find(const KeyPrefix& key) const {
  MutexLock lock(mutex_);
  const auto id = tables_->Find(key);
  if (!id) return std::nullopt;
  return tables_->entries[*id];
}

void ColdIndex::Find(std::span<const Digest> keys, std::span<Presence> out) const {
  QUIRE_CHECK(keys.size() == out.size());
  MutexLock lock(mutex_);
  for (size_t i = 0; i < keys.size(); ++i) {
    out[i] = tables_->Find(PrefixOf(keys[i])) ? Presence::kPresent : Presence::kAbsent;
  }
}

std::optional<ColdEntry> ColdIndex::Touch(const KeyPrefix& key, uint32_t used) {
  MutexLock lock(mutex_);
  const auto id = tables_->Find(key);
  if (!id) return std::nullopt;
  const ColdEntry before = tables_->entries[*id];
  tables_->entries[*id].used = used;
  return before;
}

bool ColdIndex::Remove(const KeyPrefix& key, uint32_t segment, uint32_t page) {
  MutexLock lock(mutex_);
  Tables& tables = *tables_;
  const auto found = tables.ids.find(key);
  if (found == tables.ids.end()) return false;
  const uint32_t id = *found;
  const ColdEntry& entry = tables.entries[id];
  if (entry.segment != segment || entry.page != page) return false;
  tables.Drop(id);
  return true;
}

uint64_t ColdIndex::RemoveSegment(uint32_t segment) {
  MutexLock lock(mutex_);
  Tables& tables = *tables_;
  Tables::SegmentList& list = tables.ListOf(segment);
  uint64_t count = 0;
  for (uint32_t id = list.first; id != kNone; ++count) {
    const uint32_t next = tables.entries[id].next;
    tables.ids.erase(id);
    tables.Free(id);
    id = next;
  }
  list = {};
  return count;
}

void ColdIndex::Hide(uint32_t segment) {
  MutexLock lock(mutex_);
  tables_->ListOf(segment).hidden = true;
}

std::vector<ColdEntry> ColdIndex::EntriesOf(uint32_t segment) const {
  std::vector<ColdEntry> entries;
  {
    MutexLock lock(mutex_);
    const Tables& tables = *tables_;
    if (segment < tables.lists.size()) {
      for (uint32_t id = tables.lists[segment].first; id != kNone; id = tables.entries[id].next) {
        entries.push_back(tables.entries[id]);
      }
    }
  }
  std::ranges::sort(entries, {}, &ColdEntry::page);
  return entries;
}

double ColdIndex::WorthOf(uint32_t segment, uint32_t now) const {
  double worth = 0;
  MutexLock lock(mutex_);
  const Tables& tables = *tables_;
  if (segment >= tables.lists.size()) return worth;
  for (uint32_t id = tables.lists[segment].first; id != kNone; id = tables.entries[id].next) {
    worth += tier::WorthOf(tables.entries[id].used, now);
  }
  return worth;
}

uint64_t ColdIndex::records() const {
  MutexLock lock(mutex_);
  return tables_->ids.size();
}

uint64_t ColdIndex::memory_bytes() const {
  MutexLock lock(mutex_);
  const Tables& tables = *tables_;
  // One control byte per place of the set.
  return tables.entries.memory_bytes() + tables.ids.capacity() * (sizeof(uint32_t) + 1) +
         tables.lists.capacity() * sizeof(Tables::SegmentList);
}

void RootTable::Add(uint32_t segment, const PublisherId& publisher, const RecordRoot& root) {
  MutexLock lock(mutex_);
  OfSegmentRoots& known = segments_[segment];
  known.publisher = publisher;
  if (known.roots.size() >= kOfSegmentMax) return;
  if (std::ranges::find(known.roots, root) != known.roots.end()) return;
  known.roots.push_back(root);
  ++publishers_[publisher][root];
}

void RootTable::Forget(uint32_t segment) {
  MutexLock lock(mutex_);
  const auto found = segments_.find(segment);
  if (found == segments_.end()) return;
  const OfSegmentRoots gone = std::move(found->second);
  segments_.erase(found);
  const auto counts = publishers_.find(gone.publisher);
  for (const RecordRoot& root : gone.roots) {
    if (--counts->second[root] == 0) counts->second.erase(root);
  }
  if (counts != publishers_.end() && counts->second.empty()) publishers_.erase(counts);
}

std::vector<RecordRoot> RootTable::OfSegment(uint32_t segment) const {
  MutexLock lock(mutex_);
  const auto found = segments_.find(segment);
  return found == segments_.end() ? std::vector<RecordRoot>() : found->second.roots;
}

std::vector<RecordRoot> RootTable::Of(const PublisherId& publisher) const {
  MutexLock lock(mutex_);
  const auto found = publishers_.find(publisher);
  if (found == publishers_.end()) return {};
  std::vector<RecordRoot> roots;
  for (const auto& [root, count] : found->second) {
    if (roots.size() == kOfPublisherMax) break;
    roots.push_back(root);
  }
  return roots;
}

}  // namespace quire::tier
