#include "remote/redis_link.h"

#include <poll.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace quire::remote {
namespace {

constexpr uint64_t kConnectUs = 1'000'000;
constexpr uint64_t kSilenceUs = 2'000'000;      // without a byte, while something is on its way
constexpr uint64_t kAnswerUs = 6'000'000;       // of one command
constexpr uint64_t kReadingBytesMax = 8 << 20;  // of answers that are asked for at once
constexpr uint64_t kBulkBytesMax = 1 << 16;     // of what is no object

bool Reads(const RedisCommand& command) {
  return command.kind == RedisCommand::kObject && command.request.verb == ObjectVerb::kGet;
}

uint64_t BulkMaxOf(const RedisCommand& command) {
  return Reads(command) ? command.request.bytes_max : kBulkBytesMax;
}

// Of objects: the rest is little.
uint64_t AnswerBytesOf(const RedisCommand& command) {
  return command.request.sink ? command.request.bytes_max : 0;
}

}  // namespace

void RedisLink::Open(const HostAndPort& to, const TlsContext* tls, const std::string& user,
                     const std::string& password, uint64_t request_us, uint64_t now_us) {
  request_us_ = request_us;
  reader_ = {};
  outgoing_.clear();
  waiting_.clear();
  in_flight_.clear();
  sent_ = unsent_ = reading_bytes_ = 0;
  broken_.clear();
  opened_us_ = progress_us_ = now_us;
  socket_.Connect(to, tls);
  if (password.empty()) return;
  RedisCommand log_in{.kind = RedisCommand::kLogIn};
  log_in.text =
      user.empty() ? RespCommand({"AUTH", password}) : RespCommand({"AUTH", user, password});
  Send(std::move(log_in), now_us);
}

short RedisLink::events() const {
  const bool writes = socket_.state() == Socket::State::kOpen && !outgoing_.empty();
  return static_cast<short>(POLLIN | (socket_.wants_write() || writes ? POLLOUT : 0));
}

bool RedisLink::MaySend(const RedisCommand& command) const {
  const uint64_t bytes = AnswerBytesOf(command);
  return bytes == 0 || reading_bytes_ == 0 || reading_bytes_ + bytes <= kReadingBytesMax;
}

void RedisLink::Send(RedisCommand command, uint64_t now_us) {
  if (waiting_.empty() && MaySend(command)) return SendNow(std::move(command), now_us);
  waiting_.push_back(std::move(command));
}

void RedisLink::SendNow(RedisCommand command, uint64_t now_us) {
  reading_bytes_ += AnswerBytesOf(command);
  if (in_flight_.empty()) progress_us_ = now_us;
  command.sent_us = now_us;
  in_flight_.push_back(std::move(command));
  const RedisCommand& sent = in_flight_.back();
  if (outgoing_.empty() || !outgoing_.back().body.empty()) outgoing_.emplace_back();
  Piece& piece = outgoing_.back();
  piece.text += sent.text;
  ++unsent_;
  const bool has_body =
      sent.kind == RedisCommand::kObject &&
      (sent.request.verb == ObjectVerb::kPut || sent.request.verb == ObjectVerb::kSwap);
  if (!has_body) {
    ++piece.ends;
    return;
  }
  piece.body = sent.request.bytes;
  outgoing_.push_back({.text = "\r\n", .ends = 1});
}

void RedisLink::Flush(uint64_t now_us) {
  while (!outgoing_.empty()) {
    Piece& piece = outgoing_.front();
    const auto text = std::as_bytes(std::span(piece.text));
    const bool in_text = sent_ < text.size();
    const auto rest = in_text ? text.subspan(sent_) : piece.body.subspan(sent_ - text.size());
    const size_t bytes = socket_.Write(rest);
    if (!rest.empty() && bytes == 0) return;
    sent_ += bytes;
    if (bytes > 0) progress_us_ = now_us;
    if (sent_ >= text.size()) unsent_ -= std::exchange(piece.ends, 0);
    if (sent_ < text.size() + piece.body.size()) continue;
    sent_ = 0;
    outgoing_.pop_front();
  }
}

void RedisLink::Turn(uint64_t now_us) {
  socket_.Step();
  if (socket_.state() != Socket::State::kOpen) return;
  progress_us_ = std::max(progress_us_, opened_us_);
  Flush(now_us);
  Receive(now_us);
}

void RedisLink::Receive(uint64_t now_us) {
  const std::span<std::byte> room = reader_.Room();
  const size_t bytes = socket_.Read(room);
  if (bytes == 0) return;
  reader_.Received(bytes);
  progress_us_ = now_us;
}

bool RedisLink::Next(RedisCommand& command, RespValue& reply, uint64_t now_us) {
  if (!broken_.empty()) return false;
  while (true) {
    const bool is_asked = !in_flight_.empty();
    const uint64_t bulk_max = is_asked ? BulkMaxOf(in_flight_.front()) : 0;
    const ObjectSink none;
    const RespReader::Step step =
        reader_.Next(bulk_max, reply, is_asked ? in_flight_.front().request.sink : none);
    if (step == RespReader::Step::kMore) {
      // What has come meanwhile is read without asking the poller again.
      const std::span<std::byte> room = reader_.Room();
      const size_t bytes = socket_.Read(room);
      if (bytes == 0) return false;
      reader_.Received(bytes);
      continue;
    }
    // Also where it answers what was not sent whole: its bytes are still being read.
    if (step == RespReader::Step::kBad || in_flight_.size() <= unsent_) {
      broken_ = "what it says is no reply";
      return false;
    }
    command = std::move(in_flight_.front());
    in_flight_.pop_front();
    reading_bytes_ -= AnswerBytesOf(command);
    while (!waiting_.empty() && MaySend(waiting_.front())) {
      SendNow(std::move(waiting_.front()), now_us);
      waiting_.pop_front();
    }
    Flush(now_us);
    if (step == RespReader::Step::kTooLong) {
      broken_ = "an object is longer than it can be";
      reply = {.kind = RespValue::kError, .text = "TOOLONG"};
    }
    return true;
  }
}

std::string RedisLink::Failure(uint64_t now_us) const {
  if (!broken_.empty()) return broken_;
  if (socket_.state() == Socket::State::kFailed) return socket_.failure();
  if (socket_.state() == Socket::State::kConnecting) {
    return now_us > opened_us_ + kConnectUs ? "no connection within a second" : "";
  }
  if (in_flight_.empty()) return "";
  const bool is_silent = now_us > progress_us_ + std::max(kSilenceUs, request_us_);
  const bool is_slow = now_us > in_flight_.front().sent_us + std::max(kAnswerUs, request_us_);
  return is_silent || is_slow ? "no answer in time" : "";
}

std::deque<RedisCommand> RedisLink::Close() {
  socket_.Close();
  outgoing_.clear();
  sent_ = unsent_ = reading_bytes_ = 0;
  std::ranges::move(std::exchange(waiting_, {}), std::back_inserter(in_flight_));
  return std::exchange(in_flight_, {});
}

}  // namespace quire::remote
