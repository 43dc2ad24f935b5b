#include "embed/boundary.h"

#include <fmt/format.h>

#include <span>

namespace quire::embed {

quire_code Report(quire_error* error, quire_code code, std::string_view message) noexcept {
  if (error == nullptr) return code;
  error->code = code;
  const size_t bytes = std::min(message.size(), sizeof(error->message) - 1);
  std::memcpy(error->message, message.data(), bytes);
  error->message[bytes] = '\0';
  return code;
}

Result<void> NotNull(const void* pointer, std::string_view name) {
  if (pointer != nullptr) return {};
  return Fail(ErrorCode::kInvalidArgument, fmt::format("{} is NULL", name));
}

Result<Placement> ToPlacement(quire_placement placement) {
  if (placement < 0 || placement > UINT8_MAX) {
    return Fail(ErrorCode::kInvalidArgument, fmt::format("options->placement is {}", placement));
  }
  return static_cast<Placement>(placement);
}

Result<void> CheckArray(const void* array, uint64_t count, uint64_t count_max,
                        std::string_view name) {
  if (count > count_max) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{} has {} entries, at most {}", name, count, count_max));
  }
  if (count > 0) return NotNull(array, name);
  return {};
}

Result<size_t> CheckSize(const void* caller, size_t first_bytes, size_t known_bytes,
                         std::string_view name) {
  QUIRE_TRY(NotNull(caller, name));
  size_t bytes = 0;
  std::memcpy(&bytes, caller, sizeof(bytes));
  constexpr size_t kStructBytesMax = 4096;
  if (bytes >= first_bytes && bytes <= kStructBytesMax) return bytes;
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("{}->size is {}, not {}", name, bytes, known_bytes));
}

Result<void> CheckRest(const void* caller, size_t caller_bytes, size_t known_bytes,
                       std::string_view name) {
  if (caller_bytes <= known_bytes) return {};
  const auto rest =
      std::span(static_cast<const std::byte*>(caller), caller_bytes).subspan(known_bytes);
  if (std::ranges::all_of(rest, [](std::byte byte) { return byte == std::byte{0}; })) return {};
  return Fail(ErrorCode::kUnsupported,
              fmt::format("{} sets a field after its first {} bytes; this is version {}", name,
                          known_bytes, quire_version()));
}

Result<void> WriteText(const std::string& from, char* text, size_t text_bytes, size_t* length) {
  QUIRE_TRY(NotNull(length, "length"));
  QUIRE_TRY(CheckArray(text, text_bytes, SIZE_MAX, "text"));
  *length = from.size();
  if (text_bytes == 0) return {};
  if (text_bytes <= from.size()) {
    return Fail(ErrorCode::kInvalidArgument, "text has room for " + std::to_string(text_bytes) +
                                                 " bytes, " + std::to_string(from.size()) +
                                                 " and a NUL are needed");
  }
  std::memcpy(text, from.c_str(), from.size() + 1);
  return {};
}

}  // namespace quire::embed
