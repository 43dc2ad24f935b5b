// Requests run together until all have ended, on the caller's thread.
#ifndef QUIRE_SERVE_RUN_ALL_H_
#define QUIRE_SERVE_RUN_ALL_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "serve/engine.h"

namespace quire::serve {

/// What request `index` says, but its Response, between the steps; false cancels it.
using OnEvent = std::function<bool(size_t index, const Event& event)>;

/// Submits the requests, turns the engine until all have ended, and returns their answers in their
/// order. What Submit refuses has a Response that says so. The engine must have no other driver.
std::vector<Response> RunAll(Engine& engine, std::span<const Request> requests,
                             const OnEvent& on_event = {});

}  // namespace quire::serve

#endif  // QUIRE_SERVE_RUN_ALL_H_
