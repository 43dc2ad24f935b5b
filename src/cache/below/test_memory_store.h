// A store in memory that fails only where it is told to, for tests of its callers.
#ifndef QUIRE_CACHE_BELOW_TEST_MEMORY_STORE_H_
#define QUIRE_CACHE_BELOW_TEST_MEMORY_STORE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "base/hash.h"
#include "tier/store.h"

namespace quire::cache {

/// Records in memory, by key. What it is asked ends at the next Tick.
class MemoryStore final : public tier::Store {
 public:
  void Put(std::span<const tier::PutRequest> requests) override {
    for (const tier::PutRequest& request : requests) {
      std::vector<std::byte>& bytes = records_[request.identity.key];
      for (const auto section : request.sections) {
        bytes.insert(bytes.end(), section.begin(), section.end());
      }
      ended_.push_back({.tag = request.tag});
    }
  }
  void Find(std::span<const Digest> keys, std::span<tier::Presence> out) const override {
    for (size_t i = 0; i < keys.size(); ++i) {
      out[i] = records_.contains(keys[i]) ? tier::Presence::kPresent : tier::Presence::kAbsent;
      if (is_asked) out[i] = tier::Presence::kUnknown;
    }
  }
  void Get(std::span<const tier::LoadRequest> loads, uint64_t /*deadline_us*/) override {
    for (const tier::LoadRequest& load : loads) {
      if (held && held(load)) {
        held_.push_back(load);
      } else {
        Read(load);
      }
    }
  }
  void Cancel(uint64_t tag) override {
    const auto has_tag = [&](const tier::LoadRequest& load) { return load.tag == tag; };
    if (std::erase_if(held_, has_tag) > 0) ended_.push_back({.tag = tag});
    for (tier::StoreCompletion& ended : ended_) {
      if (ended.tag == tag) ended.outcome = tier::StoreOutcome::kCancelled;
    }
  }
  /// Its records stay, as those that were read already.
  void Erase(const tier::PublisherId& publisher, uint64_t epoch, uint64_t tag) override {
    epochs_[publisher] = epoch;
    ended_.push_back({.tag = tag});
  }
  void Remove(const Digest& key, uint64_t tag) override {
    const bool was_there = records_.erase(key) > 0;
    ended_.push_back(
        {.tag = tag, .outcome = was_there ? tier::StoreOutcome::kOk : tier::StoreOutcome::kAbsent});
  }
  std::optional<uint64_t> RecordBytesOf(const Digest& key) const override {
    const auto known = records_.find(key);
    if (known == records_.end()) return std::nullopt;
    return known->second.size();
  }
  void Touch(std::span<const tier::RecordUse> uses, std::span<tier::Presence> out) override {
    for (size_t i = 0; i < uses.size(); ++i) Find({&uses[i].key, 1}, out.subspan(i, 1));
  }
  tier::PublisherUsage UsageOf(const tier::PublisherId&) const override { return {}; }
  std::vector<tier::RecordRoot> RootsOf(const tier::PublisherId&) const override { return {}; }
  void SetLimits(const tier::PublisherLimits&) override {}
  uint64_t EpochOf(const tier::PublisherId& publisher) const override {
    const auto known = epochs_.find(publisher);
    return known == epochs_.end() ? 0 : known->second;
  }
  void Flush(uint64_t tag) override { ended_.push_back({.tag = tag}); }
  void Tick(std::vector<tier::StoreCompletion>& done, uint64_t /*wait_us*/) override {
    done.insert(done.end(), ended_.begin(), ended_.end());
    ended_.clear();
  }
  tier::StoreStats Stats() const override {
    ++looks_;
    return {};
  }

  /// As of a remote, it is not known what it has before it is asked.
  bool is_asked = false;
  /// Records that can be found, and do not come.
  std::function<bool(const tier::RecordIdentity&)> lost;
  /// Reads that end when no load waits for them any more, or at Release.
  std::function<bool(const tier::LoadRequest&)> held;
  /// The first `count` of the held reads are done now, which `held` says nothing of any more.
  void Release(size_t count = SIZE_MAX) {
    for (; count > 0 && !held_.empty(); --count) {
      Read(held_.front());
      held_.erase(held_.begin());
    }
  }
  size_t held_count() const { return held_.size(); }
  /// How often its state was asked for. Any thread.
  uint64_t looks() const { return looks_; }

 private:
  void Read(const tier::LoadRequest& load) {
    if (lost && lost(load.identity)) {
      ended_.push_back({.tag = load.tag, .outcome = tier::StoreOutcome::kIo});
      return;
    }
    const auto record = records_.find(load.identity.key);
    if (record == records_.end()) {
      ended_.push_back({.tag = load.tag, .outcome = tier::StoreOutcome::kAbsent});
      return;
    }
    ended_.push_back({.tag = load.tag});
    const std::vector<std::byte>& bytes = record->second;
    auto from = bytes.begin();
    for (const tier::SectionSpec& before : load.layout->sections().first(load.section_first)) {
      from += static_cast<ptrdiff_t>(before.bytes);
    }
    for (size_t i = 0; i < load.out.size(); ++i) {
      const std::span<std::byte> section = load.out[i];
      std::copy_n(from, section.size(), section.begin());
      from += static_cast<ptrdiff_t>(section.size());
      load.crcs[i] = Crc32c(section);
    }
  }

  mutable std::atomic<uint64_t> looks_ = 0;
  std::map<Digest, std::vector<std::byte>> records_;
  std::map<tier::PublisherId, uint64_t> epochs_;
  std::vector<tier::LoadRequest> held_;
  std::vector<tier::StoreCompletion> ended_;
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_BELOW_TEST_MEMORY_STORE_H_
