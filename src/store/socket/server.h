// The owner of a store, for clients of other processes.
#ifndef QUIRE_STORE_SOCKET_SERVER_H_
#define QUIRE_STORE_SOCKET_SERVER_H_

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "env/event.h"
#include "env/shared_memory.h"
#include "env/unix_socket.h"
#include "quire/store.h"
#include "store/socket/protocol.h"

namespace quire::store {

struct StoreServerOptions {
  std::string socket{};  // a path of at most 103 bytes
  UnixListener::Access access{};
  uint32_t clients_max = 64;
  // Memory that a client shares with the owner; at least as much as the longest block takes.
  uint64_t client_bytes = uint64_t{256} << 20;
  uint32_t client_blocks_max = 4096;  // of one client, under way at once
};

/// Answers clients on one thread; what they ask for is done by the store's.
///
/// A client may do all that a caller of the store may, in every namespace. What it can not do is
/// harm the owner: its packets are checked before anything is done, payloads of puts are copied
/// before they are looked at, and no client has more under way than the limits say. When it goes,
/// what it had under way ends and its memory goes with that.
class StoreServer {
 public:
  /// `store` must outlive it; no other caller may drain it.
  /// Errors: kInvalidArgument limits of 0; those of UnixListener::Listen
  static Result<std::unique_ptr<StoreServer>> Create(BlockStore& store,
                                                     const StoreServerOptions& options);

  /// Serves until Stop. Then it takes no more clients, ends what is under way and sends the
  /// answers.
  void Run();
  /// Threads: any, also a signal handler
  void Stop() { stop_->Set(); }

 private:
  struct Answer {
    std::vector<std::byte> packet{};
    uint32_t blocks = 0;  // that are under way until it is sent
  };
  struct Client {
    UnixSocket socket;
    UnixSocket::Peer peer{};
    uint64_t greets_until_us = 0;  // 0: it has
    bool gone = false;
    SharedMemory slab{};
    std::vector<std::byte> put_back{};  // a packet that there was no memory for
    std::deque<Answer> answers{};       // that the socket did not take yet
    uint32_t batches = 0;               // under way in the store
    uint32_t blocks = 0;                // likewise, or answered and not sent
    uint64_t slab_bytes_used = 0;
  };
  struct Batch {
    Client* client = nullptr;
    PacketKind kind = PacketKind::kFlush;
    uint64_t number = 0;  // the client's
    uint32_t blocks = 0;
    uint64_t slab_bytes = 0;
    std::unique_ptr<std::byte[]> copy{};  // kPut: what is written
    uint64_t copy_bytes = 0;
  };

  StoreServer(BlockStore& store, const StoreServerOptions& options, uint64_t block_bytes_max,
              std::unique_ptr<UnixListener> listener, std::unique_ptr<Event> stop);

  void Turn(bool serves);
  void Accept();
  /// Clients that were greeted and are here.
  uint64_t Serves() const;
  void Refuse(UnixSocket& socket, const Error& error);
  void Read(Client& client);
  void Take(Client& client, std::span<const std::byte> packet);
  void Greet(Client& client, std::span<const std::byte> packet);
  /// False: the memory for copies is used up.
  bool Begin(Client& client, const PacketRequest& request);
  uint64_t HandIn(Client& client, const PacketRequest& request, Batch& batch);
  void AnswerNow(Client& client, const PacketRequest& request);
  void TakeEnded();
  void Say(Client& client, const PacketReply& reply, uint32_t blocks);
  void SendAnswers(Client& client);
  void Leave(Client& client, std::string_view why);

  BlockStore& store_;
  const StoreServerOptions options_;
  const uint64_t block_bytes_max_;
  const uint64_t slab_bytes_;
  std::unique_ptr<UnixListener> listener_;  // null: it stops
  const std::unique_ptr<Event> stop_;
  uint64_t accepts_after_us_ = 0;
  std::list<Client> clients_;
  std::map<uint64_t, Batch> batches_;  // by the store's number
  uint64_t copy_bytes_ = 0;            // of these
  std::vector<std::byte> buffer_;      // a packet
};

}  // namespace quire::store

#endif  // QUIRE_STORE_SOCKET_SERVER_H_
