// The command line as tables: what a command takes, and where each value goes. flags.cc alone reads
// the parser's headers, which cost seconds in every file that includes them.
#ifndef QUIRE_APPS_FLAGS_H_
#define QUIRE_APPS_FLAGS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace CLI {
class App;
}

namespace quire::app {

/// Where a value goes, and with that what text is one. A vector takes words with commas between
/// them; a bool takes none: it becomes true, or false under a name that begins with "!".
using FlagValue =
    std::variant<bool*, std::string*, uint32_t*, uint64_t*, float*, double*, std::optional<float>*,
                 std::optional<uint64_t>*, std::vector<uint32_t>*, std::vector<uint64_t>*,
                 std::vector<std::string>*>;

/// Both ends included. The type is the one that the help names.
template <typename T>
struct Between {
  T least;
  T most;
};

using OneOf = std::vector<std::string>;

struct TextCheck {
  std::string name;  // in the help: BYTES
  /// What is wrong with the text; empty: nothing.
  std::function<std::string(const std::string& text)> problem;
};

/// What a value must be besides; what is refused is bad usage.
using FlagCheck = std::variant<std::monostate, Between<int>, Between<uint32_t>, Between<uint64_t>,
                               Between<double>, OneOf, TextCheck>;

struct Flag {
  std::string name;  // without dashes: a positional
  FlagValue value;
  std::string help{};
  FlagCheck check{};
  bool required = false;
  bool shows_default = false;     // in the help: what `value` is now
  std::string group = "Options";  // headline in the help; empty: the help does not have it
  std::string needs{};            // a flag that was added before
  std::string excludes{};         // likewise
};

/// A command of the program, while its flags are added and when it runs. Copies are the same
/// command.
class Command {
 public:
  Command(CLI::App& parser, int& exit) : parser_(&parser), exit_(&exit) {}

  void Add(const Flag& flag);
  /// Flags of which exactly one must be given.
  void AddOneOf(const std::string& group, const std::string& help, const std::vector<Flag>& flags);
  Command AddCommand(const std::string& name, const std::string& help);
  /// One of its commands must be named.
  void NeedsCommand();
  /// What runs when it was chosen, and gives the exit code.
  void Run(std::function<int()> run);

  bool Has(const std::string& flag) const;
  bool IsGiven(const std::string& flag) const;
  /// Gives the flag a value, checked as on the command line. Returns what is wrong; empty: nothing.
  std::string Set(const std::string& flag, const std::string& text);

 private:
  CLI::App* parser_;
  int* exit_;
};

struct Program {
  std::string name;
  std::string summary;
  std::string version;
  std::string footer;
  std::function<void(Command& program)> add_commands;
};

/// Parses the command line and runs what it names. Returns the exit code, which is kBadUsage where
/// the line is refused. A flag given twice: the last one counts, so that scripts can append.
int RunProgram(const Program& program, int argc, char** argv);

}  // namespace quire::app

#endif  // QUIRE_APPS_FLAGS_H_
