#include "ranks/libmpi.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "ranks/mpi_ranks.h"

namespace quire::ranks {
namespace {

TEST(Libmpi, NamesThePackageOfALibraryThatIsMissing) {
  const auto missing = LoadLibmpi("libmpi_of_nothing.so.1");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(missing.error().message.find("openmpi-bin"), std::string::npos);
}

TEST(Libmpi, SaysHowRanksAreStarted) {
  ASSERT_EQ(std::getenv("OMPI_COMM_WORLD_SIZE"), nullptr);
  const auto ranks = MpiRanks::Start();
  ASSERT_FALSE(ranks);
  EXPECT_EQ(ranks.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(ranks.error().message.find("mpirun -n N quire"), std::string::npos);
}

}  // namespace
}  // namespace quire::ranks
