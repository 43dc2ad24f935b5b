#include "sim/cache_streams.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "quire/attention.h"
#include "quire/block_ops.h"
#include "sim/cache_setup.h"

namespace quire::sim {
namespace {

constexpr uint32_t kBlock = 16;  // tokens
constexpr uint32_t kStepTokens = 8;

// Compares the keys of one piece with those of the model. Returns the difference; empty: none.
std::string Differ(Cache& cache, const StreamedContext::Piece& piece, uint32_t layer,
                   const cache::FakeModel& model, std::span<const TokenId> tokens) {
  const uint64_t begin = piece.splits.begin * kSplitTokens;
  const uint64_t end = piece.splits.end * kSplitTokens;
  const Stream& stream = model.GroupOf(layer).streams[0];
  BlockOps& ops = cache.options().ops == nullptr ? HostBlockOps() : *cache.options().ops;
  std::vector<float> have((end - begin) * stream.heads * stream.dim);
  for (uint64_t token = begin; token < end; token += kBlock) {
    ops.ReadRows(piece.key, piece.tables.sealed.BlockAt(0, token / kBlock), {.count = kBlock},
                 have.data() + (token - begin) * stream.dim,
                 static_cast<int64_t>((end - begin) * stream.dim));
  }
  cache::Must(ops.Synchronize());
  const auto want =
      cache::FakeModel::HeadsFirst(model.Rows(tokens.first(end), begin, layer, stream), stream);
  for (size_t at = 0; at < have.size(); ++at) {
    if (std::abs(have[at] - want[at]) <= 1) continue;  // as codecs round
    return fmt::format("wrong values in a streamed context, layer {}, behind token {}", layer,
                       begin);
  }
  return {};
}

}  // namespace

bool CanStream(const CacheOptions& options) {
  return CanMeet(options) && options.layout == ArenaLayout::kBlockMajor;
}

Streamed StreamThrough(Cache& cache, Plan plan, const cache::FakeModel& model,
                       std::span<const TokenId> tokens, Prng& prng) {
  auto opened =
      cache.Open(std::move(plan),
                 {.step_tokens = kStepTokens, .resident_tokens = 2 * kBlock, .query_heads = 1});
  if (!opened) return {};
  Sequence& sequence = **opened;
  Streamed done = {.tokens = sequence.length(), .resident = sequence.length()};
  while (done.tokens < tokens.size()) {
    const uint64_t to = std::min(tokens.size(), done.tokens + 1 + prng.NextBelow(kStepTokens));
    if (!model.Feed(sequence, tokens.first(to))) break;
    done.tokens = to;
  }
  StreamedContext* const streamed = sequence.streamed();
  if (streamed == nullptr) return done;
  done.front = streamed->tokens();
  for (uint32_t layer = 0; layer < model.geometry().layer_count() && done.wrong.empty(); ++layer) {
    for (uint64_t i = 0; i < streamed->PieceCount(layer); ++i) {
      const auto piece = streamed->Read(layer, i, nullptr);
      if (!piece) {
        done.unread = piece.error().message;
        return done;
      }
      done.wrong = Differ(cache, *piece, layer, model, tokens);
      if (!done.wrong.empty()) break;
      done.compared += (piece->splits.end - piece->splits.begin) * kSplitTokens;
    }
  }
  return done;
}

}  // namespace quire::sim
