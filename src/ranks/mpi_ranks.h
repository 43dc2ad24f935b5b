// The ranks that mpirun started.
#ifndef QUIRE_RANKS_MPI_RANKS_H_
#define QUIRE_RANKS_MPI_RANKS_H_

#include <memory>
#include <string>

#include "quire/error.h"
#include "ranks/transport.h"

namespace quire::ranks {

/// Threads:  one at a time
/// Lifetime: one in a process, ever. Its end waits for that of all others: after an error call
///           Abort instead
class MpiRanks {
 public:
  /// Errors: kInvalidArgument this process was not started by mpirun; kUnsupported Open MPI is not
  ///         installed; kIo it cannot be used
  static Result<std::unique_ptr<MpiRanks>> Start();
  virtual ~MpiRanks() = default;

  virtual Transport& transport() = 0;
  /// How MPI divides messages. It must be the same on all ranks: MPI does not check it.
  static std::string MessageSettings();
  /// Ends all ranks, those too that are stopped or hang, and this process with `exit_code`.
  [[noreturn]] virtual void Abort(int exit_code) = 0;
};

}  // namespace quire::ranks

#endif  // QUIRE_RANKS_MPI_RANKS_H_
