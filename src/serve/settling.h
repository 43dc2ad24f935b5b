// For callers that wait until a session's change outlives the process.
#ifndef QUIRE_SERVE_SETTLING_H_
#define QUIRE_SERVE_SETTLING_H_

#include <future>
#include <utility>

#include "serve/session_store.h"

namespace quire::serve {

struct Settling {
  OnSettled settled;                  // for the engine
  std::future<Result<void>> outcome;  // get() waits; another thread must turn the engine meanwhile
};

inline Settling MakeSettling() {
  std::promise<Result<void>> promise;
  auto outcome = promise.get_future();
  return {.settled = [promise = std::move(promise)](
                         Result<void> settled) mutable { promise.set_value(std::move(settled)); },
          .outcome = std::move(outcome)};
}

}  // namespace quire::serve

#endif  // QUIRE_SERVE_SETTLING_H_
