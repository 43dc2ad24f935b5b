// Sequences that stream: they begin with what the store has, and take room for the last tokens
// alone.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/bits.h"
#include "cache/below/record_reads.h"
#include "cache/below/sequence_stream.h"
#include "cache/verbs/admit.h"

namespace quire::cache {
namespace {

constexpr size_t kReadsAtOnce = 64;
// Each begins before what did not come to the one before; after these it begins with nothing.
constexpr int kOpenAttempts = 4;
// For what memory has and the store is still being given. What does not come is computed again.
constexpr uint64_t kWrittenWaitUs = 1'000'000;

/// A sealed form of a block that has to be in memory, and where.
struct Resident {
  uint64_t block = 0;
  uint32_t group = 0;
  SlotId slot{};
};

/// What a query after the first `blocks` blocks has to have in memory, in the last slots of each
/// class.
std::vector<Resident> ResidentOf(const SlotClasses& classes, uint64_t blocks,
                                 const OwnedSlots& slots) {
  std::vector<Resident> resident;
  for (uint32_t group = 0; group < classes.group_count(); ++group) {
    size_t next = slots[group].size();
    for (uint64_t block = blocks; block > 0; --block) {
      if (!classes.IsNeeded(group, block - 1, blocks * classes.block_tokens())) continue;
      resident.push_back({.block = block - 1, .group = group, .slot = slots[group][--next]});
    }
  }
  std::ranges::sort(resident, {},
                    [](const Resident& each) { return std::pair(each.block, each.group); });
  return resident;
}

/// Adds the next of them, or those of its run where the store has that one; how many.
size_t AddNext(const RecordChain& chain, std::span<const Resident> resident, RecordReads& reads) {
  const RecordShapes& shapes = chain.cache().shapes();
  const Resident& first = resident.front();
  if (!chain.HasRun(first.block)) {
    const SectionRange sections = shapes.sections(first.group);
    const RecordReads::To to{.slot = first.slot,
                             .bytes = chain.cache().classes().slot_bytes(first.group),
                             .sections = sections.count};
    reads.AddBlock(chain, first.block, sections.first, {&to, 1});
    return 1;
  }
  const size_t count = std::min<size_t>(shapes.run_blocks(), resident.size());
  std::vector<RecordReads::To> to;
  for (const LayerBytes& layer : shapes.layers()) {
    for (size_t i = 0; i < shapes.run_blocks(); ++i) {
      to.push_back({.slot = i < count ? resident[i].slot : SlotId::None(),
                    .offset = layer.offset,
                    .bytes = layer.bytes,
                    .sections = 1});
    }
  }
  reads.AddRun(chain, first.block, 0, to);
  return count;
}

/// Reads them. The first block that did not come, if any.
std::optional<uint64_t> ReadAll(const RecordChain& chain, std::span<const Resident> resident) {
  RecordReads reads(chain.cache());
  while (!resident.empty()) {
    const uint64_t first = resident.front().block;
    reads.Clear();
    for (size_t added = 0; added < kReadsAtOnce && !resident.empty();) {
      const size_t next = AddNext(chain, resident, reads);
      resident = resident.subspan(next);
      added += next;
    }
    reads.Begin();
    const auto came = reads.Await(/*cancel=*/nullptr);
    if (!came) return first;
    if (*came) return (*came)->block;
  }
  return std::nullopt;
}

PerClass<uint64_t> CountsOf(std::span<const Resident> resident) {
  PerClass<uint64_t> counts{};
  for (const Resident& each : resident) ++counts[each.group];
  return counts;
}

}  // namespace

uint64_t StreamedBytes(const SlotClasses& classes, const StreamNeeds& needs, uint64_t blocks,
                       const SequenceOptions& options) {
  const SlotClasses resident = classes.WithResident(options.resident_tokens);
  PerClass<uint64_t> counts = resident.OwnSlots(/*shared=*/0, blocks, options.step_tokens);
  counts[needs.slot_class] += needs.ring_slots;
  return CheckedAdd(resident.Charge(counts), StreamedMetadata(classes, needs, blocks))
      .value_or(UINT64_MAX);
}

// Of the sequence, its list, its keys and tokens, and what reading takes.
uint64_t StreamedMetadata(const SlotClasses& classes, const StreamNeeds& needs, uint64_t blocks) {
  const BlockList list(classes.count(), classes.block_tokens(), /*keeps_tokens=*/false);
  const uint64_t per_block = list.block_bytes() + RecordChain::BlockBytes(classes.block_tokens());
  return SequenceImpl::FixedBytes(classes) + needs.metadata_bytes + blocks * per_block;
}

Result<void> Admission::CheckStreamFits(const PublishLocation& location, const StreamNeeds& needs,
                                        uint64_t tokens, const SequenceOptions& options) {
  const uint64_t blocks = DivUp(tokens, uint64_t{cache_.block_tokens()});
  const uint64_t bytes = StreamedBytes(cache_.classes(), needs, blocks, options);
  const uint64_t most = cache_.With([&](State& state) {
    const Charges& charges = state.accounts.charges();
    const uint64_t bytes_max =
        std::min(charges.ledger().limit_bytes(), charges.account(location.tenant).quota_bytes());
    if (bytes > bytes_max) {
      ++state.counters.refused_total;
      ++state.accounts.counters(location.tenant).refused_total;
    }
    return bytes_max;
  });
  if (bytes > most) {
    return Fail(ErrorCode::kTooLarge,
                fmt::format("open: can never fit: to stream {} tokens with {} resident and steps "
                            "of {} takes {} bytes ({} of these for lane states), and there are {}; "
                            "lower resident_tokens or step_tokens, or raise hot_bytes",
                            tokens, options.resident_tokens, options.step_tokens, bytes,
                            needs.state_bytes, most));
  }
  // The store recycles what was used longest ago, and others write too.
  const uint64_t stored = blocks * cache_.shapes().sealed().record_bytes();
  const auto [quota, ttl_us] = cache_.Look([&](const State& state) {
    const TenantOptions& account = state.accounts.tenants().options(state.account_of(location));
    return std::pair(account.store_quota_bytes, account.ttl_us);
  });
  if (ttl_us != 0) {
    return Fail(ErrorCode::kUnsupported,
                "open: resident_tokens: what a tenant with a ttl computes is kept in memory alone; "
                "use a tenant without one");
  }
  const uint64_t cap = cache_.transfers()->stats().bytes_cap;
  const uint64_t holds = std::min(cap, quota == 0 ? UINT64_MAX : quota) / 4 * 3;
  if (stored <= holds) return {};
  return Fail(ErrorCode::kTooLarge,
              fmt::format("open: to stream {} tokens takes {} bytes of the store, and three "
                          "quarters of its {} are {}; raise its cap (or the tenant's quota there) "
                          "to {}",
                          tokens, stored, quota == 0 || cap < quota ? cap : quota, holds,
                          StoreBytesFor(stored)));
}

// What the store has of a plan's hit from the front on, in memory or not: so many blocks of the
// chain, which has the keys of all of the last one's run, if they are known.
std::pair<RecordChain, uint64_t> Admission::ChainOf(const PlanState& plan) {
  const uint64_t hit = std::max<uint64_t>(plan.load.blocks, plan.path.size());
  const uint64_t run_blocks = cache_.shapes().run_blocks();
  const std::span<const TokenId> tokens =
      plan.prompt.empty() ? std::span(plan.resident_tokens) : std::span(plan.prompt);
  RecordChain chain(cache_, plan.location);
  chain.Add(tokens.first(
      std::min<uint64_t>(tokens.size(), RoundUp(hit, run_blocks) * cache_.block_tokens())));
  transfer::Transfers& transfers = *cache_.transfers();
  uint64_t there = 0;
  const auto has = [&](uint64_t blocks) {
    while (there < blocks) {
      if (chain.HasRun(there)) {
        there += run_blocks;
        continue;
      }
      if (transfers.PresenceOf(chain.key(there)) != tier::Presence::kPresent) return false;
      ++there;
    }
    return true;
  };
  if (!has(plan.path.size())) transfers.FlushAll(kWrittenWaitUs);
  has(hit);
  return {std::move(chain), std::min(there, hit)};
}

Result<std::unique_ptr<Sequence>> Admission::OpenStreamed(Plan opened,
                                                          const SequenceOptions& options) {
  std::optional<Plan> plan(std::move(opened));
  PlanState& state = PlanState::Of(*plan);
  PublishLocation location = state.location;
  location.may_evict = options.on_full != OnFull::kNoEvict;
  const uint64_t prompt_tokens = state.prompt_tokens;
  const bool asked = state.missing.front().reason != MissReason::kNotAsked;
  const uint64_t most = std::max(options.reserve_tokens, prompt_tokens);
  const uint64_t tokens = options.on_full == OnFull::kHalt ? prompt_tokens : most;
  const uint64_t blocks = DivUp(tokens, uint64_t{cache_.block_tokens()});
  QUIRE_ASSIGN(const StreamNeeds needs, StreamNeedsOf(cache_, options));
  QUIRE_TRY(CheckStreamFits(location, needs, most, options));
  auto [chain, there] = ChainOf(state);
  plan.reset();  // it holds nothing of what is in memory already

  auto classes =
      std::make_unique<const SlotClasses>(cache_.classes().WithResident(options.resident_tokens));
  PerClass<uint64_t> counts = classes->OwnSlots(/*shared=*/0, blocks, options.step_tokens);
  counts[needs.slot_class] += needs.ring_slots;
  auto taken =
      verbs_.holds.Allocate(location, counts, StreamedMetadata(cache_.classes(), needs, blocks));
  if (!taken) {
    taken.error().message = fmt::format("open: to stream {} tokens with {} resident: {}", tokens,
                                        options.resident_tokens, taken.error().message);
    return std::unexpected(std::move(taken).error());
  }
  OwnedSlots& own = taken->slots;
  PerClass<uint64_t> ring{};
  ring[needs.slot_class] = needs.ring_slots;
  OwnedSlots ring_slots = own.Take(ring);

  std::vector<Resident> resident;
  for (int attempt = 0;; ++attempt) {
    if (attempt == kOpenAttempts) there = 0;
    resident = ResidentOf(*classes, there, own);
    const auto failed = ReadAll(chain, resident);
    if (!failed) break;
    there = *failed;
  }
  chain.Cut(there * cache_.block_tokens());
  BlockList list(cache_.classes().count(), cache_.block_tokens(), /*keeps_tokens=*/false);
  list.Resize(chain.blocks());
  std::vector<SlotId> held;
  for (const Resident& each : resident) {
    list.SetSlot(each.group, each.block, each.slot);
    held.push_back(each.slot);
  }
  OwnedSlots in_list = own.Take(CountsOf(resident));
  Lease lease = verbs_.holds.MakeLease(std::move(held));
  in_list.Disown();
  const uint64_t found = chain.blocks() * cache_.block_tokens();
  const uint64_t front = classes->reach(needs.slot_class).first_needed(found);
  const uint64_t rewriting =
      StreamRewrites::IsNeeded(chain, front) ? StreamRewrites::Bytes(cache_, front) : 0;
  QUIRE_ASSIGN(auto stream,
               SequenceStream::Create(std::move(chain), needs, options, std::move(ring_slots),
                                      taken->metadata.Split(needs.metadata_bytes)));
  if (rewriting > 0) {
    auto paid = verbs_.holds.Allocate(location, {}, rewriting);
    if (paid) stream->Rewrite(front, std::move(paid->metadata));  // else it stays as it is
  }
  return std::make_unique<SequenceImpl>(verbs_,
                                        SequenceImpl::Start{.location = std::move(location),
                                                            .prompt_tokens = prompt_tokens,
                                                            .tokens = found,
                                                            .asked = asked,
                                                            .blocks = std::move(list),
                                                            .charge = std::move(taken->metadata),
                                                            .lease = std::move(lease),
                                                            .stream = std::move(stream),
                                                            .classes = std::move(classes)},
                                        std::move(own), blocks, cache_.options().tokens_max,
                                        options);
}

}  // namespace quire::cache
