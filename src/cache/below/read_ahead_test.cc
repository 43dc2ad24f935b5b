// Reading ahead, against a source that is cranked by hand.
#include "cache/below/read_ahead.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/prng.h"

namespace quire::cache {
namespace {

std::string Name(const ContextPiece& piece) {
  return std::to_string(piece.layer) + ":" + std::to_string(piece.first_block) + "+" +
         std::to_string(piece.block_count);
}

/// Pieces come when a test says so, or when they are waited for. Stops where a place is used
/// for two things at once.
class HandSource final : public PieceSource {
 public:
  void Begin(uint32_t place, const ContextPiece& piece) override {
    QUIRE_CHECK(!under_way_.contains(place));
    under_way_[place] = piece;
    begun.push_back(Name(piece));
    there_.erase(place);
  }
  bool IsDone(uint32_t place) override { return there_.contains(place); }
  Result<void> Await(uint32_t place) override {
    if (!IsDone(place)) {
      waited.push_back(Name(under_way_.at(place)));
      Come(place);
    }
    const ContextPiece piece = there_.at(place);
    if (std::ranges::count(failing, Name(piece)) > 0) return Fail(ErrorCode::kIo, Name(piece));
    return {};
  }
  void Cancel(uint32_t place) override {
    under_way_.erase(place);
    there_.erase(place);
    ++cancels;
  }
  void Come(uint32_t place) {
    there_[place] = under_way_.at(place);
    under_way_.erase(place);
  }
  /// All that are under way.
  void ComeAll() {
    while (!under_way_.empty()) Come(under_way_.begin()->first);
  }
  size_t under_way() const { return under_way_.size(); }
  const ContextPiece& At(uint32_t place) const { return there_.at(place); }

  std::vector<std::string> begun;
  std::vector<std::string> waited;
  std::vector<std::string> failing;
  uint32_t cancels = 0;

 private:
  std::map<uint32_t, ContextPiece> under_way_;
  std::map<uint32_t, ContextPiece> there_;
};

using Names = std::vector<std::string>;

TEST(ReadAhead, ReadsTheNextPiecesWhileOneIsInUse) {
  HandSource source;
  ReadAhead ahead(source, 3, {0, 1}, 4);
  ahead.SetBlocks(10);
  EXPECT_EQ(ahead.piece_count(), 3);
  EXPECT_EQ(source.begun, (Names{"0:0+4", "0:4+4", "0:8+2"}));  // before they are asked for
  source.ComeAll();
  ASSERT_TRUE(ahead.Take(ahead.PieceAt(0, 0)).has_value());
  EXPECT_EQ(source.begun.size(), 3) << "the place of the piece in use is not read into";
  ASSERT_TRUE(ahead.Take(ahead.PieceAt(0, 1)).has_value());
  EXPECT_EQ(source.begun.back(), "1:0+4") << "the next layer's first piece, before its attention";
  EXPECT_TRUE(source.waited.empty());
  ASSERT_TRUE(ahead.Take(ahead.PieceAt(0, 2)).has_value());
  ASSERT_TRUE(ahead.Take(ahead.PieceAt(1, 0)).has_value());
  EXPECT_EQ(source.waited, Names{"1:0+4"});
}

TEST(ReadAhead, TheLastLayerIsFollowedByTheFirst) {
  HandSource source;
  ReadAhead ahead(source, 2, {1, 3}, 4);
  ahead.SetBlocks(4);
  for (int step = 0; step < 3; ++step) {
    for (const uint32_t layer : {1u, 3u}) {
      const auto place = ahead.Take(ahead.PieceAt(layer, 0));
      ASSERT_TRUE(place.has_value());
      EXPECT_EQ(source.At(*place).layer, layer);
    }
  }
  EXPECT_EQ(source.cancels, 0);
  EXPECT_EQ(source.begun.size(), 6 + 1);  // each once, and one ahead
}

TEST(ReadAhead, AStepThatBeginsAnewIsReadAnew) {
  HandSource source;
  ReadAhead ahead(source, 3, {0, 1, 2}, 4);
  ahead.SetBlocks(12);
  ASSERT_TRUE(ahead.Take(ahead.PieceAt(0, 0)).has_value());
  ASSERT_TRUE(ahead.Take(ahead.PieceAt(0, 1)).has_value());
  const auto place = ahead.Take(ahead.PieceAt(0, 0));
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(Name(source.At(*place)), "0:0+4");
  EXPECT_GT(source.cancels, 0);
}

TEST(ReadAhead, AContextThatGrewIsCutAnew) {
  HandSource source;
  ReadAhead ahead(source, 3, {0}, 4);
  ahead.SetBlocks(6);
  source.ComeAll();
  ASSERT_TRUE(ahead.Take(ahead.PieceAt(0, 0)).has_value());
  ahead.SetBlocks(8);
  const auto place = ahead.Take(ahead.PieceAt(0, 1));
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(Name(source.At(*place)), "0:4+4");
  ahead.SetBlocks(0);
  EXPECT_EQ(source.under_way(), 0);
}

TEST(ReadAhead, WhatIsStillNextIsNotReadAgainWhenTheContextGrows) {
  HandSource source;
  ReadAhead ahead(source, 6, {0, 1}, 4);
  ahead.SetBlocks(8);
  EXPECT_EQ(source.begun, (Names{"0:0+4", "0:4+4", "1:0+4", "1:4+4"}));
  source.ComeAll();
  ahead.SetBlocks(9);  // after 0:4 comes 0:8 now, and not 1:0
  EXPECT_EQ(source.cancels, 2u);
  EXPECT_EQ(source.begun.size(), 8u);
  for (uint64_t i = 0; i < 3; ++i) {
    const auto place = ahead.Take(ahead.PieceAt(0, i));
    ASSERT_TRUE(place.has_value());
    EXPECT_EQ(source.At(*place), ahead.PieceAt(0, i));
  }
  EXPECT_EQ(source.waited.front(), "0:8+1");
}

TEST(ReadAhead, WhatDoesNotComeIsAnErrorAndNothingIsLeftUnderWay) {
  HandSource source;
  source.failing = {"0:4+4"};
  ReadAhead ahead(source, 3, {0, 1}, 4);
  ahead.SetBlocks(12);
  ASSERT_TRUE(ahead.Take(ahead.PieceAt(0, 0)).has_value());
  const auto failed = ahead.Take(ahead.PieceAt(0, 1));
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().message, "0:4+4");
  EXPECT_EQ(source.under_way(), 0);
  source.failing.clear();
  EXPECT_TRUE(ahead.Take(ahead.PieceAt(0, 1)).has_value()) << "asked again it may come";
}

TEST(ReadAhead, WhateverIsAskedForIsWhatComes) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Prng prng(seed);
    HandSource source;
    const auto places = static_cast<uint32_t>(2 + prng.NextBelow(12));
    const uint64_t piece_blocks = 1 + prng.NextBelow(4);
    std::vector<uint32_t> layers;
    for (uint32_t layer = 0; layer < 5; ++layer) {
      if (prng.NextBelow(3) > 0 || layer == 4) layers.push_back(layer);
    }
    ReadAhead ahead(source, places, layers, piece_blocks);
    uint64_t blocks = 0;
    for (int step = 0; step < 12; ++step) {
      blocks = prng.NextBelow(8) == 0 ? prng.NextBelow(12) : blocks + prng.NextBelow(4);
      ahead.SetBlocks(blocks);
      for (const uint32_t layer : layers) {
        if (prng.NextBelow(20) == 0) break;  // the step failed
        for (uint64_t i = 0; i < ahead.piece_count(); ++i) {
          if (prng.NextBelow(3) == 0) source.ComeAll();
          const ContextPiece wanted = ahead.PieceAt(layer, i);
          const auto place = ahead.Take(wanted);
          ASSERT_TRUE(place.has_value());
          ASSERT_EQ(source.At(*place), wanted) << "seed " << seed;
          ASSERT_LE(source.under_way(), places);
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::cache
