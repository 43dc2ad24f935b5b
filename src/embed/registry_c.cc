// The C functions of registries and owners.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "embed/boundary.h"
#include "embed/handles.h"
#include "env/clock.h"
#include "quire/registry.h"

using quire::ErrorCode;
using quire::Fail;
using quire::Result;
using quire::embed::Boundary;
using quire::embed::CheckArray;
using quire::embed::NotNull;
using quire::embed::ReadStruct;

struct quire_registry {
  std::shared_ptr<quire::Registry> registry;
  quire::NumericProfile profile;  // of owners that choose no codec
  uint64_t tokens_max;
};

namespace quire::embed {
namespace {

constexpr uint64_t kCheckpointsMax = 65'536;

Owner OwnerOf(const quire_owner_options& asked) {
  if (asked.adapter == nullptr) return InferenceOwner{asked.id};
  return TrainingOwner{.adapter = asked.adapter, .run = asked.id, .version = asked.version};
}

Result<OwnerOptions> OptionsOf(const quire_registry& registry, const quire_owner_options& asked) {
  QUIRE_TRY(CheckArray(asked.checkpoint_layers, asked.checkpoint_count, kCheckpointsMax,
                       "options->checkpoint_layers"));
  OwnerOptions options{.tokens_max = asked.tokens_max};
  if (asked.identity != nullptr) {
    QUIRE_ASSIGN(options.identity, ToIdentity(asked.identity));
  }
  options.checkpoint_layers.assign(asked.checkpoint_layers,
                                   asked.checkpoint_layers + asked.checkpoint_count);
  if (asked.codec == 0) return options;
  QUIRE_ASSIGN(const Codec codec, ToEnum<Codec>(asked.codec, "options->codec"));
  options.profile = registry.profile;
  for (CodecRule& rule : options.profile->codecs) rule.codec = codec;
  if (IsIdentity(codec)) options.profile->open_dtype = codec;
  return options;
}

}  // namespace
}  // namespace quire::embed

quire_code quire_registry_create(const quire_cache_options* options, quire_registry** registry,
                                 quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(registry, "registry"));
    QUIRE_ASSIGN(const quire_cache_options asked, ReadStruct(options, "options"));
    QUIRE_ASSIGN(quire::CacheOptions made, quire::embed::ToOptions(asked));
    if (asked.disk_store != nullptr || asked.codec_fallback != 0) {
      return Fail(ErrorCode::kUnsupported,
                  "options: a registry has no store and falls back to none");
    }
    const quire::NumericProfile profile = made.profile;
    const uint64_t tokens_max = made.tokens_max;
    QUIRE_ASSIGN(auto created, quire::Registry::Create(std::move(made)));
    *registry = new quire_registry{
        .registry = std::move(created), .profile = profile, .tokens_max = tokens_max};
    return {};
  });
}

void quire_registry_free(quire_registry* registry) { delete registry; }

quire_code quire_registry_owner(quire_registry* registry, const quire_owner_options* options,
                                const int32_t* prompt, size_t prompt_tokens, quire_owner** owner,
                                quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(registry, "registry"));
    QUIRE_TRY(NotNull(owner, "owner"));
    QUIRE_ASSIGN(const quire_owner_options asked, ReadStruct(options, "options"));
    QUIRE_ASSIGN(const auto chosen, quire::embed::OptionsOf(*registry, asked));
    QUIRE_TRY(CheckArray(prompt, prompt_tokens, registry->tokens_max, "prompt"));
    QUIRE_ASSIGN(auto made, registry->registry->GetOrCreate(quire::embed::OwnerOf(asked), chosen,
                                                            {prompt, prompt_tokens}));
    *owner = new quire_owner{.registry = registry->registry, .owner = std::move(made)};
    return {};
  });
}

void quire_owner_free(quire_owner* owner) { delete owner; }

quire_code quire_registry_release(quire_registry* registry, const quire_owner_options* options,
                                  int32_t* released, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(registry, "registry"));
    QUIRE_TRY(NotNull(released, "released"));
    QUIRE_ASSIGN(const quire_owner_options asked, ReadStruct(options, "options"));
    *released = registry->registry->Release(quire::embed::OwnerOf(asked)) ? 1 : 0;
    return {};
  });
}

quire_code quire_registry_evict_to(quire_registry* registry, uint64_t bytes, uint64_t* bytes_used,
                                   quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(registry, "registry"));
    QUIRE_TRY(NotNull(bytes_used, "bytes_used"));
    *bytes_used = registry->registry->EvictToBudget(bytes).bytes_used;
    return {};
  });
}

quire_code quire_registry_resize(quire_registry* registry, uint64_t hot_bytes, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(registry, "registry"));
    return registry->registry->Resize(hot_bytes);
  });
}

quire_code quire_registry_stats_json(const quire_registry* registry, char* text, size_t text_bytes,
                                     size_t* length, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(registry, "registry"));
    return quire::embed::WriteText(ToJson(*registry->registry), text, text_bytes, length);
  });
}

uint64_t quire_owner_length(const quire_owner* owner) {
  return owner == nullptr ? 0 : owner->owner->length();
}

quire_code quire_owner_append(quire_owner* owner, uint32_t layer, const quire_rows* key,
                              const quire_rows* value, uint32_t tokens, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(owner, "owner"));
    QUIRE_TRY(NotNull(key, "key"));
    quire::LayerRows rows{.tokens = tokens};
    QUIRE_ASSIGN(rows.key, quire::embed::ToRows(*key, "key->dtype"));
    if (value != nullptr) {
      QUIRE_ASSIGN(rows.value, quire::embed::ToRows(*value, "value->dtype"));
    }
    return owner->owner->Append(layer, rows);
  });
}

quire_code quire_owner_commit(quire_owner* owner, const int32_t* tokens, size_t token_count,
                              quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(owner, "owner"));
    QUIRE_TRY(CheckArray(tokens, token_count, SIZE_MAX, "tokens"));
    return owner->owner->Commit({tokens, token_count});
  });
}

quire_code quire_owner_gather(const quire_owner* owner, uint32_t layer, quire_role role,
                              uint64_t begin, uint64_t end, float* out, size_t out_values,
                              quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(owner, "owner"));
    QUIRE_TRY(CheckArray(out, out_values, SIZE_MAX, "out"));
    QUIRE_ASSIGN(const auto stream, quire::embed::ToEnum<quire::StreamRole>(role, "role"));
    return owner->owner->Gather(layer, stream, begin, end, {out, out_values});
  });
}

quire_code quire_owner_view_open(const quire_owner* owner, uint32_t layer, quire_role role,
                                 quire_view** view, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(owner, "owner"));
    QUIRE_TRY(NotNull(view, "view"));
    QUIRE_ASSIGN(const auto stream, quire::embed::ToEnum<quire::StreamRole>(role, "role"));
    QUIRE_ASSIGN(auto blocks, owner->owner->View(layer, stream));
    // The view needs a cache that lives: the registry has it.
    std::shared_ptr<quire::Cache> cache(owner->registry, &owner->registry->requests());
    *view = new quire_view{.pinned = std::make_shared<const quire::embed::PinnedView>(
                               std::move(cache), std::move(blocks))};
    return {};
  });
}

quire_code quire_owner_clear(quire_owner* owner, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(owner, "owner"));
    return owner->owner->Clear();
  });
}
