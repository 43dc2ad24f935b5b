// How an engine runs its requests, and what it counts.
#ifndef QUIRE_SERVE_ENGINE_OPTIONS_H_
#define QUIRE_SERVE_ENGINE_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "serve/adapters.h"
#include "serve/mailbox.h"
#include "serve/recent_rate.h"
#include "serve/retainer.h"
#include "serve/session_store.h"

namespace quire::serve {

/// What a request takes when it starts.
enum class Admission : uint8_t {
  kWhole = 1,  // room for its prompt and all it may generate, so that it is never short of it
  // Room for what it has, and more as it grows. Where there is none, a request is preempted. More
  // run together, and some work is done twice.
  kGrow = 2,
};

/// Whether what a store has of a prompt is loaded or computed.
enum class LoadPolicy : uint8_t {
  kAlways = 1,
  // What is fastest, as far as the engine has seen lately: one of the two, or both. What it has not
  // seen is loaded.
  kAuto = 2,
  kNever = 3,
  // Both at once where no other request runs: the end is loaded and the front computed, until they
  // meet. Where that cannot be, it is loaded.
  kBoth = 4,
};
/// "always", "auto", "never", "both".
std::optional<LoadPolicy> LoadPolicyOf(std::string_view name);

struct EngineOptions {
  // Prompt tokens per step, over all requests: between these, by headroom, and the lower one while
  // any request generates. At least 1.
  uint32_t chunk_tokens_min = 512;
  uint32_t chunk_tokens_max = 2048;
  Admission admission = Admission::kWhole;  // of requests with OnFull::kReject that keep all
  uint32_t running_max = 256;               // requests that hold a sequence
  uint32_t requests_max = 1024;             // whose Response was not taken; more are refused
  uint32_t sessions_max = 1024;
  uint32_t events_max = 256;      // that wait for their reader, of one request; at least 8
  uint64_t stall_us = 1'000'000;  // a request whose reader takes nothing for so long is preempted
  uint64_t aging_us = 1'000'000;  // a request that waited so long counts as one priority higher
  // Others hold room on the same budget, such as training runs: what finds none is tried again
  // after so long, where nothing of the engine's could give any back. 0: it is refused then.
  uint64_t outside_retry_us = 0;
  LoadPolicy load = LoadPolicy::kAuto;
  // While a prompt is loaded, what is behind it is computed in the layers that have come. For that
  // a block is read in slices of so many bytes at least.
  uint64_t load_slice_bytes = uint64_t{64} << 10;
  // What memory cannot hold whole streams from the store: at least so many of its last tokens stay
  // in memory (SequenceOptions::resident_tokens). Its steps have chunk_tokens_min tokens, up to
  // chunk_tokens_max where that leaves half of the budget to others, and fewer where their lane
  // states have no room. 0: it is refused. Requests may ask for it where they would fit but find no
  // room (Request::spills).
  uint64_t resident_tokens = 0;
  AdapterLimits adapters{};
  RetainLimits retain{};  // of hints
  // Called on the thread that turns the engine after a request has something new to say, for
  // callers that have no thread to wait in Await. It must return at once and call no Tick.
  OnPosted on_event{};
  // Where sessions outlive the process; null: nowhere. Must outlive the engine, and have no other
  // one meanwhile.
  SessionStore* sessions = nullptr;
  uint64_t idle_text_bytes = uint64_t{64} << 20;  // of sessions there, that stays in memory
};

/// Counters since it was made, and what is there now.
struct EngineStats {
  uint64_t steps = 0;          // of the model
  uint64_t step_us = 0;        // time of these, by the engine's clock
  uint64_t prompt_tokens = 0;  // computed: read for the first time, or again after a preemption
  uint64_t decode_tokens = 0;
  uint64_t recomputed_tokens = 0;       // of both
  uint64_t step_prompt_tokens_max = 0;  // most of one step
  uint64_t looks = 0;                   // at waiting requests: whether they can start
  uint64_t loads = 0;                   // of requests, from the store
  uint64_t loads_from_end = 0;          // of these, beside which the front was computed
  uint64_t loads_by_layer = 0;          // the same, beside which what follows was computed
  uint64_t loaded_tokens = 0;           // that these brought
  uint64_t load_us = 0;                 // of those that did not fail, by the store's clock
  uint64_t load_bytes = 0;              // that these brought
  uint64_t read_us = 0;                 // of steps that read prompts and did nothing else
  uint64_t read_tokens = 0;             // in these
  RecentRate load_rate{};               // of load_us a byte, which LoadPolicy::kAuto goes by
  RecentRate read_rate{};               // of read_us a token
  uint64_t streamed = 0;                // starts of requests that stream
  uint64_t streams_renewed = 0;         // of these, that began again before a block that was lost
  uint64_t spilled = 0;                 // requests that began to stream for want of room
  uint64_t brought_back = 0;            // of these, that memory has whole again
  uint64_t prefix_waits = 0;            // requests that waited for what another computes
  uint64_t preemptions = 0;
  uint64_t sessions_released = 0;       // idle sessions that lost their sequence
  uint64_t session_write_failures = 0;  // files of sessions that could not be written
  uint32_t waiting = 0;
  uint32_t running = 0;
  uint32_t chunk_tokens = 0;  // of the next step
  uint32_t adapters = 0;
  uint64_t adapter_bytes = 0;  // of these, and of those that only requests have
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_ENGINE_OPTIONS_H_
