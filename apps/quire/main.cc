// quire: the command line. Flags and printing only; every command is in its own file.
#include <CLI/CLI.hpp>

#include "apps/quire/command.h"
#include "base/version.h"

int main(int argc, char** argv) {
  using namespace quire::app;
  CLI::App program("Quire: the KV cache of LLM inference.", "quire");
  program.set_version_flag("--version", std::string(quire::kVersion));
  program.require_subcommand(1);
  // A flag given twice: the last one counts, so that scripts can append.
  program.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  program.footer(
      "Start with 'quire demo'; 'quire COMMAND --help' explains each command.\n"
      "Exit codes: 0 ok, 1 failed check, 2 bad usage, 3 bad input, 4 out of a resource.");
  int exit = kOk;
  AddDemo(program, exit);
  AddGenerate(program, exit);
  AddEval(program, exit);
  AddPlan(program, exit);
  AddBench(program, exit);
  AddReplay(program, exit);
  AddSelftest(program, exit);
  AddInfo(program, exit);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11 has its own numbers; ours are part of the contract.
    return program.exit(error) == 0 ? kOk : kBadUsage;
  }
  return exit;
}
