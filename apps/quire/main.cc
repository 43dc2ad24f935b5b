// quire: the command line. Flags and printing only; every command is in its own file.
#include "apps/quire/command.h"

namespace quire::app {
namespace {

void AddCommands(Command& program) {
  AddDemo(program);
  AddGenerate(program);
  AddEval(program);
  AddPlan(program);
  AddServe(program);
  AddBench(program);
  AddReplay(program);
  AddSelftest(program);
  AddStore(program);
  AddSim(program);
  AddInfo(program);
}

}  // namespace
}  // namespace quire::app

int main(int argc, char** argv) {
  return quire::app::RunQuire(quire::app::AddCommands, argc, argv);
}
