#include "remote/libcurl.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace quire::remote {

Result<Libcurl> LoadLibcurlFrom(const char* name) {
  const auto fail = [&](ErrorCode code, const char* why) {
    return Fail(code, fmt::format("s3: {}: {}; install the package libcurl4", name, why));
  };
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return fail(ErrorCode::kUnsupported, dlerror());
  const auto find = [&]<typename Function>(const char* symbol, Function& out) -> Result<void> {
    out = reinterpret_cast<Function>(dlsym(library, symbol));
    if (out == nullptr) return fail(ErrorCode::kUnsupported, dlerror());
    return {};
  };
  Libcurl curl{};
  QUIRE_TRY(find("curl_easy_cleanup", curl.easy_cleanup));
  QUIRE_TRY(find("curl_easy_getinfo", curl.easy_getinfo));
  QUIRE_TRY(find("curl_easy_init", curl.easy_init));
  QUIRE_TRY(find("curl_easy_reset", curl.easy_reset));
  QUIRE_TRY(find("curl_easy_setopt", curl.easy_setopt));
  QUIRE_TRY(find("curl_easy_strerror", curl.easy_strerror));
  QUIRE_TRY(find("curl_multi_add_handle", curl.multi_add_handle));
  QUIRE_TRY(find("curl_multi_cleanup", curl.multi_cleanup));
  QUIRE_TRY(find("curl_multi_info_read", curl.multi_info_read));
  QUIRE_TRY(find("curl_multi_init", curl.multi_init));
  QUIRE_TRY(find("curl_multi_perform", curl.multi_perform));
  QUIRE_TRY(find("curl_multi_poll", curl.multi_poll));
  QUIRE_TRY(find("curl_multi_remove_handle", curl.multi_remove_handle));
  QUIRE_TRY(find("curl_multi_setopt", curl.multi_setopt));
  QUIRE_TRY(find("curl_multi_wakeup", curl.multi_wakeup));
  QUIRE_TRY(find("curl_slist_append", curl.slist_append));
  QUIRE_TRY(find("curl_slist_free_all", curl.slist_free_all));
  decltype(&::curl_global_init) global_init = nullptr;
  QUIRE_TRY(find("curl_global_init", global_init));
  const CURLcode ready = global_init(CURL_GLOBAL_DEFAULT);
  if (ready != CURLE_OK) return fail(ErrorCode::kIo, curl.easy_strerror(ready));
  return curl;
}

Result<const Libcurl*> LoadLibcurl() {
  static const Result<Libcurl> loaded = LoadLibcurlFrom("libcurl.so.4");
  if (!loaded) return std::unexpected(loaded.error());
  return &*loaded;
}

}  // namespace quire::remote
