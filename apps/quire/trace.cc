#include "apps/quire/trace.h"

#include <fmt/format.h>
#define ZLIB_CONST  // next_in points to const
#include <zlib.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/json.h"
#include "env/file.h"

namespace quire::app {
namespace {

constexpr uint64_t kFileBytesMax = 1 << 30;
constexpr uint64_t kLineBytesMax = 16 << 20;
constexpr size_t kPieceBytes = 1 << 18;  // of text, inflated at a time

Result<TraceRequest> ParseLine(std::string_view line, const std::string& source) {
  QUIRE_ASSIGN(const Json object, ParseJson(line, source));
  TraceRequest request;
  QUIRE_ASSIGN(request.timestamp_ms, JsonGet<uint64_t>(object, "timestamp", source));
  QUIRE_ASSIGN(request.input_tokens, JsonGet<uint64_t>(object, "input_length", source));
  QUIRE_ASSIGN(request.output_tokens, JsonGet<uint64_t>(object, "output_length", source));
  const auto ids = object.find("hash_ids");
  if (ids == object.end() || !ids->is_array()) {
    return Fail(ErrorCode::kCorrupt, source + ": hash_ids: must be a list");
  }
  request.block_ids.reserve(ids->size());
  for (const Json& id : *ids) {
    if (!id.is_number_unsigned()) {
      return Fail(ErrorCode::kCorrupt, source + ": hash_ids: must be whole numbers in 0..2^64-1");
    }
    request.block_ids.push_back(id.get<uint64_t>());
  }
  return request;
}

// Takes text in pieces of any length and parses it line by line.
class Lines {
 public:
  explicit Lines(const std::string& source) : source_(source) {}

  Result<void> Add(std::string_view text) {
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      if (line_.size() + end > kLineBytesMax) {
        return Fail(ErrorCode::kCorrupt, fmt::format("{}: line {} has more than {} bytes", source_,
                                                     number_ + 1, kLineBytesMax));
      }
      line_.append(text.substr(0, end));
      if (end == text.size()) return {};
      text.remove_prefix(end + 1);
      QUIRE_TRY(EndLine());
    }
    return {};
  }

  Result<Trace> Finish() {
    QUIRE_TRY(EndLine());
    return std::move(trace_);
  }

 private:
  Result<void> EndLine() {
    ++number_;
    const std::string line = std::exchange(line_, {});
    if (line.find_first_not_of(" \t\r") == std::string::npos) return {};
    QUIRE_ASSIGN(TraceRequest request,
                 ParseLine(line, fmt::format("{}: line {}", source_, number_)));
    entries_ += 1 + request.block_ids.size();
    if (entries_ > kTraceEntriesMax) {
      return Fail(ErrorCode::kCorrupt, fmt::format("{}: line {}: more than {} requests and blocks",
                                                   source_, number_, kTraceEntriesMax));
    }
    trace_.push_back(std::move(request));
    return {};
  }

  const std::string& source_;
  std::string line_;     // so far
  uint64_t number_ = 0;  // of the lines that ended
  uint64_t entries_ = 0;
  Trace trace_;
};

// An inflating stream that ends with its scope.
class Inflater {
 public:
  Inflater() { ready_ = inflateInit2(&stream_, 16 + MAX_WBITS) == Z_OK; }
  ~Inflater() {
    if (ready_) inflateEnd(&stream_);
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  Result<void> Run(std::string_view bytes, const std::string& source, Lines& lines) {
    if (!ready_) return Fail(ErrorCode::kNoSpace, source + ": no memory to inflate it");
    std::string piece(kPieceBytes, '\0');
    for (int status = Z_OK; !bytes.empty() || status != Z_STREAM_END;) {
      if (status == Z_STREAM_END) inflateReset(&stream_);  // another member follows
      const size_t offered = std::min<size_t>(bytes.size(), std::numeric_limits<uInt>::max() / 2);
      stream_.next_in = reinterpret_cast<const Bytef*>(bytes.data());
      stream_.avail_in = static_cast<uInt>(offered);
      stream_.next_out = reinterpret_cast<Bytef*>(piece.data());
      stream_.avail_out = static_cast<uInt>(piece.size());
      status = inflate(&stream_, Z_NO_FLUSH);
      if (status == Z_BUF_ERROR) return Fail(ErrorCode::kCorrupt, source + ": gzip cut short");
      if (status != Z_OK && status != Z_STREAM_END) {
        return Fail(ErrorCode::kCorrupt, source + ": damaged gzip");
      }
      bytes.remove_prefix(offered - stream_.avail_in);
      QUIRE_TRY(lines.Add(std::string_view(piece).substr(0, piece.size() - stream_.avail_out)));
    }
    return {};
  }

 private:
  z_stream stream_ = {};
  bool ready_ = false;
};

}  // namespace

Result<Trace> ParseTrace(std::string_view bytes, const std::string& source) {
  Lines lines(source);
  if (bytes.starts_with("\x1f\x8b")) {
    QUIRE_TRY(Inflater().Run(bytes, source, lines));
  } else {
    QUIRE_TRY(lines.Add(bytes));
  }
  return lines.Finish();
}

Result<Trace> ReadTrace(const std::string& path) {
  QUIRE_ASSIGN(const std::string bytes, ReadFile(path, kFileBytesMax));
  return ParseTrace(bytes, path);
}

}  // namespace quire::app
