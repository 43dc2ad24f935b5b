// The stream of events of one cache: numbered messages, what is sent again, and the snapshot. Knows
// no sockets and no threads.
#ifndef QUIRE_EVENTS_EVENT_STREAM_H_
#define QUIRE_EVENTS_EVENT_STREAM_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string_view>

#include "events/event_batch.h"
#include "events/event_log.h"
#include "quire/events.h"

namespace quire::events {

struct StreamOptions {
  // Of the first message. Every run of a program begins above all numbers of the run before, so
  // that a subscriber that missed the end of one and the beginning of the other sees a gap.
  uint64_t first_number = 0;
  uint64_t log_messages = 0;
  uint64_t log_bytes = uint64_t{64} << 20;
  std::function<uint64_t()> unix_us{};  // microseconds since 1970
};

/// What a subscriber needs for an index that equals the cache.
///
/// Threads:  one at a time
/// Lifetime: the feed must outlive it
class EventStream {
 public:
  /// Takes one message; false: it could not be sent.
  using Sink = std::function<bool(uint64_t number, std::string_view payload)>;

  EventStream(ChangeFeed& feed, const StreamOptions& options, Sink publish);

  /// The first messages: all is cleared, and what the feed has told already.
  void Begin();
  /// Publishes some changes. With none, an empty message once a second, by which a subscriber
  /// notices that it missed the last one. False: there are no more changes now.
  bool Turn();
  /// After a call that ended with std::bad_alloc: what it took from the feed was not published.
  /// Leaves a gap, which only the snapshot fills.
  void Skip();
  /// The last message: all is cleared.
  void End();
  /// Sends the messages from a number on; if they are not kept any more, or were never published,
  /// first a snapshot: messages that all have the last number, of which the first one clears all.
  /// False: one could not be sent.
  bool Replay(uint64_t from, const Sink& sink);

  const EventStats& stats() const { return stats_; }

 private:
  uint64_t HashOf(const Digest& key) const;
  void AddStored(const BlockChange& change, EventBatch& batch) const;
  void AddInMemory(const BlockChanges& changes);
  void AddDurable(const BlockChanges& changes);
  void LookBelow();
  void Publish();
  bool Snapshot(const Sink& sink);
  uint64_t NowMicros() const { return options_.unix_us(); }

  ChangeFeed& feed_;
  const StreamOptions options_;
  const Sink publish_;
  const Digest secret_;
  EventLog log_;
  EventBatch batch_;
  BlockChanges changes_{};
  // The blocks that the store was said to have, and where the next look at some of them begins.
  std::map<Digest, uint64_t> below_{};
  Digest below_next_{};
  uint64_t looked_us_ = 0;
  uint64_t published_us_ = 0;
  EventStats stats_{};
};

}  // namespace quire::events

#endif  // QUIRE_EVENTS_EVENT_STREAM_H_
