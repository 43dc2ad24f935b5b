// The C functions of stores below caches, and of loads from them.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "embed/boundary.h"
#include "embed/handles.h"
#include "quire/disk_store.h"
#include "quire/quire.h"

using quire::ErrorCode;
using quire::Fail;
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
    if (asked.scrub_bytes_per_s != 0) {
      made.scrub_bytes_per_s = asked.scrub_bytes_per_s == UINT64_MAX ? 0 : asked.scrub_bytes_per_s;
    }
    made.warm_bytes = asked.warm_bytes;
    made.remote = quire::embed::Text(asked.remote);
    made.fleet_key_file = quire::embed::Text(asked.fleet_key_file);
    made.keys = quire::embed::ToStoreKeys(asked);
    if (asked.remote_writes_all != 0) made.remote_writes = quire::RemoteWrites::kAll;
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

quire_code quire_load(quire_plan* plan, uint64_t timeout_us, quire_plan** loaded,
                      quire_error* error) {
  std::unique_ptr<quire_plan> used_up(plan);
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(plan, "plan"));
    QUIRE_TRY(NotNull(loaded, "loaded"));
    QUIRE_ASSIGN(auto ticket, plan->cache->Load(std::move(plan->plan), {.timeout_us = timeout_us}));
    plan->plan = ticket.Take();
    *loaded = used_up.release();
    return {};
  });
}

quire_code quire_load_begin(quire_plan* plan, const quire_load_options* options,
                            quire_ticket** ticket, quire_error* error) {
  const std::unique_ptr<quire_plan> used_up(plan);
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(plan, "plan"));
    QUIRE_TRY(NotNull(ticket, "ticket"));
    QUIRE_ASSIGN(const quire_load_options asked, quire::embed::ReadOptions(options, "options"));
    const bool from_end = asked.from_end != 0;
    if (from_end && asked.by_layer != 0) {
      return Fail(ErrorCode::kInvalidArgument, "load: both from_end and by_layer");
    }
    quire::LoadOptions made = {.timeout_us = asked.timeout_us};
    if (from_end) made.order = quire::LoadOrder::kFromEnd;
    if (asked.by_layer != 0) {
      made.order = quire::LoadOrder::kByLayer;
      made.slices = asked.by_layer;
    }
    if (asked.on_done != nullptr) {
      made.on_done = [on_done = asked.on_done, data = asked.done_data] { on_done(data); };
    }
    QUIRE_ASSIGN(auto begun, plan->cache->Load(std::move(plan->plan), made));
    *ticket =
        new quire_ticket{.cache = plan->cache, .from_end = from_end, .ticket = std::move(begun)};
    return {};
  });
}

quire_code quire_ticket_progress(const quire_ticket* ticket, quire_load_progress* progress,
                                 quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(ticket, "ticket"));
    QUIRE_TRY(quire::embed::CheckOutput(progress, "progress"));
    const bool done = ticket->ticket.IsDone();
    const quire::LoadProgress now = ticket->ticket.progress();
    quire::embed::WriteStruct(progress, {.size = 0,
                                         .blocks = now.blocks,
                                         .blocks_ready = now.blocks_ready,
                                         .bytes = now.bytes,
                                         .meet_tokens = now.meet_tokens,
                                         .elapsed_us = now.elapsed_us,
                                         .done = done ? 1u : 0u,
                                         .layers_ready = now.layers_ready});
    return {};
  });
}

quire_code quire_ticket_wait(const quire_ticket* ticket, uint64_t timeout_us, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(ticket, "ticket"));
    if (ticket->ticket.WaitFor(timeout_us)) return {};
    return Fail(ErrorCode::kDeadline,
                fmt::format("ticket: the load has not ended within {} us", timeout_us));
  });
}

namespace {

Result<void> CheckFromEnd(const quire_ticket* ticket) {
  QUIRE_TRY(NotNull(ticket, "ticket"));
  if (ticket->from_end) return {};
  return Fail(ErrorCode::kInvalidArgument, "ticket: its load is from the front (from_end is 0)");
}

}  // namespace

quire_code quire_ticket_front(const quire_ticket* ticket, uint64_t tokens, quire_plan** front,
                              quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(CheckFromEnd(ticket));
    QUIRE_TRY(NotNull(front, "front"));
    *front = new quire_plan{.cache = ticket->cache, .plan = ticket->ticket.Front(tokens)};
    return {};
  });
}

quire_code quire_ticket_meet(quire_ticket* ticket, uint64_t tokens, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(CheckFromEnd(ticket));
    ticket->ticket.Meet(tokens);
    return {};
  });
}

quire_code quire_ticket_arriving(const quire_ticket* ticket, quire_plan** arriving,
                                 quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(ticket, "ticket"));
    QUIRE_TRY(NotNull(arriving, "arriving"));
    QUIRE_ASSIGN(auto plan, ticket->ticket.Arriving());
    *arriving = new quire_plan{.cache = ticket->cache, .plan = std::move(plan)};
    return {};
  });
}

quire_code quire_ticket_cancel(quire_ticket* ticket, quire_error* error) {
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(ticket, "ticket"));
    ticket->ticket.Cancel();
    return {};
  });
}

quire_code quire_ticket_take(quire_ticket* ticket, quire_plan** loaded, quire_error* error) {
  const std::unique_ptr<quire_ticket> used_up(ticket);
  return Boundary(error, [&]() -> Result<void> {
    QUIRE_TRY(NotNull(ticket, "ticket"));
    QUIRE_TRY(NotNull(loaded, "loaded"));
    *loaded = new quire_plan{.cache = ticket->cache, .plan = ticket->ticket.Take()};
    return {};
  });
}

void quire_ticket_free(quire_ticket* ticket) { delete ticket; }
