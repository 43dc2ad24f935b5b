// Pieces of a context that does not fit into memory, read in the order in which layers attend to
// them, into a ring of a few places, ahead of their use.
#ifndef QUIRE_CACHE_BELOW_READ_AHEAD_H_
#define QUIRE_CACHE_BELOW_READ_AHEAD_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "quire/error.h"

namespace quire::cache {

/// Consecutive blocks of one layer.
struct ContextPiece {
  uint32_t layer = 0;
  uint64_t first_block = 0;
  uint64_t block_count = 0;

  bool operator==(const ContextPiece&) const = default;
};

/// What brings pieces to places. Of one place one piece at a time.
class PieceSource {
 public:
  virtual ~PieceSource() = default;
  /// Begins to read. What cannot be begun, Await says.
  virtual void Begin(uint32_t place, const ContextPiece& piece) = 0;
  /// Whether it has ended.
  virtual bool IsDone(uint32_t place) = 0;
  /// Returns when it has ended.
  /// Errors: it did not come
  virtual Result<void> Await(uint32_t place) = 0;
  /// When it returns, nothing of the place is written any more.
  virtual void Cancel(uint32_t place) = 0;
};

/// The ring. Every layer reads all pieces in order, then the next layer does, and after the last
/// one the first again, for the next step: so the first piece of a layer comes while the products
/// before its attention are computed. A caller that takes another piece than the next one (a step
/// that was begun anew, a context that grew) costs a wait and nothing else.
///
/// Threads:  one at a time
/// Lifetime: the source must outlive it
class ReadAhead {
 public:
  /// `layers` ascend. At least two places: one is read while another is attended to.
  ReadAhead(PieceSource& source, uint32_t places, std::vector<uint32_t> layers,
            uint64_t piece_blocks);
  /// Cancels what is under way.
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// From now on the first so many blocks are read, in pieces of piece_blocks, the last of which
  /// may be shorter. Begins with the first ones; what is ahead and comes next then too is kept.
  void SetBlocks(uint64_t blocks);
  uint64_t blocks() const { return blocks_; }
  uint64_t piece_count() const { return (blocks_ + piece_blocks_ - 1) / piece_blocks_; }
  /// Piece `i` of a layer, i < piece_count().
  ContextPiece PieceAt(uint32_t layer, uint64_t i) const;

  /// Waits for a piece and returns its place, which is the caller's until the next call. The place
  /// of the call before is read into again.
  ///
  /// Errors: as PieceSource::Await. Everything under way is cancelled then
  Result<uint32_t> Take(const ContextPiece& piece);
  /// Whether Take of this piece would return at once; begins to read it. The place of the last call
  /// of Take is read into again.
  bool IsReady(const ContextPiece& piece);

  void CancelAll();

 private:
  struct Ahead {
    ContextPiece piece{};
    uint32_t place = 0;
  };

  ContextPiece After(const ContextPiece& piece) const;
  void Begin(const ContextPiece& piece);
  void Fill();
  /// Of what is ahead, all from the `first`th on.
  void CancelFrom(size_t first);
  uint32_t First(const ContextPiece& piece);

  PieceSource& source_;
  const std::vector<uint32_t> layers_;
  const uint64_t piece_blocks_;
  uint64_t blocks_ = 0;
  std::vector<uint32_t> free_;  // places
  std::deque<Ahead> ahead_{};   // under way or there, in order of use
  bool has_taken_ = false;
  uint32_t taken_ = 0;  // the caller's place
};

}  // namespace quire::cache

#endif  // QUIRE_CACHE_BELOW_READ_AHEAD_H_
