#include "remote/libcurl.h"

#include <fmt/format.h>

#include "env/dynamic_library.h"

namespace quire::remote {

Result<Libcurl> LoadLibcurlFrom(const char* name) {
  QUIRE_ASSIGN(const DynamicLibrary library, DynamicLibrary::Load(name, "libcurl4"));
  Libcurl curl{};
  QUIRE_TRY(library.Find("curl_easy_cleanup", curl.easy_cleanup));
  QUIRE_TRY(library.Find("curl_easy_getinfo", curl.easy_getinfo));
  QUIRE_TRY(library.Find("curl_easy_init", curl.easy_init));
  QUIRE_TRY(library.Find("curl_easy_reset", curl.easy_reset));
  QUIRE_TRY(library.Find("curl_easy_setopt", curl.easy_setopt));
  QUIRE_TRY(library.Find("curl_easy_strerror", curl.easy_strerror));
  QUIRE_TRY(library.Find("curl_multi_add_handle", curl.multi_add_handle));
  QUIRE_TRY(library.Find("curl_multi_cleanup", curl.multi_cleanup));
  QUIRE_TRY(library.Find("curl_multi_info_read", curl.multi_info_read));
  QUIRE_TRY(library.Find("curl_multi_init", curl.multi_init));
  QUIRE_TRY(library.Find("curl_multi_perform", curl.multi_perform));
  QUIRE_TRY(library.Find("curl_multi_poll", curl.multi_poll));
  QUIRE_TRY(library.Find("curl_multi_remove_handle", curl.multi_remove_handle));
  QUIRE_TRY(library.Find("curl_multi_setopt", curl.multi_setopt));
  QUIRE_TRY(library.Find("curl_multi_wakeup", curl.multi_wakeup));
  QUIRE_TRY(library.Find("curl_slist_append", curl.slist_append));
  QUIRE_TRY(library.Find("curl_slist_free_all", curl.slist_free_all));
  decltype(&::curl_global_init) global_init = nullptr;
  QUIRE_TRY(library.Find("curl_global_init", global_init));
  const CURLcode ready = global_init(CURL_GLOBAL_DEFAULT);
  if (ready != CURLE_OK) {
    return Fail(ErrorCode::kIo, fmt::format("{}: {}", name, curl.easy_strerror(ready)));
  }
  return curl;
}

Result<const Libcurl*> LoadLibcurl() {
  static const Result<Libcurl> loaded = LoadLibcurlFrom("libcurl.so.4");
  if (!loaded) return std::unexpected(loaded.error());
  return &*loaded;
}

}  // namespace quire::remote
