// Any bytes are a list, an error or neither.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "remote/s3_xml.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string_view text(reinterpret_cast<const char*>(data), bytes);
  if (const auto list = quire::remote::ParseS3List(text)) {
    for (const auto& key : list->keys) QUIRE_CHECK(text.find(key) != std::string_view::npos);
  }
  QUIRE_CHECK(quire::remote::S3ErrorCode(text).size() <= bytes);
  return 0;
}
