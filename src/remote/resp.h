// The protocol of Redis and Valkey (RESP2), as bytes: commands out, replies in.
#ifndef QUIRE_REMOTE_RESP_H_
#define QUIRE_REMOTE_RESP_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "remote/objects.h"

namespace quire::remote {

struct RespValue {
  enum Kind : uint8_t { kNull, kText, kError, kInteger, kBulk, kArray };
  Kind kind = kNull;
  int64_t integer = 0;             // kInteger; kBulk: its bytes
  std::string text{};              // kText, kError
  std::vector<std::byte> bytes{};  // kBulk
  std::vector<RespValue> items{};  // kArray

  std::string_view bulk() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

/// Replies out of a stream of bytes that come in any pieces. What a server says sizes nothing
/// beyond the limits: lines 4 KiB, arrays a million items and 8 deep, bulks as the caller says.
///
/// Threads: one
class RespReader {
 public:
  enum class Step : uint8_t {
    kMore = 1,     // bytes are missing
    kValue = 2,    //
    kTooLong = 3,  // a bulk is longer than bulk_max: the stream is of no use any more
    kBad = 4,      // no reply: the same
  };

  RespReader() : buffer_(kBufferBytes) {}

  /// Where the next bytes go; never empty after Next said kMore.
  std::span<std::byte> Room();
  void Received(size_t bytes);
  /// Where there is a sink it gets the bytes of bulks, piece by piece, and the value has none.
  Step Next(uint64_t bulk_max, RespValue& value, const ObjectSink& sink);

 private:
  static constexpr size_t kBufferBytes = 64 << 10;  // stays in the cache until a sink has it
  static constexpr size_t kLineBytesMax = 4096;
  static constexpr uint64_t kItemsMax = 1 << 20;
  static constexpr size_t kDepthMax = 8;

  struct Frame {
    RespValue array{};
    uint64_t left = 0;
  };

  Step Line(std::string_view& line);
  Step One(uint64_t bulk_max, RespValue& value, const ObjectSink& sink);
  Step FillBulk(const ObjectSink& sink);

  std::vector<std::byte> buffer_;
  size_t begin_ = 0;  // [begin_, end_) of the buffer was received and not read
  size_t end_ = 0;
  bool in_bulk_ = false;
  std::vector<std::byte> bulk_;
  uint64_t bulk_bytes_ = 0;
  uint64_t filled_ = 0;  // of these
  std::vector<Frame> frames_;
  uint64_t items_ = 0;  // of the reply so far
};

/// A command. Its last argument may follow: `last_bytes` of it and "\r\n".
std::string RespCommand(std::initializer_list<std::string_view> arguments);
std::string RespCommandBefore(std::initializer_list<std::string_view> arguments,
                              uint64_t last_bytes);

}  // namespace quire::remote

#endif  // QUIRE_REMOTE_RESP_H_
