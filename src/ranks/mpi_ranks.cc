#include "ranks/mpi_ranks.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

#include "ranks/libmpi.h"

namespace quire::ranks {
namespace {

Result<void> Check(const Libmpi& mpi, const char* what, int code) {
  if (code == MPI_SUCCESS) return {};
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  mpi.error_string(code, text.data(), &length);
  return Fail(ErrorCode::kIo, fmt::format("{}: {}", what, std::string_view(text.data(), length)));
}

constexpr const char* kEagerLimit = "OMPI_MCA_btl_tcp_eager_limit";

/// Open MPI sends larger messages over TCP piece by piece, in calls that test them. Up to here it
/// gives the system what the socket's buffer takes, and the system sends that while this rank
/// computes. Unless the user says otherwise (`mpirun --mca btl_tcp_eager_limit`).
void SendLargeMessagesAtOnce() { setenv(kEagerLimit, "4194304", /*overwrite=*/0); }

class MpiMessage final : public Message {
 public:
  /// `expected_bytes`: -1 of a message that is sent.
  MpiMessage(const Libmpi& mpi, MPI_Request request, int expected_bytes)
      : mpi_(mpi), request_(request), expected_bytes_(expected_bytes) {}
  ~MpiMessage() override {
    if (is_done_) return;
    mpi_.cancel(&request_);
    mpi_.request_free(&request_);
  }

  Result<bool> IsDone() override {
    int done = 0;
    MPI_Status status{};
    const int code = mpi_.test(&request_, &done, &status);
    is_done_ = code != MPI_SUCCESS || done != 0;
    QUIRE_TRY(Check(mpi_, "MPI_Test", code));
    if (!is_done_ || expected_bytes_ < 0) return is_done_;
    int bytes = 0;
    QUIRE_TRY(Check(mpi_, "MPI_Get_count", mpi_.get_count(&status, mpi_.byte, &bytes)));
    if (bytes == expected_bytes_) return true;
    return Fail(ErrorCode::kCorrupt,
                fmt::format("{} bytes came, {} were expected", bytes, expected_bytes_));
  }

 private:
  const Libmpi& mpi_;
  MPI_Request request_;
  const int expected_bytes_;
  bool is_done_ = false;
};

class MpiTransport final : public Transport {
 public:
  MpiTransport(const Libmpi& mpi, uint32_t rank, uint32_t size)
      : mpi_(mpi), rank_(rank), size_(size) {}

  uint32_t rank() const override { return rank_; }
  uint32_t size() const override { return size_; }

  Result<std::unique_ptr<Message>> Send(uint32_t to, Channel channel,
                                        std::span<const std::byte> bytes) override {
    QUIRE_ASSIGN(const int count, Count(bytes.size()));
    MPI_Request request = nullptr;
    QUIRE_TRY(Check(mpi_, "MPI_Isend",
                    mpi_.isend(bytes.data(), count, mpi_.byte, static_cast<int>(to),
                               static_cast<int>(channel), mpi_.world, &request)));
    return std::make_unique<MpiMessage>(mpi_, request, -1);
  }
  Result<std::unique_ptr<Message>> Receive(uint32_t from, Channel channel,
                                           std::span<std::byte> bytes) override {
    QUIRE_ASSIGN(const int count, Count(bytes.size()));
    MPI_Request request = nullptr;
    QUIRE_TRY(Check(mpi_, "MPI_Irecv",
                    mpi_.irecv(bytes.data(), count, mpi_.byte, static_cast<int>(from),
                               static_cast<int>(channel), mpi_.world, &request)));
    return std::make_unique<MpiMessage>(mpi_, request, count);
  }

 private:
  static Result<int> Count(uint64_t bytes) {
    if (bytes <= static_cast<uint64_t>(std::numeric_limits<int>::max())) {
      return static_cast<int>(bytes);
    }
    return Fail(
        ErrorCode::kTooLarge,
        fmt::format("a message of {} bytes: MPI takes 2 GiB at most; take smaller chunks", bytes));
  }

  const Libmpi& mpi_;
  const uint32_t rank_;
  const uint32_t size_;
};

class StartedRanks final : public MpiRanks {
 public:
  StartedRanks(const Libmpi& mpi, uint32_t rank, uint32_t size)
      : mpi_(mpi), transport_(mpi_, rank, size) {}
  ~StartedRanks() override { mpi_.finalize(); }

  Transport& transport() override { return transport_; }
  void Abort(int exit_code) override {
    mpi_.abort(mpi_.world, exit_code);
    std::_Exit(exit_code);
  }

 private:
  const Libmpi mpi_;
  MpiTransport transport_;
};

}  // namespace

std::string MpiRanks::MessageSettings() {
  const char* const limit = std::getenv(kEagerLimit);
  return fmt::format("{}={}", kEagerLimit, limit == nullptr ? "" : limit);
}

Result<std::unique_ptr<MpiRanks>> MpiRanks::Start() {
  // Without mpirun MPI would start a daemon for this one process.
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) {
    return Fail(ErrorCode::kInvalidArgument,
                "ranks: this process was not started by mpirun; start `mpirun -n N quire ...`");
  }
  SendLargeMessagesAtOnce();
  QUIRE_ASSIGN(const Libmpi mpi, LoadLibmpi());
  int given = 0;
  QUIRE_TRY(Check(mpi, "MPI_Init_thread",
                  mpi.init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &given)));
  QUIRE_TRY(
      Check(mpi, "MPI_Comm_set_errhandler", mpi.comm_set_errhandler(mpi.world, mpi.errors_return)));
  if (given < MPI_THREAD_SERIALIZED) {
    return Fail(ErrorCode::kUnsupported,
                fmt::format("ranks: MPI gives the thread level {}, {} is needed", given,
                            MPI_THREAD_SERIALIZED));
  }
  int rank = 0;
  int size = 0;
  QUIRE_TRY(Check(mpi, "MPI_Comm_rank", mpi.comm_rank(mpi.world, &rank)));
  QUIRE_TRY(Check(mpi, "MPI_Comm_size", mpi.comm_size(mpi.world, &size)));
  return std::make_unique<StartedRanks>(mpi, static_cast<uint32_t>(rank),
                                        static_cast<uint32_t>(size));
}

}  // namespace quire::ranks
