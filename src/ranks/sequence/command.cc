#include "ranks/sequence/command.h"

#include <fmt/format.h>

#include <cstring>
#include <type_traits>

namespace quire::ranks::sequence {
namespace {

// The fields of a fixed length. All ranks are the same program (Member::Join).
struct Header {
  Verb verb{};
  bool reuse = false;
  bool has_options = false;
  TenantId tenant{};
  uint64_t sequence = 0;
  uint64_t number = 0;
  SequenceOptions options{};
  uint64_t items = 0;
  uint64_t tokens = 0;
  uint64_t text_bytes = 0;
};
static_assert(std::is_trivially_copyable_v<Header> && std::is_trivially_copyable_v<StepEntry>);

}  // namespace

std::vector<std::byte> Write(const Command& command) {
  const Header header = {.verb = command.verb,
                         .reuse = command.reuse,
                         .has_options = command.has_options,
                         .tenant = command.tenant,
                         .sequence = command.sequence,
                         .number = command.number,
                         .options = command.options,
                         .items = command.items.size(),
                         .tokens = command.tokens.size(),
                         .text_bytes = command.text.size()};
  std::vector<std::byte> bytes;
  const auto add = [&bytes](std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
  };
  add(std::as_bytes(std::span(&header, 1)));
  add(std::as_bytes(std::span(command.items)));
  add(std::as_bytes(std::span(command.tokens)));
  add(std::as_bytes(std::span(command.text)));
  return bytes;
}

Result<Command> ReadCommand(std::span<const std::byte> bytes) {
  const auto bad = [&bytes] {
    return Fail(ErrorCode::kCorrupt,
                fmt::format("ranks: {} bytes from rank 0 are no command", bytes.size()));
  };
  Header header;
  if (bytes.size() < sizeof(header)) return bad();
  std::memcpy(&header, bytes.data(), sizeof(header));
  bytes = bytes.subspan(sizeof(header));
  const uint64_t left = bytes.size();
  if (header.items > left / sizeof(StepEntry) || header.tokens > left / sizeof(TokenId) ||
      header.text_bytes > left ||
      header.items * sizeof(StepEntry) + header.tokens * sizeof(TokenId) + header.text_bytes !=
          left) {
    return bad();
  }
  Command command = {.verb = header.verb,
                     .reuse = header.reuse,
                     .has_options = header.has_options,
                     .tenant = header.tenant,
                     .sequence = header.sequence,
                     .number = header.number,
                     .options = header.options};
  const auto take = [&bytes](uint64_t count, auto& values) {
    values.resize(count);
    const auto own = std::as_writable_bytes(std::span(values));
    if (count > 0) std::memcpy(own.data(), bytes.data(), own.size());
    bytes = bytes.subspan(own.size());
  };
  take(header.items, command.items);
  take(header.tokens, command.tokens);
  take(header.text_bytes, command.text);
  return command;
}

}  // namespace quire::ranks::sequence
