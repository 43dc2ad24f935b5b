// What every command of the program shares: exit codes, flags, output.
#ifndef QUIRE_APPS_COMMAND_H_
#define QUIRE_APPS_COMMAND_H_

#include <CLI/CLI.hpp>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "quire/error.h"

namespace quire::app {

/// Exit codes of the program: stable.
enum Exit : int { kOk = 0, kFailedCheck = 1, kBadUsage = 2, kBadInput = 3, kResource = 4 };

/// The exit code a failure ends with.
int ExitOf(ErrorCode code);

/// Prints `quire COMMAND: message` on stderr and returns the failure's exit code.
int Report(std::string_view command, const Error& error);

/// One JSON object as one line on stdout.
void PrintJson(const nlohmann::ordered_json& object);

/// Parses "4000000000", "4GB" (10^9), "4GiB" (2^30), "512MiB", ...
Result<uint64_t> ParseBytes(const std::string& text);
/// Bytes for people: "1.84 MB".
std::string FormatBytes(uint64_t bytes);

// Checks of a flag's text; what they refuse is bad usage.
CLI::Validator BytesValidator();        // ParseBytes
CLI::Validator CodecValidator();        // a codec of this build
CLI::Validator BlockTokensValidator();  // a power of two, 16 to 256
CLI::Validator TemperatureValidator();  // 0 to 100, not NaN

// One function per command: adds it to the program; when it was chosen, its exit code is in `exit`.
void AddDemo(CLI::App& program, int& exit);
void AddGenerate(CLI::App& program, int& exit);
void AddEval(CLI::App& program, int& exit);
void AddPlan(CLI::App& program, int& exit);
void AddServe(CLI::App& program, int& exit);
void AddBench(CLI::App& program, int& exit);
void AddReplay(CLI::App& program, int& exit);
void AddSelftest(CLI::App& program, int& exit);
void AddStore(CLI::App& program, int& exit);
void AddSim(CLI::App& program, int& exit);
void AddInfo(CLI::App& program, int& exit);

}  // namespace quire::app

#endif  // QUIRE_APPS_COMMAND_H_
