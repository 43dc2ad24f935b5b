#include "serve/http/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::serve::http {
namespace {

TEST(Metrics, EngineCountersAreThoseOfItsStats) {
  MetricsSnapshot snapshot;
  snapshot.engine = EngineStats{.steps = 11,
                                .step_us = 2'500'000,
                                .prompt_tokens = 12,
                                .decode_tokens = 13,
                                .recomputed_tokens = 14,
                                .loads = 15,
                                .loaded_tokens = 16,
                                .prefix_waits = 17,
                                .preemptions = 18,
                                .sessions_released = 19,
                                .session_write_failures = 20,
                                .waiting = 21,
                                .running = 22,
                                .chunk_tokens = 23};
  const std::string text = Metrics().Text(snapshot, std::nullopt);
  for (const char* const line :
       {"quire_engine_requests{state=\"waiting\"} 21\n",
        "quire_engine_requests{state=\"running\"} 22\n", "quire_engine_chunk_tokens 23\n",
        "quire_engine_steps_total 11\n", "quire_engine_step_seconds_total 2.5\n",
        "quire_engine_tokens_total{kind=\"prompt\"} 12\n",
        "quire_engine_tokens_total{kind=\"decode\"} 13\n",
        "quire_engine_recomputed_tokens_total 14\n", "quire_engine_loads_total 15\n",
        "quire_engine_loaded_tokens_total 16\n", "quire_engine_prefix_waits_total 17\n",
        "quire_engine_preemptions_total 18\n", "quire_engine_sessions_released_total 19\n",
        "quire_engine_session_write_failures_total 20\n"}) {
    EXPECT_THAT(text, testing::HasSubstr(line));
  }
}

}  // namespace
}  // namespace quire::serve::http
