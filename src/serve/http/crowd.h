// The connections of one listener, and which one goes when another one comes to a full house.
#ifndef QUIRE_SERVE_HTTP_CROWD_H_
#define QUIRE_SERVE_HTTP_CROWD_H_

#include <cstdint>
#include <list>
#include <memory>
#include <string>

namespace quire::serve::http {

class Connection;

/// Threads: one at a time
class Crowd {
 public:
  Crowd(uint64_t most, uint64_t most_per_address)
      : most_(most), most_per_address_(most_per_address) {}

  enum class Verdict : uint8_t { kLetIn, kReplaces, kFull, kAddressFull };
  /// Whether a connection from there may come in. kReplaces: another one was dropped for it, of
  /// those that have shown no key and are not being answered the one that came first; for want of
  /// room of the address, one of the same.
  Verdict MakeRoom(const std::string& address);

  void Add(const std::shared_ptr<Connection>& connection, const std::string& address) {
    members_.push_back({.connection = connection, .address = address});
  }
  void Remove(const std::shared_ptr<Connection>& connection);
  void CloseAll(bool cancel);

 private:
  struct Member {
    std::shared_ptr<Connection> connection;
    std::string address;
    bool dropped = false;  // it is about to end, and counts no more
  };

  const uint64_t most_;
  const uint64_t most_per_address_;
  std::list<Member> members_;  // in the order in which they came
};

}  // namespace quire::serve::http

#endif  // QUIRE_SERVE_HTTP_CROWD_H_
