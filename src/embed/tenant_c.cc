// The C functions of tenants.
#include <string>

#include "embed/boundary.h"
#include "embed/handles.h"

using quire::Result;
using quire::TenantId;
using quire::embed::Boundary;
using quire::embed::NotNull;

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
