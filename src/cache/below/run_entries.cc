#include "cache/below/run_entries.h"

#include <algorithm>
#include <new>
#include <span>
#include <utility>

#include "base/bits.h"

namespace quire::cache {
namespace {

constexpr uint64_t kEntryTimeoutUs = 1'000'000;  // then its tokens are computed

}  // namespace

RunEntry::RunEntry(const RecordChain& chain, uint64_t first) : cache_(chain.cache()) {
  const uint32_t block_tokens = cache_.block_tokens();
  const uint64_t blocks = cache_.shapes().run_blocks();
  const auto tokens = chain.TokensOf(first, blocks);
  tokens_.assign(tokens.begin(), tokens.end());
  for (uint64_t i = 0; i < blocks; ++i) {
    const auto name = std::span<const TokenId>(tokens_).subspan(i * block_tokens, block_tokens);
    names_.push_back(chain.IdentityOfEntry(first + i, name));
  }
}

void RunEntry::WriteAfter(tier::StoreOutcome end, const std::shared_ptr<const RunEntry>& entry,
                          transfer::Ends& ends) {
  constexpr uint32_t kTries = 8;  // while the store can take no more just now
  const transfer::Transfers& transfers = *entry->cache_.transfers();
  const bool writes = end == tier::StoreOutcome::kOk ||
                      (end == tier::StoreOutcome::kPresent &&
                       transfers.PresenceOf(entry->names_.front().key) == tier::Presence::kAbsent);
  if (writes) WriteAt(entry, 0, kTries, ends);
}

void RunEntry::WriteAt(const std::shared_ptr<const RunEntry>& entry, size_t number, uint32_t tries,
                       transfer::Ends& ends) {
  if (number == entry->names_.size() || tries == 0) return;
  const std::span<const std::byte> section = std::as_bytes(std::span(entry->tokens_));
  const auto at_end = [entry, number, tries, &ends](const tier::StoreCompletion& end) {
    if (end.outcome == tier::StoreOutcome::kPresent) WriteAt(entry, number + 1, tries, ends);
    if (end.outcome == tier::StoreOutcome::kBusy) WriteAt(entry, number, tries - 1, ends);
  };
  try {
    entry->cache_.transfers()->Write({.identity = entry->names_[number],
                                      .layout = &entry->cache_.shapes().run_entry(),
                                      .sections = {&section, 1}},
                                     ends, at_end);
  } catch (const std::bad_alloc&) {
    return;
  }
}

RunEntrySearch::RunEntrySearch(const RecordChain& chain, uint64_t from, uint64_t blocks)
    : chain_(chain),
      first_(RoundDown(from, uint64_t{chain.cache().shapes().run_blocks()})),
      from_(from),
      end_(std::min({first_ + chain.cache().shapes().run_blocks(), blocks, chain.blocks()})),
      ends_(*chain.cache().transfers()) {
  transfer::Transfers& transfers = *chain_.cache().transfers();
  const RecordShapes& shapes = chain_.cache().shapes();
  if (shapes.run_blocks() == 1 || from_ >= end_) return;
  reads_.reserve(end_ - first_);
  for (uint64_t block = first_; block < end_; ++block) {
    const Digest key = RunEntryKey(chain_.key(block));
    if (transfers.PresenceOf(key) != tier::Presence::kPresent) continue;
    Read& read = reads_.emplace_back();
    const auto name = chain_.TokensOf(block);
    read.name.assign(name.begin(), name.end());
    read.run.resize(shapes.run().token_count());
    read.out = std::as_writable_bytes(std::span(read.run));
    transfers.Read({.identity = chain_.IdentityOfEntry(block, read.name),
                    .layout = &shapes.run_entry(),
                    .section_count = 1,
                    .out = {&read.out, 1}},
                   transfers.NowMicros() + kEntryTimeoutUs, ends_,
                   [this, &read](const tier::StoreCompletion& ended) {
                     read.came = ended.outcome == tier::StoreOutcome::kOk;
                     --left_;
                   });
    ++left_;
  }
}

// Nothing is read into its memory any more.
RunEntrySearch::~RunEntrySearch() { chain_.cache().transfers()->Forget(ends_); }

bool RunEntrySearch::IsDone() {
  ends_.Run();
  return left_ == 0;
}

uint64_t RunEntrySearch::CommonBlocks(const Read& read) const {
  const auto own = chain_.TokensOf(first_, end_ - first_);
  const auto common = std::ranges::mismatch(own, read.run).in1 - own.begin();
  return first_ + static_cast<uint64_t>(common) / chain_.cache().block_tokens();
}

std::optional<RunEntrySearch::Found> RunEntrySearch::Take() const {
  std::optional<Found> best;
  for (const Read& read : reads_) {
    const uint64_t blocks = read.came ? CommonBlocks(read) : 0;
    if (blocks <= std::max(from_, best ? best->blocks : 0)) continue;
    RecordChain chain = chain_;
    chain.Cut(first_ * chain.cache().block_tokens());
    chain.Add(read.run);
    if (chain.HasRun(first_)) best = Found{.chain = std::move(chain), .blocks = blocks};
  }
  return best;
}

}  // namespace quire::cache
