// The messages that were published last, for subscribers that missed some.
#ifndef QUIRE_EVENTS_EVENT_LOG_H_
#define QUIRE_EVENTS_EVENT_LOG_H_

#include <cstdint>
#include <deque>
#include <string>
#include <utility>

namespace quire::events {

/// Numbered payloads: at most so many, and of so many bytes in all; older ones go first.
class EventLog {
 public:
  struct Limits {
    uint64_t messages = 0;
    uint64_t bytes = 0;
  };

  EventLog(uint64_t first_number, const Limits& limits) : first_(first_number), limits_(limits) {}

  /// The number of the next message.
  uint64_t next() const { return first_ + payloads_.size(); }
  /// Whether all messages from this number on are here; there may be none.
  bool Has(uint64_t from) const { return from >= first_ && from <= next(); }
  /// Of a message that is here.
  const std::string& payload(uint64_t number) const { return payloads_[number - first_]; }

  /// Leaves out one number, and forgets all messages before it.
  void Skip() {
    first_ = next() + 1;
    payloads_.clear();
    bytes_ = 0;
  }
  void Add(std::string payload) {
    bytes_ += payload.size();
    payloads_.push_back(std::move(payload));
    while (payloads_.size() > limits_.messages || bytes_ > limits_.bytes) {
      bytes_ -= payloads_.front().size();
      payloads_.pop_front();
      ++first_;
    }
  }

 private:
  uint64_t first_;
  const Limits limits_;
  std::deque<std::string> payloads_{};
  uint64_t bytes_ = 0;
};

}  // namespace quire::events

#endif  // QUIRE_EVENTS_EVENT_LOG_H_
