#include "env/dynamic_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace quire {
namespace {

std::unexpected<Error> Missing(const char* name, const char* package) {
  return Fail(ErrorCode::kUnsupported,
              fmt::format("{}: {}; install the package {}", name, dlerror(), package));
}

}  // namespace

Result<DynamicLibrary> DynamicLibrary::Load(const char* name, const char* package) {
  void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Missing(name, package);
  return DynamicLibrary(handle, name, package);
}

Result<void*> DynamicLibrary::Symbol(const char* symbol) const {
  void* const found = dlsym(handle_, symbol);
  if (found == nullptr) return Missing(name_, package_);
  return found;
}

}  // namespace quire
