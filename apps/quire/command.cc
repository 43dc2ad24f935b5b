#include "apps/quire/command.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <limits>

#include "apps/quire/output.h"
#include "base/bits.h"
#include "base/version.h"
#include "quire/geometry.h"

namespace quire::app {

int ExitOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
    case ErrorCode::kCorrupt:
    case ErrorCode::kIo:
    case ErrorCode::kUnsupported: return kBadInput;
    case ErrorCode::kNoSpace:
    case ErrorCode::kBusy:
    case ErrorCode::kTooLarge:
    case ErrorCode::kDeadline: return kResource;
    case ErrorCode::kCancelled: return kFailedCheck;
  }
  return kFailedCheck;
}

int Report(std::string_view command, const Error& error) {
  PrintError(fmt::format("quire {}: {}: {}\n", command, ErrorCodeName(error.code), error.message));
  return ExitOf(error.code);
}

void PrintJson(const nlohmann::ordered_json& object) {
  // Text that a model made may end inside a character; the replacement keeps the output valid.
  const std::string text =
      object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  fmt::print("{}\n", text);
  FlushOutput();
}

void PrintObject(const nlohmann::ordered_json& object, bool as_json, int name_width) {
  if (as_json) return PrintJson(object);
  for (const auto& [name, value] : object.items()) {
    fmt::print("{:<{}} {}\n", name, name_width,
               value.is_string() ? value.get<std::string>() : value.dump());
  }
}

namespace {

struct Unit {
  std::string_view name;
  uint64_t bytes;
};

constexpr std::array<Unit, 10> kUnits = {{{"", 1},
                                          {"B", 1},
                                          {"KB", 1000},
                                          {"MB", 1000'000},
                                          {"GB", 1000'000'000},
                                          {"TB", 1000'000'000'000},
                                          {"KiB", uint64_t{1} << 10},
                                          {"MiB", uint64_t{1} << 20},
                                          {"GiB", uint64_t{1} << 30},
                                          {"TiB", uint64_t{1} << 40}}};

}  // namespace

Result<uint64_t> ParseBytes(const std::string& text) {
  uint64_t number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc()) {
    const std::string_view name(rest, text.data() + text.size());
    for (const Unit& unit : kUnits) {
      if (unit.name != name) continue;
      if (const auto bytes = CheckedMul(number, unit.bytes)) return *bytes;
    }
  }
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("'{}' is not a number of bytes; write 4000000000, 4GB or 4GiB", text));
}

std::string FormatBytes(uint64_t bytes) {
  constexpr std::array<std::string_view, 5> kNames = {"B", "KB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1000 && unit + 1 < kNames.size(); ++unit) value /= 1000;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kNames[unit]);
}

TextCheck BytesCheck() {
  return {"BYTES", [](const std::string& text) {
            const auto bytes = ParseBytes(text);
            return bytes ? std::string() : bytes.error().message;
          }};
}

TextCheck CodecCheck() {
  return {"CODEC", [](const std::string& text) {
            return ParseCodec(text)
                       ? std::string()
                       : fmt::format("'{}' is not a codec of this build; see 'quire info'", text);
          }};
}

TextCheck BlockTokensCheck() {
  return {"TOKENS", [](const std::string& text) {
            for (uint32_t n = kBlockTokensMin; n <= kBlockTokensMax; n *= 2) {
              if (text == std::to_string(n)) return std::string();
            }
            return fmt::format("'{}' is not a power of two from {} to {}", text, kBlockTokensMin,
                               kBlockTokensMax);
          }};
}

TextCheck TemperatureCheck() {
  return {"TEMPERATURE", [](const std::string& text) {
            double value = 0;
            const auto [rest, error] =
                std::from_chars(text.data(), text.data() + text.size(), value);
            const bool whole = error == std::errc() && rest == text.data() + text.size();
            return whole && value >= 0 && value <= 100
                       ? std::string()
                       : fmt::format("'{}' is not a temperature from 0 to 100", text);
          }};
}

void AddKeysFlags(Command& command, StoreKeys& keys) {
  command.Add({.name = "--keys",
               .value = &keys.file,
               .help =
                   "Encrypt the store, or open an encrypted one, with the 32 bytes in this file "
                   "(mode 0600)"});
  command.Add({.name = "--keys-command",
               .value = &keys.command,
               .help = "The same with a command that wraps and unwraps keys, for a key management "
                       "service (docs/encryption.md)",
               .excludes = "--keys"});
}

int RunQuire(const std::function<void(Command& program)>& add_commands, int argc, char** argv) {
  PrepareProcess();
  return RunToExit([&] {
    return RunProgram({.name = "quire",
                       .summary = "Quire: the KV cache of LLM inference.",
                       .version = std::string(kVersion),
                       .footer = "Start with 'quire demo'; 'quire COMMAND --help' explains each "
                                 "command.\nExit codes: 0 ok, 1 failed check or output, 2 bad "
                                 "usage, 3 bad input, 4 out of a resource.",
                       .add_commands = add_commands},
                      argc, argv);
  });
}

}  // namespace quire::app
