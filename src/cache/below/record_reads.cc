#include "cache/below/record_reads.h"

#include <new>

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

void RecordReads::Add(const RecordChain& chain, uint64_t block, const To& to) {
  if (count_ == reads_.size()) reads_.emplace_back();
  Read& read = reads_[count_++];
  const auto tokens = chain.TokensOf(block);
  read.tokens.assign(tokens.begin(), tokens.end());
  read.identity = chain.IdentityOf(block, read.tokens);
  read.to = to;
  read.at = host_.size();
  if (cache_.slots().HostBytes(to.slot).empty()) host_.resize(host_.size() + to.bytes);
}

// What cannot be begun for want of memory does not come.
void RecordReads::Begin() {
  const std::span<Read> reads = std::span(reads_).first(count_);
  for (Read& read : reads) read.end = {.outcome = tier::StoreOutcome::kCancelled};
  const uint64_t deadline_us = cache_.transfers()->NowMicros() + kReadTimeoutUs;
  try {
    for (Read& read : reads) BeginOne(read, deadline_us);
  } catch (const std::bad_alloc&) {
  }
}

void RecordReads::BeginOne(Read& read, uint64_t deadline_us) {
  const tier::RecordLayout& layout = cache_.shapes().sealed();
  const auto [first, count] = read.to.sections;
  std::span<std::byte> bytes = cache_.slots().HostBytes(read.to.slot);
  bytes = bytes.empty() ? std::span(host_).subspan(read.at, read.to.bytes)
                        : bytes.subspan(read.to.offset, read.to.bytes);
  read.out.clear();
  for (const tier::SectionSpec& section : layout.sections().subspan(first, count)) {
    read.out.push_back(bytes.first(section.bytes));
    bytes = bytes.subspan(section.bytes);
  }
  const auto at_end = [this, &read](const tier::StoreCompletion& end) {
    read.end = end;
    --left_;
  };
  cache_.transfers()->Read({.identity = read.identity,
                            .layout = &layout,
                            .section_first = first,
                            .section_count = count,
                            .out = read.out},
                           deadline_us, ends_, at_end);
  ++left_;
}

bool RecordReads::IsDone() {
  ends_.Run();
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
  for (size_t i = 0; i < count_; ++i) {
    const tier::StoreCompletion& end = reads_[i].end;
    if (end.outcome == tier::StoreOutcome::kOk) continue;
    return Failed{.read = i, .outcome = end.outcome, .miss = end.miss};
  }
  QUIRE_TRY(CopyIn());
  return std::nullopt;
}

Result<void> RecordReads::CopyIn() {
  if (host_.empty()) return {};
  const Slots& slots = cache_.slots();
  for (const Read& read : std::span(reads_).first(count_)) {
    if (!slots.HostBytes(read.to.slot).empty()) continue;
    slots.ops().CopyIn(host_.data() + read.at, {.bytes = read.to.bytes},
                       slots.data(read.to.slot) + read.to.offset);
  }
  return slots.ops().SynchronizeCopies(CopyWay::kIn);  // it is read into again
}

void RecordReads::Cancel() {
  if (left_ == 0) return;
  cache_.transfers()->Forget(ends_);
  left_ = 0;
}

}  // namespace quire::cache
