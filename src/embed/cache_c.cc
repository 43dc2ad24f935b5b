// The C functions of caches, tenants and plans.
#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/version.h"
#include "embed/boundary.h"
#include "embed/handles.h"
#include "quire/events.h"

using quire::ErrorCode;
using quire::Fail;
using quire::Result;
using quire::TenantId;
using quire::embed::Boundary;
using quire::embed::NotNull;

namespace quire::embed {
namespace {

constexpr uint32_t kEntriesMax = 65'536;  // of layers and groups, as in Geometry::Validate

static_assert(QUIRE_INVALID_ARGUMENT == int{static_cast<uint8_t>(ErrorCode::kInvalidArgument)});
static_assert(QUIRE_DEADLINE == int{static_cast<uint8_t>(ErrorCode::kDeadline)});
static_assert(QUIRE_TOO_LARGE == int{static_cast<uint8_t>(ErrorCode::kTooLarge)});
static_assert(QUIRE_BF16 == int{static_cast<uint8_t>(Codec::kBf16)});
static_assert(QUIRE_FP8_E4M3 == int{static_cast<uint8_t>(Codec::kFp8E4m3)});
static_assert(QUIRE_Q25 == int{static_cast<uint8_t>(kCodecs.back())});
static_assert(QUIRE_LATENT == int{static_cast<uint8_t>(StreamRole::kLatent)});
static_assert(QUIRE_WINDOW == int{static_cast<uint8_t>(LayerKind::kWindow)});
static_assert(QUIRE_HEAD_MAJOR == int{static_cast<uint8_t>(ArenaLayout::kHeadMajor)});
static_assert(QUIRE_FREE_LIST == int{static_cast<uint8_t>(Placement::kFreeList)});
static_assert(QUIRE_BUDDY == int{static_cast<uint8_t>(Placement::kBuddy)});
static_assert(QUIRE_COMPUTE_BF16 == int{static_cast<uint8_t>(ComputeType::kBf16)});
static_assert(QUIRE_FEWER == int{static_cast<uint8_t>(OnFull::kFewer)});
static_assert(QUIRE_EXACT == int{static_cast<uint8_t>(EvictionBatch::kExact)});
static_assert(QUIRE_ADAPTIVE == int{static_cast<uint8_t>(EvictionBatch::kAdaptive)});
static_assert(QUIRE_APPROXIMATE == int{static_cast<uint8_t>(MissReason::kApproximate)});
static_assert(QUIRE_PRECISION_LADDER == kPrecisionLadder);
static_assert(QUIRE_NO_TWIN == int{static_cast<uint8_t>(MissReason::kNoTwin)});
static_assert(QUIRE_LOAD_LATE == int{static_cast<uint8_t>(MissReason::kLoadLate)});

Result<LayerGroup> ToGroup(const quire_layer_group& group, uint32_t index) {
  const std::string name = fmt::format("options->groups[{}].", index);
  QUIRE_TRY(CheckArray(group.layers, group.layer_count, kEntriesMax, name + "layers"));
  QUIRE_TRY(CheckArray(group.streams, group.stream_count, 2, name + "streams"));
  LayerGroup made;
  QUIRE_ASSIGN(made.kind, ToEnum<LayerKind>(group.kind, name + "kind"));
  made.window_tokens = group.window_tokens;
  made.sink_tokens = group.sink_tokens;
  made.layers.assign(group.layers, group.layers + group.layer_count);
  for (const quire_stream& stream : std::span(group.streams, group.stream_count)) {
    QUIRE_ASSIGN(const auto role, ToEnum<StreamRole>(stream.role, name + "streams.role"));
    made.streams.push_back({.role = role, .heads = stream.heads, .dim = stream.dim});
  }
  return made;
}

Result<Geometry> ToGeometry(const quire_cache_options& options) {
  const bool uniform = options.layers != 0 || options.kv_heads != 0 || options.head_dim != 0;
  if (uniform == (options.group_count > 0)) {
    return Fail(ErrorCode::kInvalidArgument,
                "options: either layers, kv_heads and head_dim, or groups");
  }
  if (uniform) {
    QUIRE_TRY(CheckArray(&options, options.layers, kEntriesMax, "options->layers"));
    return Geometry::Uniform(options.layers, options.kv_heads, options.head_dim);
  }
  QUIRE_TRY(CheckArray(options.groups, options.group_count, kEntriesMax, "options->groups"));
  Geometry geometry;
  for (uint32_t i = 0; i < options.group_count; ++i) {
    QUIRE_ASSIGN(LayerGroup group, ToGroup(options.groups[i], i));
    geometry.groups.push_back(std::move(group));
  }
  return geometry;
}

Result<NumericProfile> ToProfile(const quire_cache_options& options) {
  QUIRE_ASSIGN(const Codec codec, ToEnum(options.codec, "options->codec", Codec::kF16));
  QUIRE_ASSIGN(const Codec value, ToEnum(options.value_codec, "options->value_codec", codec));
  QUIRE_ASSIGN(const ComputeType compute,
               ToEnum(options.compute, "options->compute", ComputeType::kF32));
  if (compute > ComputeType::kBf16) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("options->compute is {}", options.compute));
  }
  NumericProfile profile = NumericProfile::Uniform(codec);
  for (CodecRule& rule : profile.codecs) {
    if (rule.role == StreamRole::kValue) rule.codec = value;
  }
  QUIRE_ASSIGN(profile.open_dtype, ToEnum(options.open_codec, "options->open_codec",
                                          IsIdentity(codec) ? codec : Codec::kF16));
  if (options.residual_tokens > UINT32_MAX) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("options->residual_tokens is {}", options.residual_tokens));
  }
  profile.residual_tokens = static_cast<uint32_t>(options.residual_tokens);
  if (options.store_codec != 0) {
    QUIRE_ASSIGN(profile.store_codec, ToEnum(options.store_codec, "options->store_codec", codec));
  }
  if (options.block_tokens != 0) profile.block_tokens = options.block_tokens;
  profile.compute = compute;
  if (options.arithmetic != nullptr) profile.arithmetic = options.arithmetic;
  return profile;
}

}  // namespace

Result<CacheOptions> ToOptions(const quire_cache_options& options) {
  if (std::ranges::any_of(options.reserved, [](const void* set) { return set != nullptr; })) {
    return Fail(ErrorCode::kUnsupported, "options->reserved is set: a spill is not possible");
  }
  CacheOptions made;
  QUIRE_ASSIGN(made.geometry, ToGeometry(options));
  QUIRE_ASSIGN(made.profile, ToProfile(options));
  QUIRE_ASSIGN(made.layout, ToEnum(options.layout, "options->layout", ArenaLayout::kBlockMajor));
  QUIRE_ASSIGN(made.placement, ToPlacement(options.placement));
  made.hot_bytes = options.hot_bytes;
  made.hot_bytes_max = options.hot_bytes_max;
  if (options.tokens_max != 0) made.tokens_max = options.tokens_max;
  made.huge_pages = options.huge_pages != 0;
  if (options.policy != nullptr) made.policy = options.policy;
  QUIRE_ASSIGN(made.eviction_batch,
               ToEnum(options.eviction_batch, "options->eviction_batch", EvictionBatch::kExact));
  return made;
}

Result<Identity> ToIdentity(const quire_identity* caller) {
  QUIRE_ASSIGN(const quire_identity identity, ReadStruct(caller, "request->identity"));
  Identity made{.adapter = Text(identity.adapter),
                .adapter_version = identity.adapter_version,
                .position_encoding = Text(identity.position_encoding),
                .domain = {.name = Text(identity.domain), .erase_epoch = identity.domain_epoch}};
  std::memcpy(made.weights.data(), identity.weights, made.weights.size());
  std::memcpy(made.domain.secret.data(), identity.domain_secret, made.domain.secret.size());
  return made;
}

namespace {

/// Calls `use` with the caller's request as the cache wants it.
template <typename Use>
Result<void> WithRequest(const quire_cache& cache, uint32_t tenant,
                         const quire_acquire_request* request, const Use& use) {
  QUIRE_ASSIGN(const quire_acquire_request asked, ReadStruct(request, "request"));
  QUIRE_ASSIGN(const Identity identity, ToIdentity(asked.identity));
  QUIRE_TRY(CheckArray(asked.tokens, asked.token_count, cache.cache->options().tokens_max,
                       "request->tokens"));
  return use({.tenant = TenantId(tenant),
              .identity = &identity,
              .tokens = {asked.tokens, asked.token_count},
              .reuse = asked.no_reuse == 0,
              .approximate_error_max = asked.approximate_error_max});
}

quire_cache_codecs CodecsOf(const Cache& cache) {
  const NumericProfile& profile = cache.options().profile;
  const std::vector<Stream>& streams = cache.options().geometry.groups.front().streams;
  const auto stored = [&](const Stream& stream) {
    return static_cast<quire_codec>(profile.CodecFor(stream.role).value());
  };
  return {.size = 0,
          .key = stored(streams.front()),
          .value = stored(streams.back()),
          .open = static_cast<quire_codec>(profile.open_dtype),
          .residual_tokens = profile.residual_tokens,
          .fallbacks = cache.stats().codec_fallbacks};
}

quire_slot_stats ToC(const SlotClassStats& stats) {
  return {.slot_bytes = stats.slot_bytes,
          .slots_max = stats.slots_max,
          .slots_used = stats.slots_used,
          .slots_used_peak = stats.slots_used_peak};
}

quire_cache_stats ToC(const CacheStats& stats) {
  return {.size = 0,
          .hot_bytes_limit = stats.hot_bytes_limit,
          .hot_bytes_used = stats.hot_bytes_used,
          .hot_bytes_peak = stats.hot_bytes_peak,
          .sealed = ToC(stats.sealed),
          .sealed_second = ToC(stats.sealed_second),
          .open = ToC(stats.open),
          .published_blocks = stats.published_blocks,
          .evictable_blocks = stats.evictable_blocks,
          .passed_blocks = stats.passed_blocks,
          .hollow_blocks = stats.hollow_blocks,
          .sequences = stats.sequences,
          .lookups = stats.lookups,
          .lookup_tokens = stats.lookup_tokens,
          .hit_tokens = stats.hit_tokens,
          .published_total = stats.published_total,
          .deduplicated_total = stats.deduplicated_total,
          .evicted_total = stats.evicted_total,
          .evicted_passed_total = stats.evicted_passed_total,
          .refused_total = stats.refused_total,
          .reserved = {}};
}

}  // namespace
}  // namespace quire::embed

const char* quire_version(void) { return quire::kVersion.data(); }

const char* quire_code_name(quire_code code) {
  switch (code) {
    case QUIRE_OK: return "ok";
    case QUIRE_NO_MEMORY: return "no_memory";
    case QUIRE_INTERNAL: return "internal";
    default: break;
  }
  // The names are literals, so they end with NUL.
  const bool known = code > 0 && code <= UINT8_MAX;
  return quire::ErrorCodeName(static_cast<ErrorCode>(known ? code : 0)).data();
}

const char* quire_reason_name(quire_reason reason) {
  const bool known = reason > 0 && reason <= UINT8_MAX;
  return quire::MissReasonName(static_cast<quire::MissReason>(known ? reason : 0)).data();
}

quire_code quire_cache_create(const quire_cache_options* options, quire_cache** cache,
                              quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(cache, "cache"));
    QUIRE_ASSIGN(const quire_cache_options asked, quire::embed::ReadStruct(options, "options"));
    QUIRE_ASSIGN(quire::CacheOptions made, quire::embed::ToOptions(asked));
    std::unique_ptr<quire::AttentionBackend> kernels;  // of quire_attend
    if (asked.codec_fallback != 0) {
      QUIRE_ASSIGN(kernels, quire::MakeCpuAttention());
      made.fallback_kernels = kernels.get();
    }
    std::shared_ptr<quire::DiskStore> store;
    if (asked.disk_store != nullptr) store = asked.disk_store->store;
    made.store = store.get();
    made.announce = asked.events != nullptr;
    QUIRE_ASSIGN(auto created, quire::Cache::Create(std::move(made)));
    // The last handle of the cache ends it, and then the store.
    std::shared_ptr<quire::Cache> shared(created.release(),
                                         [store](quire::Cache* last) { delete last; });
    if (asked.events != nullptr) {
      const auto text = [](const char* said) { return std::string(said == nullptr ? "" : said); };
      QUIRE_ASSIGN(auto events,
                   quire::EventPublisher::Start(*shared->changes(),
                                                {.endpoint = asked.events,
                                                 .replay_endpoint = text(asked.events_replay),
                                                 .topic = text(asked.events_topic)}));
      const std::shared_ptr<quire::EventPublisher> first_ends(
          events.release(), [shared](quire::EventPublisher* last) { delete last; });
      shared = {first_ends, shared.get()};
    }
    *cache = new quire_cache{.cache = std::move(shared)};
    return {};
  });
}

void quire_cache_free(quire_cache* cache) { delete cache; }

quire_code quire_cache_get_stats(const quire_cache* cache, quire_cache_stats* stats,
                                 quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(cache, "cache"));
    QUIRE_TRY(quire::embed::CheckOutput(stats, "stats"));
    quire::embed::WriteStruct(stats, quire::embed::ToC(cache->cache->stats()));
    return {};
  });
}

quire_code quire_cache_get_codecs(const quire_cache* cache, quire_cache_codecs* codecs,
                                  quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(cache, "cache"));
    QUIRE_TRY(quire::embed::CheckOutput(codecs, "codecs"));
    quire::embed::WriteStruct(codecs, quire::embed::CodecsOf(*cache->cache));
    return {};
  });
}

quire_code quire_cache_stats_json(const quire_cache* cache, char* text, size_t text_bytes,
                                  size_t* length, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(cache, "cache"));
    return quire::embed::WriteText(quire::ToJson(cache->cache->stats()), text, text_bytes, length);
  });
}

quire_code quire_cache_set_limits(quire_cache* cache, uint32_t tenant, uint64_t quota_bytes,
                                  uint64_t floor_bytes, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(cache, "cache"));
    return cache->cache->SetLimits(TenantId(tenant), quota_bytes, floor_bytes);
  });
}

quire_code quire_cache_entries_json(quire_cache* cache, const uint32_t* tenant,
                                    uint64_t entries_max, char* text, size_t text_bytes,
                                    size_t* length, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(cache, "cache"));
    QUIRE_ASSIGN(
        const auto entries,
        cache->cache->Entries({.tenant = tenant == nullptr ? TenantId::None() : TenantId(*tenant),
                               .entries_max = entries_max}));
    return quire::embed::WriteText(quire::ToJson(entries), text, text_bytes, length);
  });
}

quire_code quire_cache_block_map(const quire_cache* cache, char* text, size_t text_bytes,
                                 size_t* length, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(cache, "cache"));
    return quire::embed::WriteText(cache->cache->BlockMap(), text, text_bytes, length);
  });
}

quire_code quire_cache_free_json(const quire_cache* cache, char* text, size_t text_bytes,
                                 size_t* length, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(cache, "cache"));
    return quire::embed::WriteText(quire::ToJson(cache->cache->FreeSlots()), text, text_bytes,
                                   length);
  });
}

quire_code quire_cache_verify(quire_cache* cache, uint64_t* blocks, uint64_t* damaged,
                              quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(cache, "cache"));
    QUIRE_TRY(NotNull(blocks, "blocks"));
    QUIRE_TRY(NotNull(damaged, "damaged"));
    const quire::VerifyReport report = cache->cache->Verify();
    *blocks = report.blocks;
    *damaged = report.damaged;
    return {};
  });
}

quire_code quire_cache_evict(quire_cache* cache, uint64_t blocks, uint64_t* evicted,
                             quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(cache, "cache"));
    QUIRE_TRY(NotNull(evicted, "evicted"));
    *evicted = cache->cache->Evict(blocks);
    return {};
  });
}

quire_code quire_cache_trim(quire_cache* cache, uint64_t* bytes, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(cache, "cache"));
    QUIRE_TRY(NotNull(bytes, "bytes"));
    *bytes = cache->cache->Trim();
    return {};
  });
}

quire_code quire_cache_resize(quire_cache* cache, uint64_t hot_bytes, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(cache, "cache"));
    return cache->cache->Resize(hot_bytes);
  });
}

quire_code quire_acquire(quire_cache* cache, const quire_acquire_request* request,
                         quire_plan** plan, quire_error* error) {
  return quire_acquire_as(cache, quire::kDefaultTenant.number(), request, plan, error);
}

quire_code quire_acquire_as(quire_cache* cache, uint32_t tenant,
                            const quire_acquire_request* request, quire_plan** plan,
                            quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(cache, "cache"));
    QUIRE_TRY(NotNull(plan, "plan"));
    return quire::embed::WithRequest(
        *cache, tenant, request, [&](const quire::AcquireRequest& asked) -> Result<void> {
          QUIRE_ASSIGN(auto made, cache->cache->Acquire(asked));
          *plan = new quire_plan{.cache = cache->cache, .plan = std::move(made)};
          return {};
        });
  });
}

quire_code quire_prefetch(quire_cache* cache, uint32_t tenant, const quire_acquire_request* request,
                          uint64_t* tokens, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(cache, "cache"));
    QUIRE_TRY(NotNull(tokens, "tokens"));
    return quire::embed::WithRequest(*cache, tenant, request,
                                     [&](const quire::AcquireRequest& asked) -> Result<void> {
                                       QUIRE_ASSIGN(*tokens, cache->cache->Prefetch(asked));
                                       return {};
                                     });
  });
}

quire_code quire_demote(quire_cache* cache, uint32_t tenant, const quire_acquire_request* request,
                        uint64_t* blocks, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(cache, "cache"));
    QUIRE_TRY(NotNull(blocks, "blocks"));
    return quire::embed::WithRequest(*cache, tenant, request,
                                     [&](const quire::AcquireRequest& asked) -> Result<void> {
                                       QUIRE_ASSIGN(*blocks, cache->cache->Demote(asked));
                                       return {};
                                     });
  });
}

quire_code quire_pin(quire_cache* cache, uint32_t tenant, const quire_acquire_request* request,
                     uint64_t ttl_us, uint64_t* blocks, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(cache, "cache"));
    QUIRE_TRY(NotNull(blocks, "blocks"));
    return quire::embed::WithRequest(*cache, tenant, request,
                                     [&](const quire::AcquireRequest& asked) -> Result<void> {
                                       QUIRE_ASSIGN(*blocks, cache->cache->Pin(asked, ttl_us));
                                       return {};
                                     });
  });
}

quire_code quire_unpin(quire_cache* cache, uint32_t tenant, const quire_acquire_request* request,
                       quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(cache, "cache"));
    return quire::embed::WithRequest(
        *cache, tenant, request,
        [&](const quire::AcquireRequest& asked) { return cache->cache->Unpin(asked); });
  });
}

uint64_t quire_plan_resident_tokens(const quire_plan* plan) {
  return plan == nullptr ? 0 : plan->plan.resident_tokens();
}

uint64_t quire_plan_missing_tokens(const quire_plan* plan) {
  return plan == nullptr ? 0 : plan->plan.missing_tokens();
}

quire_reason quire_plan_reason(const quire_plan* plan) {
  return plan == nullptr ? 0 : static_cast<quire_reason>(plan->plan.reason());
}

int32_t quire_plan_differs_at(const quire_plan* plan, uint64_t* token) {
  if (plan == nullptr || token == nullptr) return 0;
  const auto differs_at = plan->plan.differs_at();
  if (!differs_at) return 0;
  *token = *differs_at;
  return 1;
}

uint64_t quire_plan_loadable_tokens(const quire_plan* plan) {
  return plan == nullptr ? 0 : plan->plan.loadable_tokens();
}

uint64_t quire_plan_approximate_tokens(const quire_plan* plan) {
  return plan == nullptr ? 0 : plan->plan.approximate_tokens();
}

float quire_plan_approximate_error(const quire_plan* plan) {
  return plan == nullptr ? 0.0f : plan->plan.approximate_error();
}

void quire_plan_free(quire_plan* plan) { delete plan; }

quire_code quire_open(quire_plan* plan, const quire_sequence_options* options,
                      quire_sequence** sequence, quire_error* error) {
  const std::unique_ptr<quire_plan> used_up(plan);
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(plan, "plan"));
    QUIRE_TRY(NotNull(sequence, "sequence"));
    QUIRE_ASSIGN(const quire_sequence_options asked, quire::embed::ReadOptions(options, "options"));
    QUIRE_ASSIGN(const auto on_full,
                 quire::embed::ToEnum(asked.on_full, "options->on_full", quire::OnFull::kReject));
    if (on_full > quire::OnFull::kFewer) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("options->on_full is {}", asked.on_full));
    }
    quire::SequenceOptions made{.reserve_tokens = asked.reserve_tokens,
                                .on_full = on_full,
                                .publish = asked.private_blocks == 0,
                                .contiguous = asked.contiguous != 0,
                                .resident_tokens = asked.resident_tokens,
                                .query_heads = asked.query_heads};
    if (asked.step_tokens != 0) made.step_tokens = asked.step_tokens;
    QUIRE_ASSIGN(auto opened, plan->cache->Open(std::move(plan->plan), made));
    *sequence = new quire_sequence(plan->cache, std::move(opened));
    return {};
  });
}

quire_code quire_cache_add_tenant(quire_cache* cache, const quire_tenant_options* options,
                                  uint32_t* tenant, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(cache, "cache"));
    QUIRE_TRY(NotNull(tenant, "tenant"));
    QUIRE_ASSIGN(const quire_tenant_options asked, quire::embed::ReadStruct(options, "options"));
    QUIRE_ASSIGN(const TenantId made,
                 cache->cache->AddTenant({.name = quire::embed::Text(asked.name),
                                          .quota_bytes = asked.quota_bytes,
                                          .floor_bytes = asked.floor_bytes,
                                          .domain = quire::embed::Text(asked.domain),
                                          .shared = asked.shared != 0,
                                          .ttl_us = asked.ttl_us,
                                          .store_quota_bytes = asked.store_quota_bytes,
                                          .store_floor_bytes = asked.store_floor_bytes}));
    *tenant = made.number();
    return {};
  });
}

quire_code quire_cache_erase_tenant(quire_cache* cache, uint32_t tenant, uint64_t* pending_slots,
                                    quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(cache, "cache"));
    QUIRE_TRY(NotNull(pending_slots, "pending_slots"));
    QUIRE_ASSIGN(const quire::EraseReport report, cache->cache->Erase(TenantId(tenant)));
    *pending_slots = report.slots_pending;
    return {};
  });
}

quire_code quire_cache_remove_tenant(quire_cache* cache, uint32_t tenant, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(cache, "cache"));
    return cache->cache->RemoveTenant(TenantId(tenant));
  });
}

quire_code quire_cache_tenant_json(const quire_cache* cache, uint32_t tenant, char* text,
                                   size_t text_bytes, size_t* length, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(cache, "cache"));
    QUIRE_ASSIGN(const quire::TenantStats stats, cache->cache->tenant_stats(TenantId(tenant)));
    return quire::embed::WriteText(quire::ToJson(stats), text, text_bytes, length);
  });
}
