#include "apps/quire/trace.h"

#include <fmt/format.h>
#define ZLIB_CONST  // next_in points to const
#include <zlib.h>

#include <algorithm>
#include <limits>
#include <map>
#include <new>
#include <unordered_map>
#include <utility>

#include "base/json.h"
#include "base/prng.h"
#include "env/file.h"

namespace quire::app {
namespace {

constexpr uint64_t kFileBytesMax = 1 << 30;
constexpr uint64_t kLineBytesMax = 16 << 20;
constexpr uint64_t kHeldBytesMax = 1 << 27;  // of requests and their block ids
constexpr size_t kPieceBytes = 1 << 18;      // of text, inflated at a time

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
    held_bytes_ += sizeof(TraceRequest) + request.block_ids.size() * sizeof(uint64_t);
    if (held_bytes_ > kHeldBytesMax) {
      return Fail(ErrorCode::kCorrupt,
                  fmt::format("{}: line {}: more than {} bytes of requests and block ids", source_,
                              number_, kHeldBytesMax));
    }
    trace_.push_back(std::move(request));
    return {};
  }

  const std::string& source_;
  std::string line_;     // so far
  uint64_t number_ = 0;  // of the lines that ended
  uint64_t held_bytes_ = 0;
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

  Result<void> Add(std::string_view bytes, const std::string& source, Lines& lines) {
    if (!ready_) return Fail(ErrorCode::kNoSpace, source + ": no memory to inflate it");
    piece_.resize(kPieceBytes);
    while (!bytes.empty()) {
      if (ended_) inflateReset(&stream_);  // another member follows
      const size_t offered = std::min<size_t>(bytes.size(), std::numeric_limits<uInt>::max() / 2);
      stream_.next_in = reinterpret_cast<const Bytef*>(bytes.data());
      stream_.avail_in = static_cast<uInt>(offered);
      QUIRE_TRY(Inflate(source, lines));
      bytes.remove_prefix(offered - stream_.avail_in);
    }
    return {};
  }

  Result<void> Finish(const std::string& source) const {
    if (ended_) return {};
    return Fail(ErrorCode::kCorrupt, source + ": gzip cut short");
  }

 private:
  // Until the input that was offered is used up, or a member ends.
  Result<void> Inflate(const std::string& source, Lines& lines) {
    do {
      stream_.next_out = reinterpret_cast<Bytef*>(piece_.data());
      stream_.avail_out = static_cast<uInt>(piece_.size());
      const int status = inflate(&stream_, Z_NO_FLUSH);
      ended_ = status == Z_STREAM_END;
      // Z_BUF_ERROR: nothing was left to do.
      if (status != Z_OK && status != Z_BUF_ERROR && !ended_) {
        return Fail(ErrorCode::kCorrupt, source + ": damaged gzip");
      }
      QUIRE_TRY(lines.Add(std::string_view(piece_).substr(0, piece_.size() - stream_.avail_out)));
    } while (!ended_ && stream_.avail_out == 0);
    return {};
  }

  z_stream stream_ = {};
  bool ready_ = false;
  bool ended_ = false;  // with a member
  std::string piece_;
};

// Takes a trace in pieces, gzip or not.
class Reader {
 public:
  explicit Reader(const std::string& source) : source_(source), lines_(source) {}

  Result<void> Add(std::string_view bytes) {
    if (head_.size() < kMagic.size()) {
      const size_t missing = std::min(kMagic.size() - head_.size(), bytes.size());
      head_ += bytes.substr(0, missing);
      bytes.remove_prefix(missing);
      if (head_.size() < kMagic.size()) return {};
      QUIRE_TRY(Take(head_));
    }
    return Take(bytes);
  }

  Result<Trace> Finish() {
    if (head_.size() < kMagic.size()) QUIRE_TRY(lines_.Add(head_));
    if (is_gzip()) QUIRE_TRY(inflater_.Finish(source_));
    return lines_.Finish();
  }

 private:
  static constexpr std::string_view kMagic = "\x1f\x8b";

  bool is_gzip() const { return head_ == kMagic; }
  Result<void> Take(std::string_view bytes) {
    return is_gzip() ? inflater_.Add(bytes, source_, lines_) : lines_.Add(bytes);
  }

  const std::string& source_;
  std::string head_;  // the first bytes, which say what it is
  Lines lines_;
  Inflater inflater_;
};

// Reads by `feed`, which gives pieces to a Reader.
template <typename Feed>
Result<Trace> Read(const std::string& source, const Feed& feed) {
  try {
    Reader reader(source);
    QUIRE_TRY(feed(reader));
    return reader.Finish();
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kNoSpace, source + ": the system has no memory for its requests");
  }
}

}  // namespace

Result<Trace> ParseTrace(std::string_view bytes, const std::string& source) {
  return Read(source, [bytes](Reader& reader) { return reader.Add(bytes); });
}

Result<Trace> ReadTrace(const std::string& path) {
  return Read(path, [&path](Reader& reader) {
    return ReadPieces(path, kFileBytesMax,
                      [&reader](std::string_view piece) { return reader.Add(piece); });
  });
}

namespace {

using Session = std::vector<const TraceRequest*>;

// Blocks that every path begins with. A path that ends there leaves the rest without a root.
size_t SharedBlocks(const Trace& trace) {
  size_t shared = trace.front().block_ids.size();
  for (const TraceRequest& request : trace) {
    shared = std::min(shared, request.block_ids.size());
    size_t same = 0;
    while (same < shared && request.block_ids[same] == trace.front().block_ids[same]) ++same;
    shared = same;
  }
  return shared;
}

std::vector<Session> SessionsOf(const Trace& trace, size_t shared) {
  std::vector<Session> sessions;
  std::map<std::vector<uint64_t>, size_t> numbers;  // by root; none: what has nothing of its own
  for (const TraceRequest& request : trace) {
    std::vector<uint64_t> root;
    if (request.block_ids.size() > shared) root.push_back(request.block_ids[shared]);
    const auto [number, is_new] = numbers.try_emplace(std::move(root), sessions.size());
    if (is_new) sessions.emplace_back();
    sessions[number->second].push_back(&request);
  }
  return sessions;
}

}  // namespace

Result<Trace> Resample(const Trace& trace, uint64_t seed, uint64_t sessions) {
  Trace resampled;
  if (trace.empty()) return resampled;
  const size_t shared = SharedBlocks(trace);
  const std::vector<Session> all = SessionsOf(trace, shared);
  const auto by_time = [](const TraceRequest& a, const TraceRequest& b) {
    return a.timestamp_ms < b.timestamp_ms;
  };
  const auto [first, last] = std::ranges::minmax_element(trace, by_time);
  std::vector<bool> was_drawn(all.size());
  uint64_t next_id = shared;
  uint64_t entries = 0;
  Prng prng(seed);
  if (sessions == 0) sessions = all.size();
  for (uint64_t i = 0; i < sessions; ++i) {
    const uint64_t drawn = prng.NextBelow(all.size());
    const Session& session = all[drawn];
    const auto [begin, end] = std::ranges::minmax_element(
        session, [&](const auto* a, const auto* b) { return by_time(*a, *b); });
    const uint64_t begin_ms = (*begin)->timestamp_ms;
    uint64_t moved_ms = begin_ms;
    if (was_drawn[drawn]) {
      const uint64_t room_ms =
          last->timestamp_ms - first->timestamp_ms - ((*end)->timestamp_ms - begin_ms);
      moved_ms = first->timestamp_ms + prng.NextBelow(room_ms + 1);
    }
    was_drawn[drawn] = true;
    std::unordered_map<uint64_t, uint64_t> ids;  // of this copy, by those of the trace
    for (const TraceRequest* request : session) {
      entries += 1 + request->block_ids.size();
      if (entries > kTraceEntriesMax) {
        return Fail(
            ErrorCode::kTooLarge,
            fmt::format("{} sessions drawn by seed {} have more than {} requests and blocks",
                        sessions, seed, kTraceEntriesMax));
      }
      TraceRequest& copy = resampled.emplace_back(*request);
      copy.timestamp_ms = copy.timestamp_ms - begin_ms + moved_ms;
      for (size_t block = 0; block < copy.block_ids.size(); ++block) {
        uint64_t& id = copy.block_ids[block];
        if (block < shared) {
          id = block;
          continue;
        }
        const auto [own, is_new] = ids.try_emplace(id, next_id);
        if (is_new) ++next_id;
        id = own->second;
      }
    }
  }
  std::ranges::stable_sort(resampled, by_time);
  return resampled;
}

}  // namespace quire::app
