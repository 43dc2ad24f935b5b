// What becomes of the program when its output cannot be written, and of whatever else is thrown.
#ifndef QUIRE_APPS_OUTPUT_H_
#define QUIRE_APPS_OUTPUT_H_

#include <functional>
#include <string_view>

namespace quire::app {

/// To be called once, first. A reader of stdout that goes away becomes a failed write and no
/// signal; no file that is opened later becomes a stream that the caller closed; what a thread
/// throws ends the program as RunToExit would.
void PrepareProcess();

/// Runs the program and returns its exit code. Whatever is thrown ends as one line on stderr and an
/// exit code: 1 where stdout could not be written, 4 where memory or threads ran out. A program
/// that ends well has also got rid of everything it printed; otherwise it did not end well.
int RunToExit(const std::function<int()>& program);

/// Writes to stderr what it can; a stderr that takes nothing changes nothing.
void PrintError(std::string_view text);

/// Hands what was printed so far to whoever reads it.
///
/// Errors: throws std::system_error, which RunToExit catches
void FlushOutput();

}  // namespace quire::app

#endif  // QUIRE_APPS_OUTPUT_H_
