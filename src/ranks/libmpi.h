// Open MPI, loaded when ranks are asked for: with it come some forty libraries, threads and shared
// memory, which a program of one process neither loads nor has to install.
#ifndef QUIRE_RANKS_LIBMPI_H_
#define QUIRE_RANKS_LIBMPI_H_

#include <mpi.h>

#include "quire/error.h"

namespace quire::ranks {

/// The functions that are used, by their names without the prefix, and the constants, which are
/// addresses in the library.
struct Libmpi {
  decltype(&::MPI_Abort) abort;
  decltype(&::MPI_Cancel) cancel;
  decltype(&::MPI_Comm_rank) comm_rank;
  decltype(&::MPI_Comm_set_errhandler) comm_set_errhandler;
  decltype(&::MPI_Comm_size) comm_size;
  decltype(&::MPI_Error_string) error_string;
  decltype(&::MPI_Finalize) finalize;
  decltype(&::MPI_Get_count) get_count;
  decltype(&::MPI_Init_thread) init_thread;
  decltype(&::MPI_Irecv) irecv;
  decltype(&::MPI_Isend) isend;
  decltype(&::MPI_Request_free) request_free;
  decltype(&::MPI_Test) test;
  MPI_Comm world;
  MPI_Datatype byte;
  MPI_Errhandler errors_return;
};

/// Errors: kUnsupported the library or one of these is missing
Result<Libmpi> LoadLibmpi(const char* name = "libmpi.so.40");

}  // namespace quire::ranks

#endif  // QUIRE_RANKS_LIBMPI_H_
