// libcurl, loaded when it is first needed: with it come some thirty libraries, which a program that
// uses no S3 neither loads nor has to install.
#ifndef QUIRE_REMOTE_LIBCURL_H_
#define QUIRE_REMOTE_LIBCURL_H_

#include <curl/curl.h>

#include "quire/error.h"

namespace quire::remote {

/// The functions of libcurl that are used, by their names without the prefix.
struct Libcurl {
  decltype(&::curl_easy_cleanup) easy_cleanup;
  decltype(&::curl_easy_getinfo) easy_getinfo;
  decltype(&::curl_easy_init) easy_init;
  decltype(&::curl_easy_reset) easy_reset;
  decltype(&::curl_easy_setopt) easy_setopt;
  decltype(&::curl_easy_strerror) easy_strerror;
  decltype(&::curl_multi_add_handle) multi_add_handle;
  decltype(&::curl_multi_cleanup) multi_cleanup;
  decltype(&::curl_multi_info_read) multi_info_read;
  decltype(&::curl_multi_init) multi_init;
  decltype(&::curl_multi_perform) multi_perform;
  decltype(&::curl_multi_poll) multi_poll;
  decltype(&::curl_multi_remove_handle) multi_remove_handle;
  decltype(&::curl_multi_setopt) multi_setopt;
  decltype(&::curl_multi_wakeup) multi_wakeup;
  decltype(&::curl_slist_append) slist_append;
  decltype(&::curl_slist_free_all) slist_free_all;
};

/// Loads and initializes it at the first call. It stays loaded.
///
/// Errors:  kUnsupported the library or one of these functions is missing; kIo it cannot be used
/// Threads: any
Result<const Libcurl*> LoadLibcurl();

/// The same from a library of another name.
Result<Libcurl> LoadLibcurlFrom(const char* name);

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_LIBCURL_H_
