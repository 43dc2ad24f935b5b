#include "remote/fleet_epochs.h"

#include <algorithm>

#include "base/canary.h"

namespace quire::remote {

using tier::PublisherId;
using tier::StoreOutcome;

uint64_t FleetEpochs::EpochOf(const PublisherId& publisher) const {
  MutexLock lock(mutex_);
  const auto known = ever_.find(publisher);
  return known == ever_.end() ? 0 : known->second;
}

void FleetEpochs::Know(const PublisherId& publisher, uint64_t epoch, bool is_news) {
  MutexLock lock(mutex_);
  uint64_t& known = ever_[publisher];
  if (epoch <= known) return;
  known = epoch;
  if (is_news) learned_.emplace_back(publisher, epoch);
}

void FleetEpochs::Erase(const PublisherId& publisher, uint64_t epoch, uint64_t tag,
                        uint64_t now_us) {
  raises_.push_back({.publisher = publisher, .epoch = epoch, .tag = tag, .begun_us = now_us});
  Know(publisher, epoch, /*is_news=*/false);
  next_read_us_ = now_us;
}

// What `ever_` has and the table lacks is written with the next read.
void FleetEpochs::Tell(const PublisherId& publisher, uint64_t epoch) {
  if (epoch <= EpochOf(publisher)) return;
  Know(publisher, epoch, /*is_news=*/false);
  next_read_us_ = 0;
}

bool FleetEpochs::NeedsWriting() const {
  if (!was_read_) return false;
  if (!in_remote_) return true;
  if (std::ranges::any_of(raises_, [](const Raise& raise) { return raise.written_us == 0; })) {
    return true;
  }
  MutexLock lock(mutex_);
  return std::ranges::any_of(
      ever_, [&](const auto& known) { return in_remote_->EpochOf(known.first) < known.second; });
}

// Machines that erase at the same time each raise what the other one wrote: what was published
// between the two goes as well.
EpochTable FleetEpochs::Changed() {
  EpochTable table = in_remote_ ? *in_remote_ : EpochTable::New();
  if (table_) table.version = std::max(table.version, table_->version);
  for (Raise& raise : raises_) {
    if (raise.written_us != 0) continue;
    table.Raise(raise.publisher, raise.epoch);
    raise.epoch = table.EpochOf(raise.publisher);
  }
  MutexLock lock(mutex_);
  for (const auto& [publisher, epoch] : ever_) {
    if (epoch == 0) continue;
    uint64_t& there = table.epochs[publisher];
    there = std::max(there, epoch);
  }
  ++table.version;
  return table;
}

std::optional<ObjectRequest> FleetEpochs::Next(uint64_t now_us, bool may_ask, bool may_probe) {
  if (asking_ != Asking::kNothing) return std::nullopt;
  const bool swaps = may_ask && NeedsWriting();
  const bool reads = may_probe || (may_ask && now_us >= next_read_us_);
  if (!swaps && !reads) return std::nullopt;
  asked_us_ = now_us;
  ObjectRequest request{.name = EpochsName(keys_)};
  if (swaps) {
    asking_ = Asking::kSwap;
    swapping_ = Changed();
    request.verb = ObjectVerb::kSwap;
    request.bytes = CloseEpochs(keys_, swapping_);
    request.version = version_;
    was_read_ = false;  // whatever comes of it
    return request;
  }
  asking_ = Asking::kRead;
  request.verb = ObjectVerb::kGet;
  request.bytes_max = kEpochBytesMax;
  request.whole = true;
  request.wants_version = true;
  return request;
}

ObjectOutcome FleetEpochs::OnReply(const ObjectReply& reply, uint64_t now_us) {
  const bool was_swap = std::exchange(asking_, Asking::kNothing) == Asking::kSwap;
  next_read_us_ = now_us + times_.poll_us;
  return was_swap ? OnSwap(reply, now_us) : OnRead(reply, now_us);
}

bool FleetEpochs::Adopt(const EpochTable& table) {
  const bool is_old = table_ && !table.Follows(*table_);
  for (const auto& [publisher, epoch] : table.epochs) Know(publisher, epoch, /*is_news=*/true);
  if (is_old) return false;
  table_ = table;
  return true;
}

ObjectOutcome FleetEpochs::OnRead(const ObjectReply& reply, uint64_t now_us) {
  was_read_ = false;
  if (reply.outcome == ObjectOutcome::kAbsent) {
    in_remote_.reset();
    version_.clear();
    was_read_ = true;
    return ObjectOutcome::kOk;
  }
  if (reply.outcome != ObjectOutcome::kOk) return reply.outcome;
  auto table = OpenEpochs(keys_, reply.bytes);
  if (!table) return ObjectOutcome::kRefused;
  in_remote_ = std::move(table);
  version_ = reply.version;
  was_read_ = true;
  // An old table may be an old answer, or all that the service has left: the swap that follows
  // tells.
  if (!Adopt(*in_remote_)) return ObjectOutcome::kOk;
  lease_end_us_ = std::max(lease_end_us_, asked_us_ + times_.lease_us);
  for (Raise& raise : raises_) {
    if (raise.written_us == 0 || asked_us_ < raise.written_us) continue;
    if (in_remote_->EpochOf(raise.publisher) >= raise.epoch) {
      if (raise.confirmed_us == 0) raise.confirmed_us = now_us;
    } else {
      raise.written_us = 0;  // it was said to be written, and is not
    }
  }
  return ObjectOutcome::kOk;
}

ObjectOutcome FleetEpochs::OnSwap(const ObjectReply& reply, uint64_t now_us) {
  next_read_us_ = now_us;
  if (reply.outcome == ObjectOutcome::kChanged) return ObjectOutcome::kOk;
  if (reply.outcome != ObjectOutcome::kOk) {
    next_read_us_ = now_us + times_.poll_us;
    return reply.outcome;
  }
  Adopt(swapping_);
  lease_end_us_ = std::max(lease_end_us_, asked_us_ + times_.lease_us);
  for (Raise& raise : raises_) {
    if (raise.written_us == 0 && swapping_.EpochOf(raise.publisher) >= raise.epoch) {
      raise.written_us = now_us;
    }
  }
  return ObjectOutcome::kOk;
}

void FleetEpochs::TakeEnded(std::vector<tier::StoreCompletion>& ended, uint64_t now_us) {
  for (Raise& raise : raises_) {
    const bool is_known =
        raise.confirmed_us != 0 &&
        (now_us >= raise.written_us + times_.lease_us || Planted(Canary::kConfirmEarly));
    if (is_known) {
      if (raise.tag != 0) ended.push_back({.tag = raise.tag});
      raise.epoch = 0;
    } else if (raise.tag != 0 && now_us >= raise.begun_us + times_.erase_us) {
      ended.push_back({.tag = std::exchange(raise.tag, 0), .outcome = StoreOutcome::kIo});
    }
  }
  std::erase_if(raises_, [](const Raise& raise) { return raise.epoch == 0; });
}

}  // namespace quire::remote
