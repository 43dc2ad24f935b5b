// The payload of one message: [time, [events], rank] in MessagePack, where each event is one of
// vLLM's maps.
#ifndef QUIRE_EVENTS_EVENT_BATCH_H_
#define QUIRE_EVENTS_EVENT_BATCH_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "quire/identity.h"

namespace quire::events {

/// Where a block is, as vLLM names it.
enum class Medium : uint8_t { kMemory, kStore };

/// Events in the order in which a subscriber applies them. Those that follow each other in one
/// chain of blocks, and removals, are one map.
class EventBatch {
 public:
  explicit EventBatch(uint32_t block_tokens);
  ~EventBatch();
  EventBatch(const EventBatch&) = delete;
  EventBatch& operator=(const EventBatch&) = delete;

  /// All blocks of all media are gone.
  void Clear();
  void StoredInMemory(uint64_t hash, std::optional<uint64_t> parent,
                      std::span<const TokenId> tokens);
  void StoredBelow(uint64_t hash);
  void Removed(uint64_t hash, Medium medium);

  bool empty() const;
  /// Forgets all of it.
  void Drop();
  /// The payload; the batch is empty afterwards.
  ///
  /// Units: seconds since 1970
  std::string Pack(double time_s);

 private:
  struct Events;

  std::unique_ptr<Events> events_;
};

}  // namespace quire::events

#endif  // QUIRE_EVENTS_EVENT_BATCH_H_
