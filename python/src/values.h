// Python's values as the engine's: tokens, times, names, JSON.
#ifndef QUIRE_PYTHON_VALUES_H_
#define QUIRE_PYTHON_VALUES_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <quire/identity.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "handle.h"

namespace quire::python {

using AnyArray = nb::ndarray<nb::ro, nb::device::cpu>;

/// Token ids of a list, or of an array of int32 or int64 with one axis (NumPy, torch, ...).
/// Errors: kInvalidArgument another type, or an id outside int32
std::vector<TokenId> ToTokens(nb::handle tokens);

/// Seconds as the engine's microseconds; none: 0, which is no limit.
/// Errors: kInvalidArgument not above zero, or too long
uint64_t ToMicros(std::optional<double> seconds);

/// Waits in short steps, so that Ctrl-C is heard and other threads get their turn: until
/// `wait(step_us)` is true, or so many seconds have passed (none: no limit). Whether it was.
template <typename Wait>
bool AwaitInSteps(std::optional<double> timeout_s, const Wait& wait) {
  constexpr uint64_t kStepUs = 20'000;
  uint64_t left_us = timeout_s ? ToMicros(timeout_s) : UINT64_MAX;
  while (true) {
    const uint64_t step_us = std::min(left_us, kStepUs);
    if (wait(step_us)) return true;
    if (left_us != UINT64_MAX) left_us -= step_us;
    if (left_us == 0) return false;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

/// A JSON text as a Python dict.
nb::object FromJson(const std::string& text);

/// A text of Python's and what it stands for.
template <typename Enum>
struct Name {
  const char* name;
  Enum value;
};

/// Errors: kInvalidArgument `name` is none of them; `what` begins the message
template <typename Enum, size_t kCount>
Enum Named(const Name<Enum> (&names)[kCount], std::string_view what, std::string_view name) {
  std::string known;
  for (const Name<Enum>& entry : names) {
    if (entry.name == name) return entry.value;
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  Raise(ErrorCode::kInvalidArgument,
        std::string(what) + " \"" + std::string(name) + "\" is none of " + known);
}

}  // namespace quire::python

#endif  // QUIRE_PYTHON_VALUES_H_
