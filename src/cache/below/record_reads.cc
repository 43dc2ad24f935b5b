#include "cache/below/record_reads.h"

#include <new>
#include <utility>

namespace quire::cache {
namespace {

constexpr uint64_t kReadTimeoutUs = 30'000'000;
constexpr uint64_t kCancelSliceUs = 5'000;  // between two looks at `cancel`

}  // namespace

void RecordReads::Reserve(size_t reads, uint64_t bytes) {
  reads_.resize(reads);
  if (!cache_.slots().on_host()) host_.reserve(bytes);
}

void RecordReads::Clear() {
  count_ = 0;
  host_.clear();
}

// Nothing: it does not go straight to a slot.
std::span<std::byte> RecordReads::SlotOf(const To& to) const {
  if (to.slot.is_none()) return {};
  const std::span<std::byte> slot = cache_.slots().HostBytes(to.slot);
  return slot.empty() ? slot : slot.subspan(to.offset, to.bytes);
}

RecordReads::Read& RecordReads::Add(uint64_t block, std::span<const TokenId> tokens,
                                    uint32_t section, std::span<const To> to) {
  if (count_ == reads_.size()) reads_.emplace_back();
  Read& read = reads_[count_++];
  read.block = block;
  read.section = section;
  read.tokens.assign(tokens.begin(), tokens.end());
  read.to.assign(to.begin(), to.end());
  read.at = host_.size();
  for (const To& each : to) {
    if (SlotOf(each).empty()) host_.resize(host_.size() + each.bytes);
  }
  return read;
}

void RecordReads::AddBlock(const RecordChain& chain, uint64_t block, uint32_t section,
                           std::span<const To> to) {
  Read& read = Add(block, chain.TokensOf(block), section, to);
  read.layout = &cache_.shapes().sealed();
  read.identity = chain.IdentityOf(block, read.tokens);
}

void RecordReads::AddRun(const RecordChain& chain, uint64_t block, uint32_t section,
                         std::span<const To> to) {
  Read& read = Add(block, chain.TokensOf(block, cache_.shapes().run_blocks()), section, to);
  read.layout = &cache_.shapes().run();
  read.identity = chain.IdentityOfRun(block, read.tokens);
}

void RecordReads::Begin() {
  is_second_try_ = false;
  for (Read& read : std::span(reads_).first(count_)) {
    read.end = {.outcome = tier::StoreOutcome::kCancelled};
  }
  BeginCancelled();
}

// What cannot be begun for want of memory does not come.
void RecordReads::BeginCancelled() {
  const uint64_t deadline_us = cache_.transfers()->NowMicros() + kReadTimeoutUs;
  try {
    for (Read& read : std::span(reads_).first(count_)) {
      if (read.end.outcome == tier::StoreOutcome::kCancelled) BeginOne(read, deadline_us);
    }
  } catch (const std::bad_alloc&) {
  }
}

void RecordReads::BeginOne(Read& read, uint64_t deadline_us) {
  read.out.clear();
  uint64_t at = read.at;
  for (const To& to : read.to) {
    std::span<std::byte> bytes = SlotOf(to);
    if (bytes.empty()) {
      bytes = std::span(host_).subspan(at, to.bytes);
      at += to.bytes;
    }
    const size_t first = read.section + read.out.size();
    for (const tier::SectionSpec& section : read.layout->sections().subspan(first, to.sections)) {
      read.out.push_back(bytes.first(section.bytes));
      bytes = bytes.subspan(section.bytes);
    }
  }
  const auto at_end = [this, &read](const tier::StoreCompletion& end) {
    read.end = end;
    --left_;
  };
  cache_.transfers()->Read({.identity = read.identity,
                            .layout = read.layout,
                            .section_first = read.section,
                            .section_count = static_cast<uint32_t>(read.out.size()),
                            .out = read.out},
                           deadline_us, ends_, at_end);
  ++left_;
}

// A disk that fails once may have had a bad moment.
bool RecordReads::IsDone() {
  ends_.Run();
  if (left_ == 0 && !std::exchange(is_second_try_, true)) {
    bool any = false;
    for (Read& read : std::span(reads_).first(count_)) {
      if (read.end.outcome != tier::StoreOutcome::kIo) continue;
      read.end.outcome = tier::StoreOutcome::kCancelled;
      any = true;
    }
    if (any) BeginCancelled();
  }
  return left_ == 0;
}

Result<std::optional<RecordReads::Failed>> RecordReads::Await(const std::atomic<bool>* cancel) {
  const uint64_t slice_us = cancel == nullptr ? kReadTimeoutUs : kCancelSliceUs;
  const transfer::Transfers::Turning here;
  while (!cache_.transfers()->Await([this] { return IsDone(); }, slice_us, &here)) {
    if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) {
      return Fail(ErrorCode::kCancelled, "step cancelled");
    }
  }
  if (const auto first = failed()) return first;
  QUIRE_TRY(CopyIn());
  return std::nullopt;
}

std::optional<RecordReads::Failed> RecordReads::failed() const {
  for (const Read& read : std::span(reads_).first(count_)) {
    if (read.end.outcome == tier::StoreOutcome::kOk) continue;
    return Failed{.block = read.block, .outcome = read.end.outcome, .miss = read.end.miss};
  }
  return std::nullopt;
}

Result<void> RecordReads::CopyIn() {
  if (host_.empty()) return {};
  const Slots& slots = cache_.slots();
  for (const Read& read : std::span(reads_).first(count_)) {
    uint64_t at = read.at;
    for (const To& to : read.to) {
      if (!SlotOf(to).empty()) continue;
      if (!to.slot.is_none())
        slots.ops().CopyIn(host_.data() + at, {.bytes = to.bytes}, slots.data(to.slot) + to.offset);
      at += to.bytes;
    }
  }
  return slots.ops().SynchronizeCopies(CopyWay::kIn);  // it is read into again
}

void RecordReads::Cancel() {
  is_second_try_ = true;
  if (left_ == 0) return;
  cache_.transfers()->Forget(ends_);
  left_ = 0;
}

}  // namespace quire::cache
