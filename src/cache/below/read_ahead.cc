#include "cache/below/read_ahead.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire::cache {

ReadAhead::ReadAhead(PieceSource& source, uint32_t places, std::vector<uint32_t> layers,
                     uint64_t piece_blocks)
    : source_(source), layers_(std::move(layers)), piece_blocks_(piece_blocks) {
  QUIRE_CHECK(places >= 2 && !layers_.empty() && piece_blocks > 0);
  for (uint32_t place = places; place > 0; --place) free_.push_back(place - 1);
}

ReadAhead::~ReadAhead() { CancelAll(); }

ContextPiece ReadAhead::PieceAt(uint32_t layer, uint64_t i) const {
  const uint64_t first = i * piece_blocks_;
  return {.layer = layer,
          .first_block = first,
          .block_count = std::min(piece_blocks_, blocks_ - first)};
}

void ReadAhead::SetBlocks(uint64_t blocks) {
  blocks_ = blocks;
  const auto stays = [&](size_t i) {
    const ContextPiece& piece = ahead_[i].piece;
    const uint64_t number = piece.first_block / piece_blocks_;
    if (number >= piece_count() || piece != PieceAt(piece.layer, number)) return false;
    return i == 0 || piece == After(ahead_[i - 1].piece);
  };
  size_t kept = 0;
  while (kept < ahead_.size() && stays(kept)) ++kept;
  CancelFrom(kept);
  Fill();
}

ContextPiece ReadAhead::After(const ContextPiece& piece) const {
  const uint64_t next = piece.first_block / piece_blocks_ + 1;
  if (next < piece_count()) return PieceAt(piece.layer, next);
  const auto layer = std::ranges::upper_bound(layers_, piece.layer);
  return PieceAt(layer == layers_.end() ? layers_.front() : *layer, 0);
}

void ReadAhead::Begin(const ContextPiece& piece) {
  const uint32_t place = free_.back();
  free_.pop_back();
  ahead_.push_back({.piece = piece, .place = place});
  source_.Begin(place, piece);
}

// In the order of use, into the places that are free. What is there already is not read again.
void ReadAhead::Fill() {
  if (blocks_ == 0) return;
  if (ahead_.empty()) {
    if (!has_taken_) Begin(PieceAt(layers_.front(), 0));
    if (ahead_.empty()) return;
  }
  while (!free_.empty()) {
    const ContextPiece next = After(ahead_.back().piece);
    const auto is_next = [&](const Ahead& ahead) { return ahead.piece == next; };
    if (std::ranges::any_of(ahead_, is_next)) return;  // the whole context fits into the ring
    Begin(next);
  }
}

// The place of a piece that is wanted now; what is before it is not.
uint32_t ReadAhead::First(const ContextPiece& piece) {
  if (std::exchange(has_taken_, false)) free_.push_back(taken_);
  if (ahead_.empty() || ahead_.front().piece != piece) {
    CancelAll();
    Begin(piece);
  }
  Fill();
  return ahead_.front().place;
}

bool ReadAhead::IsReady(const ContextPiece& piece) { return source_.IsDone(First(piece)); }

Result<uint32_t> ReadAhead::Take(const ContextPiece& piece) {
  const uint32_t place = First(piece);
  if (auto came = source_.Await(place); !came) {
    CancelAll();
    return std::unexpected(std::move(came).error());
  }
  ahead_.pop_front();
  taken_ = place;
  has_taken_ = true;
  return place;
}

void ReadAhead::CancelAll() {
  if (std::exchange(has_taken_, false)) free_.push_back(taken_);
  CancelFrom(0);
}

void ReadAhead::CancelFrom(size_t first) {
  while (ahead_.size() > first) {
    source_.Cancel(ahead_.back().place);
    free_.push_back(ahead_.back().place);
    ahead_.pop_back();
  }
}

}  // namespace quire::cache
