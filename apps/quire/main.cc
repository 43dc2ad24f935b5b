// quire: the command line. Flags and printing only; every command is in its own file.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <sstream>

#include "apps/quire/command.h"
#include "apps/quire/output.h"
#include "base/version.h"

namespace quire::app {
namespace {

int Main(int argc, char** argv) {
  CLI::App program("Quire: the KV cache of LLM inference.", "quire");
  program.set_version_flag("--version", std::string(kVersion));
  program.require_subcommand(1);
  // A flag given twice: the last one counts, so that scripts can append.
  program.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  program.footer(
      "Start with 'quire demo'; 'quire COMMAND --help' explains each command.\n"
      "Exit codes: 0 ok, 1 failed check or output, 2 bad usage, 3 bad input, 4 out of a resource.");
  int exit = kOk;
  AddDemo(program, exit);
  AddGenerate(program, exit);
  AddEval(program, exit);
  AddPlan(program, exit);
  AddServe(program, exit);
  AddBench(program, exit);
  AddReplay(program, exit);
  AddSelftest(program, exit);
  AddStore(program, exit);
  AddSim(program, exit);
  AddInfo(program, exit);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11 has its own streams and numbers; ours are part of the contract.
    std::ostringstream help;
    std::ostringstream complaint;
    const int code = program.exit(error, help, complaint);
    fmt::print("{}", help.str());
    PrintError(complaint.str());
    return code == 0 ? kOk : kBadUsage;
  }
  return exit;
}

}  // namespace
}  // namespace quire::app

int main(int argc, char** argv) {
  quire::app::PrepareProcess();
  return quire::app::RunToExit([&] { return quire::app::Main(argc, argv); });
}
