// Bodies of API calls and keys files: whatever the bytes, an answer or an error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "serve/http/api_request.h"
#include "serve/http/caller.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire::serve::http;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const Endpoint endpoint : {Endpoint::kCompletions, Endpoint::kChat}) {
    if (const auto call = ParseCall(endpoint, text); !call) (void)Dump(ErrorJson(call.error()));
  }
  (void)ParseSessionCall(text);
  (void)ParseTextCall(text, "text");
  (void)ParseKeysFile(text, "keys.toml");
  return 0;
}
