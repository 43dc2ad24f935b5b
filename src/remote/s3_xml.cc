#include "remote/s3_xml.h"

#include <fmt/format.h>

namespace quire::remote {
namespace {

/// The text of the first element of this name, and the rest behind it. Nothing: there is none.
std::optional<std::string_view> TakeElement(std::string_view& xml, std::string_view name) {
  const std::string open = fmt::format("<{}>", name);
  const std::string close = fmt::format("</{}>", name);
  const size_t begin = xml.find(open);
  if (begin == std::string_view::npos) return std::nullopt;
  const size_t end = xml.find(close, begin + open.size());
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view text = xml.substr(begin + open.size(), end - begin - open.size());
  xml.remove_prefix(end + close.size());
  return text;
}

}  // namespace

// Keys of ours have no character that XML writes otherwise; others are no keys of ours.
std::optional<S3List> ParseS3List(std::string_view xml) {
  if (xml.find("</ListBucketResult>") == std::string_view::npos) return std::nullopt;
  std::string_view rest = xml;
  S3List list;
  list.truncated = TakeElement(rest, "IsTruncated").value_or("false") == "true";
  rest = xml;
  while (auto entry = TakeElement(rest, "Contents")) {
    if (const auto key = TakeElement(*entry, "Key")) list.keys.emplace_back(*key);
  }
  return list;
}

std::string_view S3ErrorCode(std::string_view xml) {
  if (xml.find("<Error>") == std::string_view::npos) return {};
  return TakeElement(xml, "Code").value_or("");
}

}  // namespace quire::remote
