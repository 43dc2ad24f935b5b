#include "ranks/pipeline/message.h"

#include <cstring>
#include <type_traits>

namespace quire::ranks::pipeline {

namespace {

constexpr uint32_t kMagic = 0x51504d31;  // "QPM1"

struct Header {
  uint32_t magic = kMagic;
  uint8_t command = 0;
  uint8_t reason = 0;
  uint8_t on_full = 0;
  uint8_t error = 0;  // 0: none
  uint8_t reuse = 0;
  uint8_t opens = 0;
  uint8_t publish = 0;
  uint8_t reserved = 0;
  uint32_t tenant = 0;
  uint64_t number = 0;
  uint64_t sequence = 0;
  uint64_t position = 0;
  uint64_t tokens_least = 0;
  uint64_t tokens_most = 0;
  uint64_t reserve_tokens = 0;
  uint64_t step_tokens = 0;
  Digest state{};
  // Values behind it, in this order.
  uint64_t items = 0;
  uint64_t tokens = 0;
  uint64_t digests = 0;
  uint64_t error_bytes = 0;
  uint64_t text_bytes = 0;
  uint64_t rows = 0;
};
static_assert(std::has_unique_object_representations_v<Header> && sizeof(Header) == 152);

struct PackedItem {
  uint64_t sequence = 0;
  uint32_t tokens = 0;
  uint32_t wanted = 0;
};
static_assert(std::has_unique_object_representations_v<PackedItem> && sizeof(PackedItem) == 16);

template <typename Value>
void Put(const Value* values, size_t count, std::vector<std::byte>& bytes) {
  const auto* const first = reinterpret_cast<const std::byte*>(values);
  bytes.insert(bytes.end(), first, first + count * sizeof(Value));
}

class Fields {
 public:
  explicit Fields(std::span<const std::byte> bytes) : rest_(bytes) {}

  // Into `values`, which can be resized. False: the message ends before.
  template <typename Values>
  bool Take(uint64_t count, Values& values) {
    using Value = typename Values::value_type;
    if (count > rest_.size() / sizeof(Value)) return false;
    values.resize(count);
    if (count > 0) std::memcpy(values.data(), rest_.data(), count * sizeof(Value));
    rest_ = rest_.subspan(count * sizeof(Value));
    return true;
  }
  bool empty() const { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
};

std::unexpected<Error> Bad(const char* why) {
  return Fail(ErrorCode::kCorrupt, std::string("ranks: a message of the pipeline ") + why);
}

bool IsKnown(const Header& header) {
  return header.command >= static_cast<uint8_t>(Command::kJoin) &&
         header.command <= static_cast<uint8_t>(Command::kTenant) && header.reason > 0 &&
         header.reason < kMissReasonsEnd && header.on_full > 0 &&
         header.on_full <= static_cast<uint8_t>(OnFull::kFewer) &&
         header.error <= static_cast<uint8_t>(ErrorCode::kTooLarge);
}

}  // namespace

std::vector<std::byte> Encode(const Message& message) {
  Header header = {.command = static_cast<uint8_t>(message.command),
                   .reason = static_cast<uint8_t>(message.reason),
                   .on_full = static_cast<uint8_t>(message.options.on_full),
                   .reuse = message.reuse,
                   .opens = message.opens,
                   .publish = message.options.publish,
                   .tenant = message.tenant.number(),
                   .number = message.number,
                   .sequence = message.sequence,
                   .position = message.position,
                   .tokens_least = message.tokens_least,
                   .tokens_most = message.tokens_most,
                   .reserve_tokens = message.options.reserve_tokens,
                   .step_tokens = message.options.step_tokens,
                   .state = message.state,
                   .items = message.items.size(),
                   .tokens = message.tokens.size(),
                   .digests = message.digests.size(),
                   .text_bytes = message.text.size(),
                   .rows = message.rows.size()};
  std::string_view error;
  if (message.error) {
    header.error = static_cast<uint8_t>(message.error->code);
    error = message.error->message;
    header.error_bytes = error.size();
  }
  std::vector<PackedItem> items;
  for (const MessageItem& item : message.items) {
    items.push_back({.sequence = item.sequence,
                     .tokens = item.tokens,
                     .wanted = static_cast<uint32_t>(item.wanted)});
  }
  std::vector<std::byte> bytes;
  bytes.reserve(sizeof(header) + items.size() * sizeof(PackedItem) +
                message.tokens.size() * sizeof(TokenId) + message.digests.size() * sizeof(Digest) +
                error.size() + message.text.size() + message.rows.size() * sizeof(float));
  Put(&header, 1, bytes);
  Put(items.data(), items.size(), bytes);
  Put(message.tokens.data(), message.tokens.size(), bytes);
  Put(message.digests.data(), message.digests.size(), bytes);
  Put(error.data(), error.size(), bytes);
  Put(message.text.data(), message.text.size(), bytes);
  Put(message.rows.data(), message.rows.size(), bytes);
  return bytes;
}

Result<Message> Decode(std::span<const std::byte> bytes) {
  Header header;
  if (bytes.size() < sizeof(header)) return Bad("is too short");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic) return Bad("is of another build; start all ranks with one program");
  if (!IsKnown(header)) return Bad("has values that this build does not know");
  Message message;
  std::vector<PackedItem> items;
  std::string error;
  Fields fields(bytes.subspan(sizeof(header)));
  const bool whole =
      fields.Take(header.items, items) && fields.Take(header.tokens, message.tokens) &&
      fields.Take(header.digests, message.digests) && fields.Take(header.error_bytes, error) &&
      fields.Take(header.text_bytes, message.text) && fields.Take(header.rows, message.rows);
  if (!whole || !fields.empty()) return Bad("has other lengths than it says");
  uint64_t tokens = 0;
  for (const PackedItem& item : items) {
    if (item.wanted > static_cast<uint32_t>(Wanted::kAll) || item.tokens == 0) {
      return Bad("has an item that this build does not know");
    }
    tokens += item.tokens;
    message.items.push_back({.sequence = item.sequence,
                             .tokens = item.tokens,
                             .wanted = static_cast<Wanted>(item.wanted)});
  }
  message.command = static_cast<Command>(header.command);
  const bool is_step = message.command == Command::kStep;
  if (is_step != !items.empty() || (is_step && tokens != message.tokens.size())) {
    return Bad("has items of other lengths than its tokens");
  }
  message.number = header.number;
  message.state = header.state;
  message.tenant = TenantId(header.tenant);
  message.sequence = header.sequence;
  message.position = header.position;
  message.tokens_least = header.tokens_least;
  message.tokens_most = header.tokens_most;
  message.reason = static_cast<MissReason>(header.reason);
  message.reuse = header.reuse != 0;
  message.opens = header.opens != 0;
  message.options = {.reserve_tokens = header.reserve_tokens,
                     .step_tokens = header.step_tokens,
                     .on_full = static_cast<OnFull>(header.on_full),
                     .publish = header.publish != 0};
  if (header.error != 0) {
    message.error = Error{static_cast<ErrorCode>(header.error), std::move(error)};
  }
  return message;
}

}  // namespace quire::ranks::pipeline
