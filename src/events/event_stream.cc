#include "events/event_stream.h"

#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "base/hash.h"

namespace quire::events {
namespace {

constexpr uint64_t kQuietUs = 1'000'000;
// How often, and at how many blocks at once, the store is looked at: it does not say when it writes
// over a record.
constexpr uint64_t kLookUs = 100'000;
constexpr size_t kLookBlocks = 1024;

Digest SomeSecret() {
  Digest secret{};
  FillRandom(secret);
  return secret;
}

}  // namespace

EventStream::EventStream(ChangeFeed& feed, const StreamOptions& options, Sink publish)
    : feed_(feed),
      options_(options),
      publish_(std::move(publish)),
      secret_(SomeSecret()),
      log_(options.first_number, {.messages = options.log_messages, .bytes = options.log_bytes}),
      batch_(feed.block_tokens()) {}

// Keys depend on tokens, so they are told under a secret of this stream: a hash confirms no guess
// of a prompt.
uint64_t EventStream::HashOf(const Digest& key) const {
  Blake2b<32> hasher(secret_);
  hasher.Update(std::as_bytes(std::span(key)));
  const Digest digest = hasher.Finish();
  uint64_t hash = 0;
  std::memcpy(&hash, digest.data(), sizeof hash);
  return hash;
}

void EventStream::Begin() {
  batch_.Clear();
  feed_.ForEachTold([&](const BlockChanges& changes) {
    AddInMemory(changes);
    Publish();
  });
  if (!batch_.empty()) Publish();
}

bool EventStream::Turn() {
  const bool more = feed_.Take(changes_);
  AddDurable(changes_);
  AddInMemory(changes_);
  if (NowMicros() - looked_us_ >= kLookUs) LookBelow();
  if (!batch_.empty() || NowMicros() - published_us_ >= kQuietUs) Publish();
  return more;
}

void EventStream::Skip() {
  batch_.Drop();
  log_.Skip();
}

void EventStream::End() {
  batch_.Clear();
  Publish();
}

void EventStream::AddStored(const BlockChange& change, EventBatch& batch) const {
  std::optional<uint64_t> parent;
  if (change.parent_key) parent = HashOf(*change.parent_key);
  batch.StoredInMemory(HashOf(change.key), parent, change.tokens);
}

void EventStream::AddInMemory(const BlockChanges& changes) {
  for (const BlockChange& change : changes.blocks) {
    if (change.kind == BlockChangeKind::kStored) {
      AddStored(change, batch_);
      ++stats_.stored;
    } else if (change.kind == BlockChangeKind::kRemoved) {
      batch_.Removed(HashOf(change.key), Medium::kMemory);
      ++stats_.removed;
    }
  }
}

// Before removals: a subscriber that drops a block with its last medium keeps it so.
void EventStream::AddDurable(const BlockChanges& changes) {
  std::vector<Digest> keys;
  for (const BlockChange& change : changes.blocks) {
    if (change.kind == BlockChangeKind::kDurable) keys.push_back(change.key);
  }
  const auto there = std::make_unique<bool[]>(keys.size());
  feed_.InStore(keys, std::span(there.get(), keys.size()));
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!there[i]) continue;
    const auto [known, is_new] = below_.try_emplace(keys[i], HashOf(keys[i]));
    if (is_new) batch_.StoredBelow(known->second);
  }
}

void EventStream::LookBelow() {
  looked_us_ = NowMicros();
  std::vector<Digest> keys;
  auto next = below_.lower_bound(below_next_);
  for (; next != below_.end() && keys.size() < kLookBlocks; ++next) keys.push_back(next->first);
  below_next_ = next == below_.end() ? Digest{} : next->first;
  const auto there = std::make_unique<bool[]>(keys.size());
  feed_.InStore(keys, std::span(there.get(), keys.size()));
  for (size_t i = 0; i < keys.size(); ++i) {
    if (there[i]) continue;
    const auto gone = below_.find(keys[i]);
    batch_.Removed(gone->second, Medium::kStore);
    below_.erase(gone);
  }
}

void EventStream::Publish() {
  published_us_ = NowMicros();
  std::string payload = batch_.Pack(static_cast<double>(published_us_) / 1e6);
  publish_(log_.next(), payload);
  log_.Add(std::move(payload));
  ++stats_.messages;
}

bool EventStream::Replay(uint64_t from, const Sink& sink) {
  ++stats_.replays;
  if (!log_.Has(from)) return Snapshot(sink);
  for (; from < log_.next(); ++from) {
    if (!sink(from, log_.payload(from))) return false;
  }
  return true;
}

// What changes meanwhile is told by later messages, whether the snapshot has it already or not.
bool EventStream::Snapshot(const Sink& sink) {
  ++stats_.snapshots;
  EventBatch batch(feed_.block_tokens());
  bool sent = true;
  const auto send = [&] {
    sent = sent && sink(log_.next() - 1, batch.Pack(static_cast<double>(NowMicros()) / 1e6));
  };
  batch.Clear();
  send();
  feed_.ForEachTold([&](const BlockChanges& changes) {
    if (!sent) return;
    for (const BlockChange& change : changes.blocks) AddStored(change, batch);
    send();
  });
  size_t blocks = 0;
  for (const auto& [key, hash] : below_) {
    batch.StoredBelow(hash);
    if (++blocks % kLookBlocks == 0) send();
  }
  if (!batch.empty()) send();
  return sent;
}

}  // namespace quire::events
