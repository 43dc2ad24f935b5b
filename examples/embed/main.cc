// An engine with its own model puts Quire under its attention: two sessions ask about one document,
// the second finds it, and both get the same bits.
#include <quire/cache.h>

#include <cstdio>
#include <cstring>
#include <vector>

using namespace quire;

constexpr uint32_t kLayers = 4, kKvHeads = 2, kQueryHeads = 8, kDim = 64;

// Stands for the engine: K, V or Q of one token in one layer.
std::vector<float> Project(TokenId token, uint32_t layer, uint32_t heads) {
  std::vector<float> row(heads * kDim);
  for (uint32_t i = 0; i < row.size(); ++i) {
    row[i] = static_cast<float>((token * 31 + i * 7 + layer * 13) % 97) / 97.0f - 0.5f;
  }
  return row;
}

// Computes what the cache lacks of `tokens`, token by token, and returns the last layer's attention
// at the last token.
Result<std::vector<float>> Compute(Sequence& sequence, AttentionBackend& attention,
                                   Executor& executor, std::span<const TokenId> tokens) {
  std::vector<float> out(kQueryHeads * kDim);
  for (uint64_t t = sequence.length(); t < tokens.size(); ++t) {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const auto key = Project(tokens[t], layer, kKvHeads);
      const auto value = Project(tokens[t] + 1, layer, kKvHeads);
      const auto query = Project(tokens[t] + 2, layer, kQueryHeads);
      QUIRE_TRY(sequence.Append(layer, {.key = {key.data(), Codec::kF32, kKvHeads * kDim, kDim},
                                        .value = {value.data(), Codec::kF32, kKvHeads * kDim, kDim},
                                        .tokens = 1}));
      const LayerBlocks blocks = sequence.Blocks(layer);  // in place: nothing is copied
      const AttentionTask task = {
          .queries = query.data(), .out = out.data(), .rows = 1, .first_position = t};
      QUIRE_TRY(attention.Attend(
          {.query_heads = kQueryHeads, .key = blocks.key, .value = blocks.value, .scale = 0.125f},
          blocks.tables, {&task, 1}, executor));
    }
    QUIRE_TRY(sequence.Commit(tokens.subspan(t, 1)));  // whole blocks can be found from here on
  }
  return out;
}

Result<int> Run() {
  QUIRE_ASSIGN(auto cache, Cache::Create({.geometry = Geometry::Uniform(kLayers, kKvHeads, kDim),
                                          .profile = NumericProfile::Uniform(Codec::kF16),
                                          .hot_bytes = 64'000'000}));
  QUIRE_ASSIGN(auto attention, MakeCpuAttention());
  const auto executor = MakeThreadPool(2);
  // Whatever decides K and V besides the tokens belongs into the identity.
  const Identity identity = {.weights = {1}, .position_encoding = "none", .domain = {.name = "me"}};
  std::vector<TokenId> prompt(100);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<TokenId>(i * i % 1000);
  std::vector<float> outs[2];
  for (auto& out : outs) {
    QUIRE_ASSIGN(Plan plan, cache->Acquire({.identity = &identity, .tokens = prompt}));
    std::printf("reused %3d of %d tokens, the rest is %s\n", int(plan.resident_tokens()),
                int(prompt.size()), MissReasonName(plan.reason()).data());
    QUIRE_ASSIGN(auto sequence, cache->Open(std::move(plan), {}));
    QUIRE_ASSIGN(out, Compute(*sequence, *attention, *executor, prompt));
  }
  const bool same = std::memcmp(outs[0].data(), outs[1].data(), outs[0].size() * 4) == 0;
  std::printf("the bits are %s\n", same ? "the same" : "different");
  return same ? 0 : 1;
}

int main() {
  const Result<int> result = Run();
  if (!result) std::fprintf(stderr, "embed: %s\n", result.error().message.c_str());
  return result.value_or(1);
}
