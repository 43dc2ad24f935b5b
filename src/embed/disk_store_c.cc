// The C functions of stores below caches.
#include <algorithm>
#include <string>
#include <utility>

#include "embed/boundary.h"
#include "embed/handles.h"
#include "quire/disk_store.h"
#include "quire/quire.h"

using quire::Result;
using quire::embed::Boundary;
using quire::embed::NotNull;

quire_code quire_disk_store_open(const quire_disk_store_options* options, quire_disk_store** store,
                                 quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(store, "store"));
    QUIRE_ASSIGN(const quire_disk_store_options asked,
                 quire::embed::ReadStruct(options, "options"));
    quire::DiskStoreOptions made = {.directory = quire::embed::Text(asked.directory)};
    if (asked.bytes_cap != 0) made.bytes_cap = asked.bytes_cap;
    if (asked.commit_interval_us != 0) made.commit_interval_us = asked.commit_interval_us;
    if (asked.staging_bytes != 0) made.staging_bytes = asked.staging_bytes;
    QUIRE_ASSIGN(auto opened, quire::DiskStore::Open(made));
    *store = new quire_disk_store{.store = std::move(opened)};
    return {};
  });
}

void quire_disk_store_free(quire_disk_store* store) { delete store; }

quire_code quire_disk_store_flush(quire_disk_store* store, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(store, "store"));
    return store->store->Flush();
  });
}

quire_code quire_disk_store_secret(const quire_disk_store* store, uint8_t secret[32],
                                   quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(store, "store"));
    QUIRE_TRY(NotNull(secret, "secret"));
    QUIRE_ASSIGN(const quire::Digest made, store->store->Secret());
    std::ranges::copy(made, secret);
    return {};
  });
}

quire_code quire_disk_store_stats_json(const quire_disk_store* store, char* text, size_t text_bytes,
                                       size_t* length, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(store, "store"));
    return quire::embed::WriteText(quire::ToJson(store->store->stats()), text, text_bytes, length);
  });
}
