#include "remote/remote_records.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/canary.h"
#include "base/log.h"

namespace quire::remote {

using tier::LoadRequest;
using tier::Presence;
using tier::PutRequest;
using tier::RecordMiss;
using tier::StoreCompletion;
using tier::StoreOutcome;

namespace {

constexpr uint64_t kEpochsPiece = 0;        // the id of what is asked about epochs
constexpr uint64_t kRetryPauseUs = 20'000;  // then twice as long, less up to half of it
constexpr tier::PublisherId kUnnamed{};

void CountTime(std::array<uint64_t, 32>& log2, uint64_t us) {
  const auto bucket = static_cast<size_t>(std::bit_width(std::max<uint64_t>(us, 1)) - 1);
  ++log2[std::min(bucket, log2.size() - 1)];
}

bool IsWhole(const LoadRequest& load) {
  return load.section_first == 0 && load.section_count == load.layout->sections().size();
}

}  // namespace

RemoteRecords::RemoteRecords(std::unique_ptr<Objects> objects, const FleetKey& fleet,
                             const RemoteOptions& options, const Clock& clock)
    : objects_(std::move(objects)),
      keys_(fleet),
      options_(options),
      clock_(clock),
      epochs_(keys_, options.epochs),
      breaker_(options.seed),
      prng_(options.seed),
      presence_(options.keys_max) {
  MutexLock lock(mutex_);
  stats_.where = where();
}

// Callers' memory may go before the service's thread does.
RemoteRecords::~RemoteRecords() {
  for (auto& [id, job] : jobs_) {
    if (job.reader != nullptr) job.reader->End(/*keeps=*/false);
  }
}

bool RemoteRecords::Await(uint64_t timeout_us) {
  constexpr uint64_t kWaitUs = 1000;
  const uint64_t end_us = clock_.NowMicros() + timeout_us;
  std::vector<StoreCompletion> none;
  while (!MayAsk() && breaker_.state() == BreakerState::kClosed && clock_.NowMicros() < end_us) {
    Tick(none, kWaitUs);
  }
  return MayAsk();
}

Presence RemoteRecords::Find(const Digest& key) const {
  const uint64_t now_us = clock_.NowMicros();
  MutexLock lock(mutex_);
  return may_ask_ ? presence_.Of(key, now_us) : Presence::kAbsent;
}

RemoteUse RemoteRecords::use() const {
  MutexLock lock(mutex_);
  return {.may_ask = may_ask_, .reading = stats_.reading, .writing = stats_.writing};
}

RemoteStats RemoteRecords::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

void RemoteRecords::Note(const Digest& key, Presence presence) {
  const uint64_t now_us = clock_.NowMicros();
  MutexLock lock(mutex_);
  const bool is_there = presence == Presence::kPresent;
  presence_.Note(key, presence, now_us + (is_there ? options_.present_us : options_.absent_us));
}

// Reads.

void RemoteRecords::Get(const LoadRequest& load, uint64_t deadline_us) {
  const uint64_t now_us = clock_.NowMicros();
  const auto refuse = [&](StoreOutcome outcome) {
    ended_.push_back({.tag = load.tag, .outcome = outcome});
  };
  if (load.identity.erase_epoch < EpochOf(load.identity.publisher)) {
    return refuse(StoreOutcome::kErased);
  }
  if (deadline_us != 0 && now_us >= deadline_us) return refuse(StoreOutcome::kDeadline);
  const Presence presence = Find(load.identity.key);
  if (!MayAsk() || presence == Presence::kAbsent) return refuse(StoreOutcome::kAbsent);
  Job job{.caller_tag = load.tag,
          .load = load,
          .key = load.identity.key,
          .publisher = load.identity.publisher,
          .begin_us = now_us,
          .deadline_us = now_us + options_.request_us};
  if (deadline_us != 0) job.caller_deadline_us = deadline_us;
  job.deadline_us = std::min(job.deadline_us, job.caller_deadline_us);
  const auto parent = asked_.find(load.identity.parent);
  std::optional<Digest> root;  // none: it may be asked at once, and so may what continues it
  if (presence == Presence::kUnknown) {
    root = parent == asked_.end() ? load.identity.key : parent->second;
  }
  asked_[job.key] = root;
  const bool waits = root && *root != job.key;
  if (waits) job.waits_for = root;
  const uint64_t id = next_id_++;
  Job& added = jobs_.emplace(id, std::move(job)).first->second;
  if (!waits) Send(id, added);
  MutexLock lock(mutex_);
  ++stats_.reading;
}

// The service's thread opens what comes: it has it in its cache.
void RemoteRecords::SendRead(uint64_t id, Job& job) {
  const LoadRequest& load = job.load;
  if (job.reader != nullptr) job.reader->End(/*keeps=*/false);
  job.reader = std::make_shared<SealedReader>(*seal_, load);
  const SealedRange range = Seal::RangeOf(*load.layout, load.section_first, load.section_count);
  const auto ask = [&](uint64_t offset, uint64_t bytes, ObjectSink sink) {
    const uint64_t tag = next_id_++;
    pieces_[tag] = id;
    objects_->Ask({.tag = tag,
                   .verb = ObjectVerb::kGet,
                   .name = seal_->NameOf(job.key),
                   .offset = offset,
                   .bytes_max = bytes,
                   .whole = IsWhole(load),
                   .sink = std::move(sink)});
  };
  using Bytes = std::span<const std::byte>;
  if (load.section_first == 0) {
    job.pieces = 1;
    return ask(0, kSealedHeadBytes + range.bytes,
               [reader = job.reader](Bytes bytes) { reader->TakeObject(bytes); });
  }
  job.pieces = 2;
  ask(0, kSealedHeadBytes, [reader = job.reader](Bytes bytes) { reader->TakeHead(bytes); });
  ask(range.offset, range.bytes, [reader = job.reader](Bytes bytes) { reader->Take(bytes); });
}

void RemoteRecords::Send(uint64_t id, Job& job) {
  ++job.tries;
  job.retry_us = 0;
  if (job.verb == ObjectVerb::kGet) return SendRead(id, job);
  job.pieces = 1;
  const uint64_t tag = next_id_++;
  pieces_[tag] = id;
  objects_->Ask({.tag = tag,
                 .verb = job.verb,
                 .name = seal_->NameOf(job.key),
                 .bytes = std::exchange(job.object, {})});
}

void RemoteRecords::OnRead(Jobs::iterator at, ObjectReply& reply) {
  Job& job = at->second;
  if (reply.outcome == ObjectOutcome::kAbsent) {
    Note(job.key, Presence::kAbsent);
    return EndRead(at, StoreOutcome::kAbsent);
  }
  if (reply.outcome == ObjectOutcome::kTooLarge) {
    return EndRead(at, StoreOutcome::kMiss, RecordMiss::kOtherLayout);
  }
  if (--job.pieces > 0) return;
  const uint64_t received = job.reader->received();
  {
    MutexLock lock(mutex_);
    stats_.bytes_read += received;
  }
  job.came = true;
  OpenRead(at);
}

// What came is handed out only while this machine knows of every erasure that has ended.
void RemoteRecords::OpenRead(Jobs::iterator at) {
  Job& job = at->second;
  const LoadRequest& load = job.load;
  const bool is_fresh = epochs_.IsFresh(clock_.NowMicros()) || Planted(Canary::kTrustOldEpochs);
  if (load.identity.publisher != kUnnamed && !is_fresh) return;
  if (load.identity.erase_epoch < EpochOf(load.identity.publisher)) {
    return EndRead(at, StoreOutcome::kErased);
  }
  if (!job.reader->is_whole() && !Planted(Canary::kTrustSealed)) {
    return EndRead(at, StoreOutcome::kMiss, WhyNot(job));
  }
  Note(job.key, Presence::kPresent);
  EndRead(at, StoreOutcome::kOk);
}

RecordMiss RemoteRecords::WhyNot(const Job& job) const {
  const auto head = seal_->OpenHead(seal_->NameOf(job.key), job.reader->head());
  if (!head) return RecordMiss::kNotARecord;
  const tier::RecordIdentity& identity = job.load.identity;
  if (head->publisher != identity.publisher) return RecordMiss::kOtherPublisher;
  if (head->erase_epoch != identity.erase_epoch) return RecordMiss::kErased;
  if (head->object_bytes != Seal::ObjectBytes(*job.load.layout)) return RecordMiss::kOtherLayout;
  const SealedRange range =
      Seal::RangeOf(*job.load.layout, job.load.section_first, job.load.section_count);
  return job.reader->received() < kSealedHeadBytes + range.bytes ? RecordMiss::kTruncated
                                                                 : RecordMiss::kPayloadDamaged;
}

void RemoteRecords::EndRead(Jobs::iterator at, StoreOutcome outcome, RecordMiss miss) {
  Job& job = at->second;
  const uint64_t us = clock_.NowMicros() - job.begin_us;
  const bool waited = job.waits_for.has_value();
  const Digest key = job.key;
  // What is not what it should be is as good as absent: it is computed, and put in its place.
  if (outcome == StoreOutcome::kMiss) Note(key, Presence::kAbsent);
  {
    MutexLock lock(mutex_);
    --stats_.reading;
    switch (outcome) {
      case StoreOutcome::kOk:
        ++stats_.hits;
        stats_.read_us_total += us;
        CountTime(stats_.read_us_log2, us);
        break;
      case StoreOutcome::kMiss: ++stats_.rejected; break;
      case StoreOutcome::kDeadline: ++stats_.late; break;
      default: ++stats_.misses;
    }
  }
  End(at, outcome, miss);
  asked_.erase(key);
  if (!waited) EndWaiting(key, outcome);
}

void RemoteRecords::EndWaiting(const Digest& key, StoreOutcome outcome) {
  const bool is_there = outcome == StoreOutcome::kOk;
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    const auto next = std::next(at);
    Job& job = at->second;
    if (job.waits_for == key) {
      if (is_there) {
        job.waits_for.reset();
        asked_[job.key] = std::nullopt;
        job.deadline_us =
            std::min(clock_.NowMicros() + options_.request_us, job.caller_deadline_us);
        Send(at->first, job);
      } else {
        EndRead(at, outcome == StoreOutcome::kMiss ? StoreOutcome::kAbsent : outcome);
      }
    }
    at = next;
  }
}

void RemoteRecords::Cancel(uint64_t tag) {
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    const auto next = std::next(at);
    const bool is_it = at->second.verb == ObjectVerb::kGet && at->second.caller_tag == tag;
    // What waits for its answer is worth asking by itself now.
    if (is_it) {
      const Digest key = at->second.key;
      const bool waited = at->second.waits_for.has_value();
      End(at, StoreOutcome::kCancelled);
      asked_.erase(key);
      if (!waited) EndWaiting(key, StoreOutcome::kOk);
      MutexLock lock(mutex_);
      --stats_.reading;
    }
    at = next;
  }
}

// Writes.

void RemoteRecords::Put(const PutRequest& request) {
  const tier::RecordIdentity& identity = request.identity;
  const auto refuse = [&](StoreOutcome outcome) {
    ended_.push_back({.tag = request.tag, .outcome = outcome});
  };
  const uint64_t epoch = EpochOf(identity.publisher);
  if (identity.erase_epoch < epoch) return refuse(StoreOutcome::kErased);
  if (identity.erase_epoch > epoch) return refuse(StoreOutcome::kUnknownEpoch);
  const bool may =
      MayAsk() && (identity.publisher == kUnnamed || epochs_.IsFresh(clock_.NowMicros()));
  if (may && Find(identity.key) == Presence::kPresent) return refuse(StoreOutcome::kPresent);
  const uint64_t bytes = Seal::ObjectBytes(*request.layout);
  const bool has_room = writing_bytes_ == 0 || writing_bytes_ + bytes <= options_.writing_bytes_max;
  if (!may) {
    CountSkipped();
    return refuse(StoreOutcome::kIo);
  }
  if (!has_room) return refuse(StoreOutcome::kBusy);
  const uint64_t now_us = clock_.NowMicros();
  Job job{.verb = ObjectVerb::kPut,
          .caller_tag = request.tag,
          .key = identity.key,
          .publisher = identity.publisher,
          .begin_us = now_us,
          .deadline_us = now_us + options_.request_us,
          .bytes = bytes,
          .object = seal_->Close(identity, *request.layout, request.sections)};
  const uint64_t id = next_id_++;
  Job& added = jobs_.emplace(id, std::move(job)).first->second;
  writing_bytes_ += bytes;
  Send(id, added);
  MutexLock lock(mutex_);
  ++stats_.writing;
}

void RemoteRecords::CountSkipped() {
  MutexLock lock(mutex_);
  ++stats_.writes_skipped;
}

bool RemoteRecords::HasWritesBefore(uint64_t mark) const {
  for (const auto& [id, job] : jobs_) {
    if (id >= mark) return false;
    if (job.verb == ObjectVerb::kPut) return true;
  }
  return false;
}

void RemoteRecords::Remove(const Digest& key, uint64_t tag) {
  if (!MayAsk()) return ended_.push_back({.tag = tag, .outcome = StoreOutcome::kIo});
  const uint64_t now_us = clock_.NowMicros();
  const uint64_t id = next_id_++;
  Job job{.verb = ObjectVerb::kRemove,
          .caller_tag = tag,
          .key = key,
          .begin_us = now_us,
          .deadline_us = now_us + options_.request_us};
  Send(id, jobs_.emplace(id, std::move(job)).first->second);
}

void RemoteRecords::OnWritten(Jobs::iterator at, ObjectReply& reply) {
  Job& job = at->second;
  if (reply.outcome == ObjectOutcome::kFull) return End(at, StoreOutcome::kNoSpace);
  const bool is_put = job.verb == ObjectVerb::kPut;
  Note(job.key, is_put ? Presence::kPresent : Presence::kAbsent);
  if (is_put) {
    MutexLock lock(mutex_);
    ++stats_.written;
    stats_.bytes_written += job.bytes;
    const uint64_t us = clock_.NowMicros() - job.begin_us;
    stats_.write_us_total += us;
    CountTime(stats_.write_us_log2, us);
  }
  End(at, reply.outcome == ObjectOutcome::kAbsent ? StoreOutcome::kAbsent : StoreOutcome::kOk);
}

void RemoteRecords::Erase(const tier::PublisherId& publisher, uint64_t epoch, uint64_t tag) {
  epochs_.Erase(publisher, epoch, tag, clock_.NowMicros());
}

// Replies.

void RemoteRecords::End(Jobs::iterator at, StoreOutcome outcome, RecordMiss miss) {
  const Job& job = at->second;
  if (job.reader != nullptr) job.reader->End(outcome == StoreOutcome::kOk);
  if (job.verb == ObjectVerb::kPut) {
    writing_bytes_ -= job.bytes;
    MutexLock lock(mutex_);
    --stats_.writing;
    if (outcome != StoreOutcome::kOk) ++stats_.writes_failed;
  }
  ended_.push_back({.tag = job.caller_tag, .outcome = outcome, .miss = miss});
  jobs_.erase(at);
}

void RemoteRecords::OnUnavailable(Jobs::iterator at, ObjectReply& reply) {
  Job& job = at->second;
  if (job.verb == ObjectVerb::kPut) job.object = std::move(reply.bytes);
  const bool may_retry = reply.outcome == ObjectOutcome::kUnavailable &&
                         job.tries < options_.tries && MayAsk() &&
                         (job.verb != ObjectVerb::kPut || !job.object.empty());
  const uint64_t now_us = clock_.NowMicros();
  const uint64_t pause_us = kRetryPauseUs << job.tries;
  const uint64_t retry_us = now_us + pause_us - prng_.NextBelow(pause_us / 2);
  if (!may_retry || retry_us >= job.deadline_us) {
    const StoreOutcome outcome = StoreOutcome::kIo;
    return job.verb == ObjectVerb::kGet ? EndRead(at, outcome) : End(at, outcome);
  }
  // The other piece of it, if there is one, belongs to nothing any more.
  std::erase_if(pieces_, [&](const auto& piece) { return piece.second == at->first; });
  job.retry_us = retry_us;
  MutexLock lock(mutex_);
  ++stats_.retries;
}

void RemoteRecords::OnReply(ObjectReply& reply, std::vector<StoreCompletion>& done) {
  const auto piece = pieces_.extract(reply.tag);
  if (!piece) return;  // it ended before, or comes twice
  const bool failed =
      reply.outcome == ObjectOutcome::kUnavailable || reply.outcome == ObjectOutcome::kRefused;
  if (piece.mapped() == kEpochsPiece) {
    const ObjectOutcome outcome = epochs_.OnReply(reply, clock_.NowMicros());
    if (outcome != ObjectOutcome::kOk) {
      const bool is_foreign = reply.outcome == ObjectOutcome::kOk;
      return Failed(outcome, is_foreign ? "its erase epochs were changed by others than this fleet"
                                        : reply.detail);
    }
    Succeeded();
    UseIncarnation();
    return epochs_.TakeEnded(done, clock_.NowMicros());
  }
  failed ? Failed(reply.outcome, reply.detail) : Succeeded();
  const auto job = jobs_.find(piece.mapped());
  if (job == jobs_.end()) return;
  if (failed) return OnUnavailable(job, reply);
  if (job->second.verb == ObjectVerb::kGet) return OnRead(job, reply);
  OnWritten(job, reply);
}

// A probe alone tells whether a breaker closes: an answer to what was asked before may be old.
void RemoteRecords::Succeeded() {
  if (breaker_.state() == BreakerState::kOpen) return;
  if (breaker_.state() == BreakerState::kProbing) LogInfo("remote {}: answers again", where());
  breaker_.OnSuccess();
}

void RemoteRecords::Failed(ObjectOutcome outcome, const std::string& detail) {
  const uint64_t now_us = clock_.NowMicros();
  const bool refused = outcome == ObjectOutcome::kRefused;
  const bool opens = refused              ? breaker_.OnRefusal(now_us)
                     : epochs_.is_known() ? breaker_.OnFailure(now_us)
                                          : breaker_.Trip(now_us);
  if (opens) LogWarn("remote {}: {}; it is left alone for a while", where(), detail);
  MutexLock lock(mutex_);
  ++stats_.failures;
  if (opens) ++stats_.breaker_opened;
}

void RemoteRecords::UseIncarnation() {
  if (!epochs_.is_known()) return;
  if (seal_ && epochs_.incarnation() == incarnation_) return;
  incarnation_ = epochs_.incarnation();
  seal_.emplace(keys_, incarnation_);
  {
    MutexLock lock(mutex_);
    presence_.Clear();
  }
  // What is being read is of the life before, whose last erasures this machine may not know.
  std::vector<uint64_t> reads;
  for (const auto& [id, job] : jobs_) {
    if (job.reader != nullptr) reads.push_back(id);
  }
  for (const uint64_t id : reads) {
    const auto at = jobs_.find(id);
    if (at != jobs_.end()) EndRead(at, StoreOutcome::kAbsent);
  }
}

void RemoteRecords::AskEpochs() {
  const uint64_t now_us = clock_.NowMicros();
  const bool may_probe = breaker_.MayProbe(now_us);
  auto request = epochs_.Next(now_us, breaker_.MayAsk(), may_probe);
  if (!request) return;
  if (may_probe) breaker_.OnProbe();
  request->tag = next_id_++;
  pieces_[request->tag] = kEpochsPiece;
  objects_->Ask(*std::move(request));
}

// What is late, what is tried again, and what may be opened by now.
void RemoteRecords::PassTime() {
  const uint64_t now_us = clock_.NowMicros();
  std::vector<uint64_t> late;
  for (auto& [id, job] : jobs_) {
    if (now_us >= job.deadline_us) {
      late.push_back(id);
    } else if (job.retry_us != 0 && now_us >= job.retry_us) {
      Send(id, job);
    }
  }
  for (const uint64_t id : late) {
    const auto at = jobs_.find(id);
    if (at == jobs_.end()) continue;
    // What had its answer, or waits for another one's, says nothing about the service.
    if (!at->second.came && !at->second.waits_for) {
      Failed(ObjectOutcome::kUnavailable, "no answer in time");
    }
    const bool reads = at->second.verb == ObjectVerb::kGet;
    reads ? EndRead(at, StoreOutcome::kDeadline) : End(at, StoreOutcome::kIo);
  }
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    const uint64_t id = at->first;
    if (at->second.came) OpenRead(at);
    at = jobs_.upper_bound(id);
  }
}

void RemoteRecords::Tick(std::vector<StoreCompletion>& done, uint64_t wait_us) {
  AskEpochs();
  std::vector<ObjectReply> replies;
  objects_->Take(replies, ended_.empty() ? wait_us : 0);
  for (ObjectReply& reply : replies) OnReply(reply, done);
  PassTime();
  epochs_.TakeEnded(done, clock_.NowMicros());
  AskEpochs();
  done.insert(done.end(), ended_.begin(), ended_.end());
  ended_.clear();
  MutexLock lock(mutex_);
  may_ask_ = MayAsk();
  stats_.breaker = breaker_.state();
  stats_.epochs_known = epochs_.IsFresh(clock_.NowMicros());
}

}  // namespace quire::remote
