#include "apps/quire/flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <sstream>
#include <type_traits>

#include "apps/quire/command.h"
#include "apps/quire/output.h"

namespace quire::app {
namespace {

template <typename T>
constexpr bool kIsList = false;
template <typename T>
constexpr bool kIsList<std::vector<T>> = true;

// The parser would take "-3" for the number that 64 bits make of it.
std::string NoSign(std::string& text) {
  return text.starts_with('-') ? "'" + text + "' is below 0" : std::string();
}

template <typename T, typename... Types>
constexpr bool kIsOneOf = (std::is_same_v<T, Types> || ...);

CLI::Option* AddValue(CLI::App& to, const Flag& flag) {
  return std::visit(
      [&](auto* value) {
        using Value = std::remove_pointer_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, bool>) return to.add_flag(flag.name, *value, flag.help);
        CLI::Option* const option = to.add_option(flag.name, *value, flag.help);
        if constexpr (kIsList<Value>) {
          option->delimiter(',')->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
        }
        if constexpr (kIsOneOf<Value, uint32_t, uint64_t, std::optional<uint64_t>,
                               std::vector<uint32_t>, std::vector<uint64_t>>) {
          option->check(CLI::Validator(NoSign, ""));
        }
        return option;
      },
      flag.value);
}

void AddCheck(CLI::Option& option, const FlagCheck& check) {
  std::visit(
      [&]<typename Check>(const Check& what) {
        if constexpr (std::is_same_v<Check, OneOf>) {
          option.check(CLI::IsMember(what));
        } else if constexpr (std::is_same_v<Check, TextCheck>) {
          option.check(CLI::Validator(
              [problem = what.problem](std::string& text) { return problem(text); }, what.name));
        } else if constexpr (!std::is_same_v<Check, std::monostate>) {
          option.check(CLI::Range(what.least, what.most));
        }
      },
      check);
}

CLI::Option* AddTo(CLI::App& to, const Flag& flag) {
  CLI::Option* const option = AddValue(to, flag);
  AddCheck(*option, flag.check);
  option->required(flag.required)->group(flag.group);
  if (flag.shows_default) option->capture_default_str();
  if (!flag.needs.empty()) option->needs(to.get_option(flag.needs));
  if (!flag.excludes.empty()) option->excludes(to.get_option(flag.excludes));
  return option;
}

}  // namespace

void Command::Add(const Flag& flag) { AddTo(*parser_, flag); }

void Command::AddOneOf(const std::string& group, const std::string& help,
                       const std::vector<Flag>& flags) {
  CLI::App* const options = parser_->add_option_group(group, help);
  for (const Flag& flag : flags) AddTo(*options, flag);
  options->require_option(1);
}

Command Command::AddCommand(const std::string& name, const std::string& help) {
  return {*parser_->add_subcommand(name, help), *exit_};
}

void Command::NeedsCommand() { parser_->require_subcommand(1); }

void Command::Run(std::function<int()> run) {
  parser_->callback([exit = exit_, run = std::move(run)] { *exit = run(); });
}

bool Command::Has(const std::string& flag) const {
  return parser_->get_option_no_throw(flag) != nullptr;
}

bool Command::IsGiven(const std::string& flag) const { return parser_->count(flag) > 0; }

std::string Command::Set(const std::string& flag, const std::string& text) {
  try {
    CLI::Option* const option = parser_->get_option(flag);
    option->add_result(text);
    option->run_callback();
  } catch (const CLI::Error& error) {
    return error.what();
  }
  return {};
}

int RunProgram(const Program& program, int argc, char** argv) {
  CLI::App parser(program.summary, program.name);
  parser.set_version_flag("--version", program.version);
  parser.require_subcommand(1);
  parser.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  parser.footer(program.footer);
  int exit = kOk;
  Command commands(parser, exit);
  program.add_commands(commands);
  try {
    parser.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // The parser has its own streams and numbers; ours are part of the contract.
    std::ostringstream help;
    std::ostringstream complaint;
    const int code = parser.exit(error, help, complaint);
    fmt::print("{}", help.str());
    PrintError(complaint.str());
    return code == 0 ? kOk : kBadUsage;
  }
  return exit;
}

}  // namespace quire::app
