#include "remote/resp.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

namespace quire::remote {

std::span<std::byte> RespReader::Room() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
  }
  return std::span(buffer_).subspan(end_);
}

void RespReader::Received(size_t bytes) { end_ += bytes; }

RespReader::Step RespReader::Line(std::string_view& line) {
  const std::string_view there(reinterpret_cast<const char*>(buffer_.data()) + begin_,
                               end_ - begin_);
  const size_t end = there.find("\r\n");
  if (end == std::string_view::npos) {
    return there.size() > kLineBytesMax ? Step::kBad : Step::kMore;
  }
  if (end > kLineBytesMax) return Step::kBad;
  line = there.substr(0, end);
  begin_ += end + 2;
  return Step::kValue;
}

RespReader::Step RespReader::FillBulk(const ObjectSink& sink) {
  const auto taken = std::span<const std::byte>(buffer_).subspan(
      begin_, std::min<uint64_t>(bulk_bytes_ - filled_, end_ - begin_));
  if (!sink) {
    bulk_.insert(bulk_.end(), taken.begin(), taken.end());
  } else if (!taken.empty()) {
    sink(taken);
  }
  filled_ += taken.size();
  begin_ += taken.size();
  if (filled_ < bulk_bytes_ || end_ - begin_ < 2) return Step::kMore;
  if (buffer_[begin_] != std::byte{'\r'} || buffer_[begin_ + 1] != std::byte{'\n'}) {
    return Step::kBad;
  }
  begin_ += 2;
  in_bulk_ = false;
  return Step::kValue;
}

// One value, or the begin of an array, which is a frame then (kMore with a new frame is not told
// from one without: Next looks at both).
RespReader::Step RespReader::One(uint64_t bulk_max, RespValue& value, const ObjectSink& sink) {
  if (!in_bulk_) {
    std::string_view line;
    if (const Step step = Line(line); step != Step::kValue) return step;
    if (line.empty()) return Step::kBad;
    const std::string_view rest = line.substr(1);
    int64_t number = 0;
    const auto parsed = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    const bool is_number = parsed.ec == std::errc() && parsed.ptr == rest.data() + rest.size();
    switch (line[0]) {
      case '+': value = {.kind = RespValue::kText, .text = std::string(rest)}; return Step::kValue;
      case '-': value = {.kind = RespValue::kError, .text = std::string(rest)}; return Step::kValue;
      case ':':
        value = {.kind = RespValue::kInteger, .integer = number};
        return is_number ? Step::kValue : Step::kBad;
      case '$':
      case '*':
        if (!is_number || number < -1) return Step::kBad;
        value = {};
        if (number == -1) return Step::kValue;
        break;
      default: return Step::kBad;
    }
    const auto count = static_cast<uint64_t>(number);
    if (line[0] == '*') {
      items_ += count;
      if (count > kItemsMax || items_ > kItemsMax || frames_.size() == kDepthMax) return Step::kBad;
      value.kind = RespValue::kArray;
      if (count > 0) frames_.push_back({.array = std::exchange(value, {}), .left = count});
      return Step::kValue;
    }
    if (count > bulk_max) return Step::kTooLong;
    if (!sink) bulk_.reserve(count);
    bulk_bytes_ = count;
    filled_ = 0;
    in_bulk_ = true;
  }
  if (const Step step = FillBulk(sink); step != Step::kValue) return step;
  value = {.kind = RespValue::kBulk,
           .integer = static_cast<int64_t>(bulk_bytes_),
           .bytes = std::exchange(bulk_, {})};
  return Step::kValue;
}

RespReader::Step RespReader::Next(uint64_t bulk_max, RespValue& value, const ObjectSink& sink) {
  while (true) {
    const size_t depth = frames_.size();
    RespValue next;
    if (const Step step = One(bulk_max, next, sink); step != Step::kValue) return step;
    if (frames_.size() > depth) continue;  // an array begins
    while (!frames_.empty()) {
      frames_.back().array.items.push_back(std::move(next));
      if (--frames_.back().left > 0) break;
      next = std::move(frames_.back().array);
      frames_.pop_back();
      if (frames_.empty()) break;
    }
    if (!frames_.empty()) continue;
    items_ = 0;
    value = std::move(next);
    return Step::kValue;
  }
}

namespace {

std::string Arguments(std::initializer_list<std::string_view> arguments, size_t count) {
  std::string command = fmt::format("*{}\r\n", count);
  for (const std::string_view argument : arguments) {
    fmt::format_to(std::back_inserter(command), "${}\r\n{}\r\n", argument.size(), argument);
  }
  return command;
}

}  // namespace

std::string RespCommand(std::initializer_list<std::string_view> arguments) {
  return Arguments(arguments, arguments.size());
}

std::string RespCommandBefore(std::initializer_list<std::string_view> arguments,
                              uint64_t last_bytes) {
  return Arguments(arguments, arguments.size() + 1) + fmt::format("${}\r\n", last_bytes);
}

}  // namespace quire::remote
