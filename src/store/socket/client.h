// A store that another process owns, as its clients use it.
#ifndef QUIRE_STORE_SOCKET_CLIENT_H_
#define QUIRE_STORE_SOCKET_CLIENT_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "env/shared_memory.h"
#include "env/unix_socket.h"
#include "store/impl.h"
#include "store/socket/protocol.h"
#include "tier/arena.h"

namespace quire::store {

/// A connection that was greeted.
struct Connection {
  /// Errors: those of UnixSocket::Connect; what the owner refuses it with; kUnsupported another
  ///         version's; kCorrupt, kDeadline no owner of a store answers
  static Result<std::unique_ptr<Connection>> Open(const std::string& path);

  UnixSocket socket;
  SharedMemory slab{};
  tier::Arena free;
  Welcome welcome{};
};

/// Calls put their batches into a queue; a thread copies payloads into the memory that both
/// processes have, says so to the owner, and copies what was read out of it.
class SocketStore final : public BlockStore::Impl {
 public:
  SocketStore(std::string path, std::unique_ptr<Connection> connection,
              std::unique_ptr<Event> event, std::unique_ptr<Event> wake);
  ~SocketStore() override;
  /// Throws std::system_error: there is no thread.
  void Start();

  uint64_t Put(std::string_view name_space, std::span<const BlockPut> blocks) override;
  uint64_t Get(std::string_view name_space, std::span<const BlockGet> blocks) override;
  uint64_t Exists(std::string_view name_space, std::span<const std::string_view> keys) override;
  uint64_t Remove(std::string_view name_space, std::span<const std::string_view> keys) override;
  uint64_t Erase(std::string_view name_space) override;
  uint64_t Flush() override;
  Result<void> SetLimits(std::string_view name_space, const NamespaceLimits& limits) override;
  Result<NamespaceUsage> Usage(std::string_view name_space) override;
  void Close() override;
  BlockStoreStats stats() override;

 private:
  struct Item {
    std::string key{};
    std::span<const std::byte> data{};
    std::span<std::byte> out{};
  };
  /// What a caller waits for that is no batch.
  struct Call {
    bool ended = false;
    bool ok = false;
    std::vector<uint64_t> numbers{};
  };
  struct Work {
    PacketKind kind = PacketKind::kFlush;
    std::string name_space{};
    NamespaceLimits limits{};
    std::vector<Item> items{};
    std::vector<BlockResult> results{};
    uint64_t id = 0;               // of the batch
    std::shared_ptr<Call> call{};  // instead of a batch
    size_t next = 0;               // the first item that was not sent
    size_t left = 0;               // packets and items that have not ended
  };
  struct Stretch {
    uint64_t begin = 0;
    uint64_t bytes = 0;  // of the item; 0: nothing was taken
  };
  struct Packet {  // that was sent
    std::shared_ptr<Work> work{};
    std::vector<size_t> items{};
    std::vector<Stretch> slab{};  // of these
  };

  uint64_t Submit(PacketKind kind, std::string_view name_space, std::vector<Item> items);
  uint64_t SubmitKeys(PacketKind kind, std::string_view name_space,
                      std::span<const std::string_view> keys);
  void HandIn(std::shared_ptr<Work> work) QUIRE_REQUIRES(mutex_);
  Result<std::vector<uint64_t>> Ask(PacketKind kind, std::string_view name_space,
                                    const NamespaceLimits& limits = {});
  Result<std::vector<uint64_t>> AskNow(PacketKind kind, std::string_view name_space,
                                       const NamespaceLimits& limits, uint64_t timeout_us)
      QUIRE_REQUIRES(mutex_);

  // The thread's.

  void Run();
  /// False: there is nothing more to do, ever.
  bool TakeSubmitted();
  bool HasConnection();
  /// Sends what there is room for. True: something was sent.
  bool SendSome();
  bool SendPacket(const std::shared_ptr<Work>& work);
  /// Takes items of a batch into a packet, as many as there is room for.
  Packet Gather(const std::shared_ptr<Work>& work, PacketWriter& writer);
  bool TryItem(Work& work, size_t index, Packet& packet, std::vector<PacketItem>& items);
  bool Receive();
  bool Take(const PacketReply& reply);
  BlockResult TakeBlock(const Work& work, size_t item, const Stretch& stretch,
                        const BlockResult& result);
  void GiveBack(const Packet& packet);
  void EndItem(Work& work, size_t item, const BlockResult& result);
  void EndIfDone(const std::shared_ptr<Work>& work);
  void Fail(const std::shared_ptr<Work>& work, BlockOutcome outcome);
  /// The owner has gone: what it was asked ends.
  void Lose(std::string_view why);
  void Await();

  const std::string path_;
  const std::unique_ptr<Event> wake_;
  Mutex mutex_{LockRank::kBlockStore};
  CondVar call_ended_;
  std::deque<std::shared_ptr<Work>> submitted_ QUIRE_GUARDED_BY(mutex_);
  bool closing_ QUIRE_GUARDED_BY(mutex_) = false;
  bool stopping_ QUIRE_GUARDED_BY(mutex_) = false;
  bool joined_ QUIRE_GUARDED_BY(mutex_) = false;
  BlockStoreStats last_stats_ QUIRE_GUARDED_BY(mutex_);

  std::unique_ptr<Connection> connection_;  // the thread's, as what follows
  uint64_t connects_after_us_ = 0;
  std::deque<std::shared_ptr<Work>> queue_;
  std::map<uint64_t, Packet> sent_;
  std::vector<std::byte> unsent_;  // a packet that the socket did not take yet
  uint64_t packets_ = 0;
  uint64_t blocks_ = 0;  // under way at the owner
  std::vector<std::byte> buffer_;
  std::thread thread_;
};

}  // namespace quire::store

#endif  // QUIRE_STORE_SOCKET_CLIENT_H_
