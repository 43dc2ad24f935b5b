#include "cache/record_io.h"

#include <new>
#include <utility>

namespace quire::cache {
namespace {

using tier::StoreCompletion;
using tier::StoreOutcome;

constexpr uint32_t kPutsPerTick = 16;
constexpr uint64_t kBusyPauseUs = 500;  // the store can take no more just now

}  // namespace

// What cannot be begun for want of memory has ended.
void RecordIo::Begin(ReadBatch& batch) {
  batch.left = batch.reads.size();
  for (SectionRead& read : batch.reads) {
    const uint64_t tag = next_tag_++;
    const Read entry = {.batch = &batch, .read = &read};
    read.request.tag = tag;
    try {
      reads_[tag] = entry;
      store_.Get({&read.request, 1}, batch.deadline_us);
    } catch (const std::bad_alloc&) {
      if (reads_.erase(tag) > 0) store_.Cancel(tag);
      EndRead(entry, {.tag = tag, .outcome = StoreOutcome::kCancelled});
    }
  }
}

void RecordIo::Cancel(ReadBatch& batch) {
  for (auto read = reads_.begin(); read != reads_.end();) {
    if (read->second.batch != &batch) {
      ++read;
      continue;
    }
    store_.Cancel(read->first);
    EndRead(read->second, {.tag = read->first, .outcome = StoreOutcome::kCancelled});
    read = reads_.erase(read);
  }
}

void RecordIo::Write(std::shared_ptr<RecordWrite> write) {
  try {
    waiting_.emplace(next_order_, write);
    ++next_order_;
  } catch (const std::bad_alloc&) {
    write->End(StoreOutcome::kCancelled);
  }
}

void RecordIo::Forget(const RecordWrite& write) {
  std::erase_if(waiting_, [&](const auto& entry) { return entry.second.get() == &write; });
  for (auto& [tag, put] : writes_) {
    if (put.write.get() == &write) put.write = nullptr;
  }
}

bool RecordIo::Advance(bool hurries) {
  bool worked = false;
  for (uint32_t i = 0; i < kPutsPerTick && !waiting_.empty(); ++i) {
    if (clock_.NowMicros() < put_after_us_) break;
    const uint64_t tag = next_tag_++;
    const auto next = waiting_.begin();
    // Before the store has it: afterwards nothing may fail.
    const auto put = writes_.emplace(tag, Put{.order = next->first, .write = next->second}).first;
    try {
      if (!next->second->Put(store_, tag)) End({.tag = tag, .outcome = StoreOutcome::kIo});
    } catch (const std::bad_alloc&) {
      writes_.erase(put);
      throw;
    }
    waiting_.erase(next);
    worked = true;
  }
  if (hurries && flush_tag_ == 0 && waiting_.empty() && !writes_.empty()) {
    flush_tag_ = next_tag_++;
    store_.Flush(flush_tag_);
    worked = true;
  }
  return worked;
}

void RecordIo::EndRead(const Read& read, const StoreCompletion& ended) {
  read.read->outcome = ended.outcome;
  read.read->miss = ended.miss;
  --read.batch->left;  // its owner may take it back after this
}

void RecordIo::End(const StoreCompletion& ended) {
  if (ended.tag == flush_tag_) {
    flush_tag_ = 0;
    return;
  }
  if (const auto read = reads_.find(ended.tag); read != reads_.end()) {
    EndRead(read->second, ended);
    reads_.erase(read);
    return;
  }
  const auto found = writes_.find(ended.tag);
  if (found->second.write != nullptr && ended.outcome == StoreOutcome::kBusy) {
    put_after_us_ = clock_.NowMicros() + kBusyPauseUs;
    waiting_.emplace(found->second.order, found->second.write);
  } else if (found->second.write != nullptr) {
    found->second.write->End(ended.outcome);
  }
  writes_.erase(found);
}

}  // namespace quire::cache
