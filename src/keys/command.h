// Runs a command of the operator's with a few bytes for it to read, and takes what it says.
#ifndef QUIRE_KEYS_COMMAND_H_
#define QUIRE_KEYS_COMMAND_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "quire/error.h"

namespace quire::keys {

/// Runs `command` by /bin/sh, and returns what it wrote. Its standard error is this process's.
///
/// Units:   input at most 16 KiB, which the system keeps until the command reads it
/// Errors:  kIo it cannot be started, ends with another status than 0, or writes more than
///          output_bytes_max; kDeadline it did not end in time, and was killed
/// Threads: any
Result<std::string> RunCommand(const std::string& command, std::string_view input,
                               uint64_t output_bytes_max, uint64_t timeout_us);

}  // namespace quire::keys

#endif  // QUIRE_KEYS_COMMAND_H_
