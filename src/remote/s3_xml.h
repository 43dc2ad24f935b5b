// The little XML that an S3 service answers with.
#ifndef QUIRE_REMOTE_S3_XML_H_
#define QUIRE_REMOTE_S3_XML_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire::remote {

struct S3List {
  std::vector<std::string> keys{};
  bool truncated = false;  // there are more
};

/// The keys of an answer to ListObjectsV2. Nothing: it is none, or is cut.
std::optional<S3List> ParseS3List(std::string_view xml);
/// The code of an error ("NoSuchBucket"); empty: there is none.
std::string_view S3ErrorCode(std::string_view xml);

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_S3_XML_H_
