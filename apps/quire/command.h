// What every command of the program shares: exit codes, flags, output.
#ifndef QUIRE_APPS_COMMAND_H_
#define QUIRE_APPS_COMMAND_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "apps/quire/flags.h"
#include "quire/error.h"
#include "quire/store.h"

namespace quire::app {

/// Exit codes of the program: stable.
enum Exit : int { kOk = 0, kFailedCheck = 1, kBadUsage = 2, kBadInput = 3, kResource = 4 };

/// The exit code a failure ends with.
int ExitOf(ErrorCode code);

/// Prints `quire COMMAND: message` on stderr and returns the failure's exit code.
int Report(std::string_view command, const Error& error);

/// One JSON object as one line on stdout.
void PrintJson(const nlohmann::ordered_json& object);
/// The same, or for people a line of each member's name and value.
void PrintObject(const nlohmann::ordered_json& object, bool as_json, int name_width = 16);

/// Parses "4000000000", "4GB" (10^9), "4GiB" (2^30), "512MiB", ...
Result<uint64_t> ParseBytes(const std::string& text);
/// Bytes for people: "1.84 MB".
std::string FormatBytes(uint64_t bytes);

TextCheck BytesCheck();        // ParseBytes
TextCheck CodecCheck();        // a codec of this build
TextCheck BlockTokensCheck();  // a power of two, 16 to 256
TextCheck TemperatureCheck();  // 0 to 100, not NaN

/// --keys and --keys-command.
void AddKeysFlags(Command& command, StoreKeys& keys);

// One function per command: adds it to the program.
void AddDemo(Command& program);
void AddGenerate(Command& program);
void AddEval(Command& program);
void AddPlan(Command& program);
void AddServe(Command& program);
void AddBench(Command& program);
void AddReplay(Command& program);
void AddSelftest(Command& program);
void AddStore(Command& program);
void AddStoreServe(Command& store);  // of its commands, those of stores that are served
void AddSim(Command& program);
void AddInfo(Command& program);

/// The whole of main(): a process of these commands, prepared and run to its exit code.
int RunQuire(const std::function<void(Command& program)>& add_commands, int argc, char** argv);

}  // namespace quire::app

#endif  // QUIRE_APPS_COMMAND_H_
