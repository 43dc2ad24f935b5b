#include "ranks/libmpi.h"

#include "env/dynamic_library.h"

namespace quire::ranks {

Result<Libmpi> LoadLibmpi(const char* name) {
  QUIRE_ASSIGN(const DynamicLibrary library, DynamicLibrary::Load(name, "openmpi-bin"));
  Libmpi mpi{};
  QUIRE_TRY(library.Find("MPI_Abort", mpi.abort));
  QUIRE_TRY(library.Find("MPI_Cancel", mpi.cancel));
  QUIRE_TRY(library.Find("MPI_Comm_rank", mpi.comm_rank));
  QUIRE_TRY(library.Find("MPI_Comm_set_errhandler", mpi.comm_set_errhandler));
  QUIRE_TRY(library.Find("MPI_Comm_size", mpi.comm_size));
  QUIRE_TRY(library.Find("MPI_Error_string", mpi.error_string));
  QUIRE_TRY(library.Find("MPI_Finalize", mpi.finalize));
  QUIRE_TRY(library.Find("MPI_Get_count", mpi.get_count));
  QUIRE_TRY(library.Find("MPI_Init_thread", mpi.init_thread));
  QUIRE_TRY(library.Find("MPI_Irecv", mpi.irecv));
  QUIRE_TRY(library.Find("MPI_Isend", mpi.isend));
  QUIRE_TRY(library.Find("MPI_Request_free", mpi.request_free));
  QUIRE_TRY(library.Find("MPI_Test", mpi.test));
  // What the macros MPI_COMM_WORLD and so on stand for in Open MPI.
  QUIRE_TRY(library.Find("ompi_mpi_comm_world", mpi.world));
  QUIRE_TRY(library.Find("ompi_mpi_byte", mpi.byte));
  QUIRE_TRY(library.Find("ompi_mpi_errors_return", mpi.errors_return));
  return mpi;
}

}  // namespace quire::ranks
