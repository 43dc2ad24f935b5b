// Sessions in files: what an engine's sessions need to go on in another process.
#ifndef QUIRE_SERVE_SESSION_STORE_H_
#define QUIRE_SERVE_SESSION_STORE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "base/mutex.h"
#include "env/files.h"
#include "quire/store.h"
#include "serve/session_record.h"
#include "serve/session_seal.h"

namespace quire::serve {

struct SessionStoreOptions {
  std::string directory{};                 // made if there is none; what holds it exists
  SessionFingerprint fingerprint{};        // see FingerprintOf
  uint64_t sessions_max = 65'536;          // those of other models too
  uint64_t bytes_max = uint64_t{1} << 30;  // of all files
  StoreKeys keys{};                        // of an encrypted directory
  std::function<uint64_t()> unix_us{};     // wall clock
};

/// A session that was found when the store was opened.
struct StoredSession {
  SessionHead head{};
  std::optional<Error> unusable{};  // why it cannot go on here; its file is left as it is
};

/// How a change ended, once it outlives the process. Called once, on any thread, or never where the
/// engine ends before. It must return at once.
using OnSettled = std::move_only_function<void(Result<void>)>;
using OnSessionRead = std::move_only_function<void(Result<SessionRecord>)>;

/// One file for each session, named as it is: written beside it, synced, then renamed over it, so
/// that a crash leaves the old state or the new one, whole. They are their owner's alone (mode
/// 0600). With keys what they hold is sealed, and their names say nothing. A text that is not
/// needed any more is zeroed before its blocks go back to the file system. A state machine: each
/// Tick moves it on, a thread of its own in production, a test by hand.
///
/// Threads:  any; Tick one at a time
/// Lifetime: `files`, which nothing else uses meanwhile, and what `unix_us` reads must outlive it
class SessionStore {
 public:
  /// Lists what is there, without reading the texts. A damaged file, or one of another model or of
  /// a newer version, is said once in the log, and left alone.
  ///
  /// Errors: kBusy another process has the directory; kNotFound what is to hold it does not exist;
  ///         kNoSpace; kIo; with keys what KeyRing::Open says, and kInvalidArgument keys for
  ///         sessions that are not encrypted, or none for some that are
  static Result<std::unique_ptr<SessionStore>> Open(Files& files,
                                                    const SessionStoreOptions& options);
  /// New keys for a directory of sessions that no process has open; none there is no error. What a
  /// crash leaves has the old keys or the new ones; asked again, it goes on.
  ///
  /// Errors: kInvalidArgument the keys are not those of the directory; kBusy; kNoSpace; kIo
  static Result<void> RotateKeys(Files& files, const std::string& directory, const StoreKeys& keys,
                                 const StoreKeys& new_keys, bool renews_data_keys);
  /// Does what it was asked for before, where it has a thread.
  ~SessionStore();

  /// From now on a thread of its own turns it.
  void Start();
  /// Does what it was asked for, up to a few dozen changes. False: there was nothing.
  bool Tick();

  /// What was there when it was opened, in the order of names.
  const std::vector<StoredSession>& found() const { return found_; }
  uint64_t UnixMicros() const { return options_.unix_us(); }

  /// A session's name is its own until it is removed or given back.
  ///
  /// Errors: kInvalidArgument no name for a session (IsSessionName), or a file has it; kBusy a
  ///         session that is open has it
  Result<void> ClaimNew(const std::string& name);
  /// The same for a session that has a file.
  ///
  /// Errors: kNotFound; kBusy; why it is unusable
  Result<void> ClaimStored(const std::string& name);
  void GiveBack(const std::string& name);

  // Each is done after all that were asked for before.

  /// Errors: kNoSpace the disk, sessions_max or bytes_max; kIo. The file is as it was
  void Write(SessionRecord record, OnSettled settled);
  /// Overwrites the text, removes the file and gives the name back. That there is no file is no
  /// error.
  ///
  /// Errors: kIo the file may be there yet, or come back after a crash; asked again, it goes on
  ///         where that failed
  void Remove(std::string name, OnSettled settled);
  /// The same for all of a tenant, and for what of its texts an earlier call could not overwrite.
  ///
  /// Errors: as Remove; kCorrupt a file does not say whose it is, and may be the tenant's. They
  ///         name one session whose text is left
  void RemoveAllOf(std::string tenant, OnSettled settled);
  /// Errors: kNotFound; kCorrupt, kUnsupported, kIo name the file
  void Read(std::string name, OnSessionRead read);

  /// Forgets what is waited for: no caller is told any more once this returns. What was asked for
  /// is done all the same.
  void Detach();

 private:
  struct WriteJob {
    SessionRecord record;
    OnSettled settled;
  };
  struct RemoveJob {
    std::string name;
    OnSettled settled;
  };
  struct RemoveAllJob {
    std::string tenant;
    OnSettled settled;
  };
  struct ReadJob {
    std::string name;
    OnSessionRead read;
  };
  struct Job {
    std::variant<WriteJob, RemoveJob, RemoveAllJob, ReadJob> what;
    uint64_t life;  // of the caller that waits for it, as `lives_`
  };
  struct Batch;
  struct Known {
    uint64_t bytes;
    std::optional<std::string> tenant;  // none: the file does not say
    std::string file{};                 // its name
  };
  struct Replaced {  // a file without a name
    FileId file;
    std::string session;
    std::optional<std::string> tenant;
  };

  SessionStore(Files& files, const SessionStoreOptions& options);
  Result<void> TakeLock();
  Result<void> OpenKeys(const StoreKeys& keys);
  Result<void> List();
  void Judge(const std::string& name, Result<SessionHead> head);
  std::string PathOf(const std::string& file) const;
  std::string FileOf(const std::string& name) const;
  Result<SessionHead> ReadHead(const std::string& file);
  Result<std::vector<std::byte>> ReadAll(const std::string& path);
  Result<SessionRecord> ReadRecord(const std::string& name);
  Result<void> Overwrite(FileId file);
  Result<void> Erase(const std::string& path);
  Result<void> EraseLeftover(const std::string& hidden);
  template <typename Matters>
  Result<void> EraseReplaced(const Matters& matters);
  Result<void> WriteNew(const std::string& hidden, std::span<const std::byte> bytes);
  Result<void> WriteFileOf(const SessionRecord& record, Batch& batch);
  Result<void> RemoveFileOf(const std::string& name);
  Result<void> RemoveFilesOf(const std::string& tenant);
  void Do(WriteJob& job, Batch& batch);
  void Do(RemoveJob& job, Batch& batch);
  void Do(RemoveAllJob& job, Batch& batch);
  void Do(ReadJob& job, Batch& batch);
  void EndBatch(Batch& batch);
  template <typename What>
  void Ask(What what);
  void Run();

  Files& files_;
  const SessionStoreOptions options_;
  std::optional<SessionSeal> seal_;  // none: files are not encrypted
  std::vector<StoredSession> found_;
  std::optional<FileId> lock_;
  // Of the thread that calls Tick, as `files_` is.
  std::map<std::string, Known> known_;  // by name
  std::map<std::string, Known>
      leftovers_;                   // by hidden name: of no session, and not overwritten yet
  std::vector<Replaced> replaced_;  // the same, of files that have no name
  uint64_t bytes_ = 0;              // of all but the replaced ones
  bool warned_ = false;             // that writing fails

  Mutex mutex_{LockRank::kLeaf};
  CondVar asked_;
  CondVar called_;
  std::deque<Job> jobs_ QUIRE_GUARDED_BY(mutex_);
  std::set<std::string> open_names_ QUIRE_GUARDED_BY(mutex_);
  std::map<std::string, std::optional<Error>> stored_names_ QUIRE_GUARDED_BY(mutex_);
  uint64_t lives_ QUIRE_GUARDED_BY(mutex_) = 0;  // how often Detach was called
  bool calling_ QUIRE_GUARDED_BY(mutex_) = false;
  bool stops_ QUIRE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_SESSION_STORE_H_
