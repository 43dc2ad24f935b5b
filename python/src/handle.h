// Errors as exceptions, and handles that outlive each other in any order.
#ifndef QUIRE_PYTHON_HANDLE_H_
#define QUIRE_PYTHON_HANDLE_H_

#include <nanobind/nanobind.h>
#include <quire/error.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "process.h"

namespace quire::python {

namespace nb = nanobind;

/// A failure on its way to Python, where it becomes the class of its code (quire/_errors.py).
class Failure : public std::exception {
 public:
  explicit Failure(Error error) : error_(std::move(error)) {}
  const Error& error() const { return error_; }
  const char* what() const noexcept override { return error_.message.c_str(); }

 private:
  Error error_;
};

[[noreturn]] inline void Raise(ErrorCode code, std::string message) {
  throw Failure({.code = code, .message = std::move(message)});
}

/// Once for each module, when it is loaded.
inline void RegisterFailures() {
  static PyObject* classes = nb::object(nb::module_::import_("quire._errors").attr("BY_CODE"))
                                 .release()
                                 .ptr();  // for the life of the process, as the module itself
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Failure& failure) {
      const std::string_view name = ErrorCodeName(failure.error().code);
      PyErr_SetString(nb::object(nb::handle(classes)[nb::str(name.data(), name.size())]).ptr(),
                      failure.what());
    }
  });
}

/// What a Python object holds: shared, because a method of another thread may still be at work on
/// it when it is closed.
template <typename State>
class Handle {
 public:
  /// `closed`: what a closed one is said to be.
  Handle(std::shared_ptr<State> state, const char* name, const char* closed = "is closed")
      : state_(std::move(state)), name_(name), closed_(closed) {}

  /// Errors:  kInvalidArgument it is closed, or of the process that this was forked from
  /// Threads: with the GIL held
  std::shared_ptr<State> get() const {
    if (!state_) Raise(ErrorCode::kInvalidArgument, std::string(name_) + " " + closed_);
    if (!birthplace_.is_here()) {
      Raise(ErrorCode::kInvalidArgument,
            std::string(name_) +
                " is of another process, which this was forked from: make one here, or start "
                "processes by \"spawn\" or \"forkserver\"");
    }
    return state_;
  }
  /// "<quire.NAME: ...>", where `describe` makes the rest of an open one's state.
  template <typename Describe>
  std::string Repr(const char* name, const Describe& describe) const {
    const std::string begin = std::string("<quire.") + name + ": ";
    if (!state_) return begin + "closed>";
    return begin + (birthplace_.is_here() ? describe(*state_) : "of another process") + ">";
  }
  bool closed() const { return state_ == nullptr; }
  bool is_here() const { return birthplace_.is_here(); }
  /// Lets go of it; twice is once.
  void Close() {
    std::shared_ptr<State> state = std::move(state_);
    state_ = nullptr;
    const GilFree free;
    state.reset();
  }

 private:
  std::shared_ptr<State> state_;
  const char* name_;
  const char* closed_;
  Birthplace birthplace_;
};

}  // namespace quire::python

#endif  // QUIRE_PYTHON_HANDLE_H_
