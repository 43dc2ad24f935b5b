/* examples/embed in C: two sessions ask about one document, the second finds it, and both get the
   same bits. */
#include <quire/quire.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kLayers = 4, kKvHeads = 2, kQueryHeads = 8, kDim = 64, kTokens = 100 };

static quire_error error;

static void Must(quire_code code) {
  if (code == QUIRE_OK) return;
  fprintf(stderr, "embed_c: %s: %s\n", quire_code_name(code), error.message);
  exit(1);
}

/* Stands for the engine: K, V or Q of one token in one layer. */
static void Project(int32_t token, int layer, int heads, float* row) {
  int i;
  for (i = 0; i < heads * kDim; ++i) {
    row[i] = (float)((token * 31 + i * 7 + layer * 13) % 97) / 97.0f - 0.5f;
  }
}

/* Computes what the cache lacks of the prompt; `out` gets the last layer's attention at the last
   token. */
static void Compute(quire_sequence* sequence, quire_attention* attention, const int32_t* tokens,
                    float* out) {
  float key[kKvHeads * kDim], value[kKvHeads * kDim], query[kQueryHeads * kDim];
  const quire_rows key_row = {key, QUIRE_F32, kKvHeads * kDim, kDim};
  const quire_rows value_row = {value, QUIRE_F32, kKvHeads * kDim, kDim};
  uint64_t t;
  int layer;
  for (t = quire_sequence_length(sequence); t < kTokens; ++t) {
    for (layer = 0; layer < kLayers; ++layer) {
      const quire_attend_task task = {sequence, query, out, 1, t};
      quire_attend_request request = {.size = sizeof request};
      Project(tokens[t], layer, kKvHeads, key);
      Project(tokens[t] + 1, layer, kKvHeads, value);
      Project(tokens[t] + 2, layer, kQueryHeads, query);
      Must(quire_sequence_append(sequence, (uint32_t)layer, &key_row, &value_row, 1, &error));
      request.layer = (uint32_t)layer;
      request.query_heads = kQueryHeads;
      request.task_count = 1;
      request.tasks = &task;
      Must(quire_attend(attention, &request, &error));
    }
    Must(quire_sequence_commit(sequence, tokens + t, 1, &error));
  }
}

int main(void) {
  const quire_cache_options options = {.size = sizeof options,
                                       .layers = kLayers,
                                       .kv_heads = kKvHeads,
                                       .head_dim = kDim,
                                       .codec = QUIRE_F16,
                                       .hot_bytes = 64000000};
  /* Whatever decides K and V besides the tokens belongs into the identity. */
  const quire_identity identity = {
      .size = sizeof identity, .weights = {1}, .position_encoding = "none", .domain = "me"};
  quire_acquire_request request = {.size = sizeof request, .identity = &identity};
  quire_cache* cache = NULL;
  quire_attention* attention = NULL;
  int32_t tokens[kTokens];
  static float outs[2][kQueryHeads * kDim];
  int i, same;
  for (i = 0; i < kTokens; ++i) tokens[i] = i * i % 1000;
  request.tokens = tokens;
  request.token_count = kTokens;
  Must(quire_cache_create(&options, &cache, &error));
  Must(quire_attention_create(NULL, &attention, &error));
  for (i = 0; i < 2; ++i) {
    quire_plan* plan = NULL;
    quire_sequence* sequence = NULL;
    Must(quire_acquire(cache, &request, &plan, &error));
    printf("reused %3d of %d tokens, the rest is %s\n", (int)quire_plan_resident_tokens(plan),
           kTokens, quire_reason_name(quire_plan_reason(plan)));
    Must(quire_open(plan, NULL, &sequence, &error));
    Compute(sequence, attention, tokens, outs[i]);
    quire_sequence_free(sequence);
  }
  same = memcmp(outs[0], outs[1], sizeof outs[0]) == 0;
  printf("the bits are %s\n", same ? "the same" : "different");
  quire_attention_free(attention);
  quire_cache_free(cache);
  return same ? 0 : 1;
}
