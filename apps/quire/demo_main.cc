// quire_demo: what `make demo` runs, the commands of the demo alone, so that a first build has
// neither the server nor benches nor simulators.
#include "apps/quire/command.h"

namespace quire::app {
namespace {

void AddCommands(Command& program) {
  AddDemo(program);
  AddGenerate(program);  // the demo's other processes
}

}  // namespace
}  // namespace quire::app

int main(int argc, char** argv) {
  return quire::app::RunQuire(quire::app::AddCommands, argc, argv);
}
