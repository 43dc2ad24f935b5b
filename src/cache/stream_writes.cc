#include "cache/stream_writes.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "cache/below.h"
#include "cache/mover.h"

namespace quire::cache {
namespace {

using tier::StoreOutcome;

// To be durable, for who lets go of the bytes that are being written.
constexpr uint64_t kLastWaitUs = 5'000'000;

bool IsDurable(StoreOutcome outcome) {
  return outcome == StoreOutcome::kOk || outcome == StoreOutcome::kPresent;
}

// Another try may have another end.
bool MayPass(StoreOutcome outcome) {
  return outcome != StoreOutcome::kErased && outcome != StoreOutcome::kUnknownEpoch;
}

}  // namespace

class StreamWrites::BlockWrite final : public RecordWrite {
 public:
  BlockWrite(const RecordChain& chain, uint64_t block, const PerClass<SlotId>& slots)
      : cache_(chain.cache()),
        tokens_(chain.TokensOf(block).begin(), chain.TokensOf(block).end()),
        slots_(slots),
        identity_(chain.IdentityOf(block, tokens_)) {}

  const PerClass<SlotId>& slots() const { return slots_; }
  /// Nothing: it has not ended.
  std::optional<StoreOutcome> outcome() const {
    const int outcome = outcome_;
    return outcome < 0 ? std::nullopt : std::optional(static_cast<StoreOutcome>(outcome));
  }

  bool Put(tier::Store& store, uint64_t tag) override {
    const tier::RecordLayout& layout = cache_.shapes().sealed();
    RecordSections sections;
    std::span<std::byte> place;     // in the store's memory
    std::optional<uint32_t> chunk;  // else of the staging memory, if it is copied
    if (cache_.slots().on_host()) {
      for (uint32_t group = 0; group < cache_.classes().group_count(); ++group) {
        const std::span<const std::byte> bytes = cache_.slots().HostBytes(slots_[group]);
        cache_.shapes().Cut(group, bytes, sections.bytes);
      }
    } else {
      place = store.Place(identity_, layout);
      if (place.empty()) chunk = cache_.write_staging()->Take();
      CopySections(cache_, slots_, /*twins=*/false,
                   chunk ? (*cache_.write_staging())[*chunk] : place, sections);
    }
    const bool is_there = cache_.slots().ops().SynchronizeCopies(CopyWay::kOut).has_value();
    const tier::PutRequest request = {.identity = identity_,
                                      .layout = &layout,
                                      .sections = sections.bytes,
                                      .crcs = sections.crcs,
                                      .tag = tag};
    if (is_there) store.Put({&request, 1});
    if (!is_there && !place.empty()) store.Withdraw(identity_.key);
    if (chunk) cache_.write_staging()->Give(*chunk);
    return is_there;
  }
  void End(StoreOutcome outcome) override { outcome_ = static_cast<int>(outcome); }

 private:
  LockedState& cache_;
  const WipedVector<TokenId> tokens_;
  const PerClass<SlotId> slots_;
  const tier::RecordIdentity identity_;
  std::atomic<int> outcome_ = -1;
};

StreamWrites::StreamWrites(const RecordChain& chain, uint64_t durable)
    : chain_(chain), durable_(durable) {}

StreamWrites::~StreamWrites() { Cut(0); }

void StreamWrites::Write(const PerClass<SlotId>& slots) {
  writes_.push_back(std::make_shared<BlockWrite>(chain_, begun(), slots));
  mover().Write(writes_.back());
}

// What failed is tried again when somebody asks the next time.
void StreamWrites::TakeEnded() {
  while (!writes_.empty()) {
    const auto outcome = writes_.front()->outcome();
    if (!outcome) return;
    if (!IsDurable(*outcome)) {
      failure_ = outcome;
      return;
    }
    failure_.reset();
    writes_.pop_front();
    ++durable_;
  }
}

bool StreamWrites::Await(uint64_t blocks, uint64_t timeout_us) {
  TakeEnded();
  if (durable_ >= blocks) return true;
  if (blocks > begun()) return false;
  for (uint64_t i = 0; i < blocks - durable_; ++i) {
    const auto outcome = writes_[i]->outcome();
    if (!outcome || IsDurable(*outcome)) continue;
    if (!MayPass(*outcome)) break;
    writes_[i] = std::make_shared<BlockWrite>(chain_, durable_ + i, writes_[i]->slots());
    mover().Write(writes_[i]);
  }
  const auto end = writes_.begin() + static_cast<ptrdiff_t>(blocks - durable_);
  mover().Await(
      [&] { return std::all_of(writes_.begin(), end, [](const auto& w) { return w->outcome(); }); },
      timeout_us, /*hurries=*/true);
  TakeEnded();
  return durable_ >= blocks;
}

void StreamWrites::Cut(uint64_t blocks) {
  TakeEnded();
  durable_ = std::min(durable_, blocks);
  const uint64_t kept = std::min<uint64_t>(blocks - durable_, writes_.size());
  const auto first = writes_.begin() + static_cast<ptrdiff_t>(kept);
  mover().Await(
      [&] { return std::all_of(first, writes_.end(), [](const auto& w) { return w->outcome(); }); },
      kLastWaitUs, /*hurries=*/true);
  for (auto write = first; write != writes_.end(); ++write) mover().Forget(**write);
  writes_.erase(first, writes_.end());
  if (writes_.empty()) failure_.reset();
}

std::string StreamWrites::failure() const {
  if (!failure_) return {};
  return fmt::format("the store does not take block {} ({})", durable_,
                     StoreOutcomeName(*failure_));
}

}  // namespace quire::cache
