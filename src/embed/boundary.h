// Where C meets C++: codes and messages out, checked arguments in, and nothing thrown across.
#ifndef QUIRE_EMBED_BOUNDARY_H_
#define QUIRE_EMBED_BOUNDARY_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iterator>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>

#include "quire/error.h"
#include "quire/geometry.h"
#include "quire/quire.h"
#include "quire/store.h"

namespace quire::embed {

/// Writes code and message, cut to what fits, and gives the code back.
quire_code Report(quire_error* error, quire_code code, std::string_view message) noexcept;

/// Runs the body of one C function, a callable that returns Result<void>. What it returns or
/// throws becomes a code and a message.
template <typename Body>
quire_code Boundary(quire_error* error, Body&& body) noexcept {
  try {
    const Result<void> result = body();
    if (result) return Report(error, QUIRE_OK, "");
    return Report(error, static_cast<quire_code>(result.error().code), result.error().message);
  } catch (const std::bad_alloc&) {
    return Report(error, QUIRE_NO_MEMORY, "out of memory");
  } catch (const std::exception& exception) {
    return Report(error, QUIRE_INTERNAL, exception.what());
  } catch (...) {
    return Report(error, QUIRE_INTERNAL, "unknown exception");
  }
}

/// Errors: kInvalidArgument "`name` is NULL"
Result<void> NotNull(const void* pointer, std::string_view name);

/// Errors: kInvalidArgument an array of `count` elements at NULL, or of more than `count_max`
Result<void> CheckArray(const void* array, uint64_t count, uint64_t count_max,
                        std::string_view name);

/// A C constant as the enum of the same numbers; 0 becomes `fallback`. Numbers that no enum of
/// eight bits holds fail here, unknown ones where the enum is read.
/// Errors: kInvalidArgument
template <typename Enum>
Result<Enum> ToEnum(int32_t number, std::string_view name, Enum fallback = Enum{}) {
  static_assert(std::is_same_v<std::underlying_type_t<Enum>, uint8_t>);
  if (number == 0 && fallback != Enum{}) return fallback;
  if (number <= 0 || number > UINT8_MAX) {
    return Fail(ErrorCode::kInvalidArgument, std::string(name) + " is " + std::to_string(number));
  }
  return static_cast<Enum>(number);
}

/// A placement, whose C constants begin with 0.
/// Errors: kInvalidArgument no enum of eight bits has it
Result<Placement> ToPlacement(quire_placement placement);

/// What the growth rule of quire.h needs to know of a struct: where the last field ends that its
/// first version had, then where each field ends that came later.
template <typename T>
[[gnu::visibility("hidden")]] inline constexpr std::array<size_t, 1> kFieldEnds = {sizeof(T)};

#define QUIRE_FIELD_END(type, field) (offsetof(type, field) + sizeof(type::field))
template <>
[[gnu::visibility("hidden")]] inline constexpr std::array kFieldEnds<quire_cache_options> = {
    QUIRE_FIELD_END(quire_cache_options, tokens_max),
    QUIRE_FIELD_END(quire_cache_options, hot_bytes_max),
    QUIRE_FIELD_END(quire_cache_options, policy),
    QUIRE_FIELD_END(quire_cache_options, eviction_batch),
    QUIRE_FIELD_END(quire_cache_options, residual_tokens),
    QUIRE_FIELD_END(quire_cache_options, open_codec),
    QUIRE_FIELD_END(quire_cache_options, codec_fallback),
    QUIRE_FIELD_END(quire_cache_options, reserved[0]),
    QUIRE_FIELD_END(quire_cache_options, reserved[1]),
    QUIRE_FIELD_END(quire_cache_options, disk_store),
    QUIRE_FIELD_END(quire_cache_options, events),
    QUIRE_FIELD_END(quire_cache_options, events_replay),
    QUIRE_FIELD_END(quire_cache_options, events_topic),
    QUIRE_FIELD_END(quire_cache_options, store_codec)};
template <>
[[gnu::visibility("hidden")]] inline constexpr std::array kFieldEnds<quire_cache_stats> = {
    QUIRE_FIELD_END(quire_cache_stats, refused_total),
    QUIRE_FIELD_END(quire_cache_stats, reserved[0]),
    QUIRE_FIELD_END(quire_cache_stats, reserved[1]),
    QUIRE_FIELD_END(quire_cache_stats, reserved[2]),
    QUIRE_FIELD_END(quire_cache_stats, reserved[3])};
template <>
[[gnu::visibility("hidden")]] inline constexpr std::array kFieldEnds<quire_sequence_options> = {
    QUIRE_FIELD_END(quire_sequence_options, private_blocks),
    QUIRE_FIELD_END(quire_sequence_options, contiguous),
    QUIRE_FIELD_END(quire_sequence_options, query_heads),
    QUIRE_FIELD_END(quire_sequence_options, resident_tokens)};
template <>
[[gnu::visibility("hidden")]] inline constexpr std::array kFieldEnds<quire_sequence_stats> = {
    QUIRE_FIELD_END(quire_sequence_stats, blocks_own), QUIRE_FIELD_END(quire_sequence_stats, bytes),
    QUIRE_FIELD_END(quire_sequence_stats, tokens_streamed),
    QUIRE_FIELD_END(quire_sequence_stats, tokens_approximate),
    QUIRE_FIELD_END(quire_sequence_stats, approximate_error_ppm)};
template <>
[[gnu::visibility("hidden")]] inline constexpr std::array kFieldEnds<quire_acquire_request> = {
    offsetof(quire_acquire_request, approximate_error_max),  // reserved0 was padding
    QUIRE_FIELD_END(quire_acquire_request, approximate_error_max),
    QUIRE_FIELD_END(quire_acquire_request, reserved1)};
template <>
[[gnu::visibility("hidden")]] inline constexpr std::array kFieldEnds<quire_tenant_options> = {
    offsetof(quire_tenant_options, store_quota_bytes),  // its first version ended so, with padding
    QUIRE_FIELD_END(quire_tenant_options, store_quota_bytes),
    QUIRE_FIELD_END(quire_tenant_options, store_floor_bytes)};
template <>
[[gnu::visibility("hidden")]] inline constexpr std::array kFieldEnds<quire_disk_store_options> = {
    QUIRE_FIELD_END(quire_disk_store_options, staging_bytes),
    QUIRE_FIELD_END(quire_disk_store_options, warm_bytes),
    QUIRE_FIELD_END(quire_disk_store_options, scrub_bytes_per_s),
    QUIRE_FIELD_END(quire_disk_store_options, remote),
    QUIRE_FIELD_END(quire_disk_store_options, fleet_key_file),
    QUIRE_FIELD_END(quire_disk_store_options, remote_writes_all),
    QUIRE_FIELD_END(quire_disk_store_options, keys_file),
    QUIRE_FIELD_END(quire_disk_store_options, keys_command),
    QUIRE_FIELD_END(quire_disk_store_options, key)};
template <>
[[gnu::visibility("hidden")]] inline constexpr std::array kFieldEnds<quire_layer_blocks> = {
    QUIRE_FIELD_END(quire_layer_blocks, tokens), QUIRE_FIELD_END(quire_layer_blocks, base),
    QUIRE_FIELD_END(quire_layer_blocks, slot_stride_bytes),
    QUIRE_FIELD_END(quire_layer_blocks, slots)};
template <>
[[gnu::visibility("hidden")]] inline constexpr std::array kFieldEnds<quire_attend_request> = {
    QUIRE_FIELD_END(quire_attend_request, tasks),
    QUIRE_FIELD_END(quire_attend_request, sink_logits),
    QUIRE_FIELD_END(quire_attend_request, alibi_slopes)};
template <>
[[gnu::visibility("hidden")]] inline constexpr std::array kFieldEnds<quire_store_options> = {
    QUIRE_FIELD_END(quire_store_options, accepts_puts),
    QUIRE_FIELD_END(quire_store_options, memory_bytes),
    QUIRE_FIELD_END(quire_store_options, keys_file),
    QUIRE_FIELD_END(quire_store_options, keys_command), QUIRE_FIELD_END(quire_store_options, key)};
template <>
[[gnu::visibility("hidden")]] inline constexpr std::array kFieldEnds<quire_store_stats> = {
    QUIRE_FIELD_END(quire_store_stats, disk_full), QUIRE_FIELD_END(quire_store_stats, puts_lost),
    QUIRE_FIELD_END(quire_store_stats, memory_hits), QUIRE_FIELD_END(quire_store_stats, clients)};
#undef QUIRE_FIELD_END

/// Bytes of the fields that a caller's struct of `caller_bytes` holds whole: half a field is none.
template <typename T>
size_t SharedBytes(size_t caller_bytes) {
  static_assert(std::is_trivially_copyable_v<T> && offsetof(T, size) == 0);
  static_assert(sizeof(T) - kFieldEnds<T>.back() < alignof(T), "a field is missing in kFieldEnds");
  return *std::prev(std::ranges::upper_bound(kFieldEnds<T>, caller_bytes));
}

/// Reads the `size` of a caller's struct, and nothing else of it.
/// Errors: kInvalidArgument NULL, shorter than the first version, or longer than any struct
Result<size_t> CheckSize(const void* caller, size_t first_bytes, size_t known_bytes,
                         std::string_view name);

/// Errors: kUnsupported a longer struct with something set after its first `known_bytes`
Result<void> CheckRest(const void* caller, size_t caller_bytes, size_t known_bytes,
                       std::string_view name);

/// The caller's struct as this library knows it; what an older caller does not have is zero.
/// Errors: as CheckSize and CheckRest
template <typename T>
Result<T> ReadStruct(const T* caller, std::string_view name) {
  QUIRE_ASSIGN(const size_t bytes, CheckSize(caller, kFieldEnds<T>.front(), sizeof(T), name));
  QUIRE_TRY(CheckRest(caller, bytes, sizeof(T), name));
  T known{};
  std::memcpy(&known, caller, SharedBytes<T>(bytes));
  return known;
}

/// The same for structs that may be NULL: all defaults.
template <typename T>
Result<T> ReadOptions(const T* caller, std::string_view name) {
  if (caller == nullptr) return T{};
  return ReadStruct(caller, name);
}

/// Checks a struct that is to be filled: only its `size` is read.
/// Errors: as CheckSize
template <typename T>
Result<void> CheckOutput(const T* caller, std::string_view name) {
  QUIRE_TRY(CheckSize(caller, kFieldEnds<T>.front(), sizeof(T), name));
  return {};
}

/// Fills the fields that a struct that CheckOutput has seen and this library both have. `size` and
/// what lies after these fields stay as they are.
template <typename T>
void WriteStruct(T* caller, T known) {
  static_assert(std::has_unique_object_representations_v<T>,
                "padding would hand what was on the stack to the caller: name it, as `reserved`");
  known.size = caller->size;
  std::memcpy(caller, &known, SharedBytes<T>(known.size));
}

/// Copies a text with its NUL to the caller's, whose length is told in any case; text_bytes 0 only
/// asks for that.
/// Errors: kInvalidArgument text_bytes is neither 0 nor enough, or a pointer is NULL
Result<void> WriteText(const std::string& from, char* text, size_t text_bytes, size_t* length);

/// A share in millionths, rounded up, for structs that are filled.
inline uint64_t MillionthsOf(float share) {
  return static_cast<uint64_t>(std::ceil(std::min(share, 1e6f) * 1e6));
}

/// A C text, or the empty one for NULL.
inline std::string Text(const char* text) { return text == nullptr ? "" : text; }

/// The keys that a struct of options names.
template <typename Options>
StoreKeys ToStoreKeys(const Options& asked) {
  constexpr size_t kKeyBytes = 32;
  StoreKeys keys = {.file = Text(asked.keys_file), .command = Text(asked.keys_command)};
  if (asked.key != nullptr) keys.key.assign(asked.key, asked.key + kKeyBytes);
  return keys;
}

}  // namespace quire::embed

#endif  // QUIRE_EMBED_BOUNDARY_H_
