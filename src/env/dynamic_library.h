// A library of the system that is loaded when it is first needed.
#ifndef QUIRE_ENV_DYNAMIC_LIBRARY_H_
#define QUIRE_ENV_DYNAMIC_LIBRARY_H_

#include "quire/error.h"

namespace quire {

/// Stays loaded until the process ends.
class DynamicLibrary {
 public:
  /// `package`: what the message names where something is missing.
  ///
  /// Errors: kUnsupported it cannot be loaded
  static Result<DynamicLibrary> Load(const char* name, const char* package);

  /// Sets `function` to the function of this name.
  ///
  /// Errors: kUnsupported the library has none
  template <typename Function>
  Result<void> Find(const char* symbol, Function& function) const {
    QUIRE_ASSIGN(void* const found, Symbol(symbol));
    function = reinterpret_cast<Function>(found);
    return {};
  }

 private:
  DynamicLibrary(void* handle, const char* name, const char* package)
      : handle_(handle), name_(name), package_(package) {}
  Result<void*> Symbol(const char* symbol) const;

  void* handle_;
  const char* name_;
  const char* package_;
};

}  // namespace quire

#endif  // QUIRE_ENV_DYNAMIC_LIBRARY_H_
