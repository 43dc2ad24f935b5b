#include "serve/reports.h"

#include <nlohmann/json.hpp>

namespace quire::serve {

namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson PerSecond(const RecentRate& rate, uint64_t now_us) {
  const auto us = rate.UsPerUnit(now_us);
  return us && *us > 0 ? OrderedJson(1e6 / *us) : OrderedJson();
}

template <typename Of>
OrderedJson NumberOrNull(Of id) {
  return id.is_none() ? OrderedJson() : OrderedJson(id.number());
}

}  // namespace

OrderedJson JsonOf(const EngineStats& stats, uint64_t now_us) {
  return {{"waiting", stats.waiting},
          {"running", stats.running},
          {"chunk_tokens", stats.chunk_tokens},
          {"steps", stats.steps},
          {"step_us", stats.step_us},
          {"prompt_tokens", stats.prompt_tokens},
          {"decode_tokens", stats.decode_tokens},
          {"recomputed_tokens", stats.recomputed_tokens},
          {"loads", stats.loads},
          {"loads_from_end", stats.loads_from_end},
          {"loads_by_layer", stats.loads_by_layer},
          {"loaded_tokens", stats.loaded_tokens},
          {"load_bytes_per_s", PerSecond(stats.load_rate, now_us)},
          {"read_tokens_per_s", PerSecond(stats.read_rate, now_us)},
          {"streamed", stats.streamed},
          {"streams_renewed", stats.streams_renewed},
          {"spilled", stats.spilled},
          {"brought_back", stats.brought_back},
          {"prefix_waits", stats.prefix_waits},
          {"preemptions", stats.preemptions},
          {"sessions_released", stats.sessions_released},
          {"session_write_failures", stats.session_write_failures},
          {"adapters", stats.adapters},
          {"adapter_bytes", stats.adapter_bytes}};
}

OrderedJson JsonOf(std::span<const SequenceEntry> sequences,
                   const std::function<std::string(TenantId)>& name_of) {
  constexpr int kPriorityMost = 50;
  OrderedJson json = OrderedJson::array();
  for (const SequenceEntry& entry : sequences) {
    OrderedJson name;
    if (!entry.session_name.empty()) name = entry.session_name;
    OrderedJson priority;
    if (!entry.request.is_none()) priority = kPriorityMost - int{entry.priority};
    json.push_back({{"request", NumberOrNull(entry.request)},
                    {"session", NumberOrNull(entry.session)},
                    {"session_name", std::move(name)},
                    {"tenant", name_of(entry.tenant)},
                    {"stage", StageName(entry.stage)},
                    {"priority", std::move(priority)},
                    {"age_ms", entry.age_us / 1000},
                    {"text_tokens", entry.text_tokens},
                    {"generated_tokens", entry.generated_tokens},
                    {"held_tokens", entry.sequence.tokens_used},
                    {"blocks_shared", entry.sequence.blocks_shared},
                    {"blocks_own", entry.sequence.blocks_own},
                    {"bytes", entry.sequence.bytes},
                    {"tokens_streamed", entry.sequence.tokens_streamed},
                    {"tokens_approximate", entry.sequence.tokens_approximate},
                    {"approximate_error", entry.sequence.approximate_error}});
  }
  return json;
}

OrderedJson JsonOf(const BudgetLease& lease) {
  return {
      {"object", "cache.lease"}, {"id", lease.id}, {"owner", lease.owner}, {"bytes", lease.bytes}};
}

OrderedJson JsonOf(std::span<const BudgetLease> leases) {
  OrderedJson list = OrderedJson::array();
  for (const BudgetLease& lease : leases) list.push_back(JsonOf(lease));
  return list;
}

}  // namespace quire::serve
