/* The C interface from a C99 program: compiled by the C compiler, pedantic, and run by
   life_test.cc. Says "ok", or what went wrong. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "quire/dlpack.h"
#include "quire/quire.h"

enum { kLayers = 2, kHeads = 2, kDim = 4, kBlock = 16, kTokens = 40, kQueryHeads = 4 };

static quire_error error;

#define MUST(call) \
  if ((call) != QUIRE_OK) return #call
#define EXPECT(condition) \
  if (!(condition)) return #condition

const char* QuireC99Life(void);

/* K and V of a token are whole numbers that f16 stores exactly. */
static void Compute(uint32_t layer, int32_t token, float* key, float* value) {
  int i;
  for (i = 0; i < kHeads * kDim; ++i) {
    key[i] = (float)((token * 7 + i * 3 + (int)layer) % 61) - 30.0f;
    value[i] = (float)((token * 5 + i * 11 + (int)layer) % 53) - 26.0f;
  }
}

static quire_code Feed(quire_sequence* sequence, const int32_t* tokens, uint32_t count) {
  float key[kTokens][kHeads * kDim];
  float value[kTokens][kHeads * kDim];
  quire_rows key_rows = {NULL, QUIRE_F32, kHeads * kDim, kDim};
  quire_rows value_rows = {NULL, QUIRE_F32, kHeads * kDim, kDim};
  const uint32_t begin = (uint32_t)quire_sequence_length(sequence);
  uint32_t layer, t;
  key_rows.data = key;
  value_rows.data = value;
  for (layer = 0; layer < kLayers; ++layer) {
    quire_code code;
    for (t = begin; t < count; ++t) Compute(layer, tokens[t], key[t - begin], value[t - begin]);
    code = quire_sequence_append(sequence, layer, &key_rows, &value_rows, count - begin, &error);
    if (code != QUIRE_OK) return code;
  }
  return quire_sequence_commit(sequence, tokens + begin, count - begin, &error);
}

static const char* Check(quire_cache* cache, quire_sequence* sequence, const int32_t* tokens) {
  float out[kHeads][kTokens][kDim];
  float key[kHeads * kDim];
  float value[kHeads * kDim];
  quire_cache_stats stats = {.size = sizeof stats};
  quire_view* view = NULL;
  quire_tensor tensor = {.size = sizeof tensor};
  struct DLManagedTensorVersioned* shared = NULL;
  int t, h;
  MUST(quire_sequence_gather(sequence, 1, QUIRE_VALUE, 0, kTokens, &out[0][0][0],
                             sizeof out / sizeof(float), &error));
  for (t = 0; t < kTokens; ++t) {
    Compute(1, tokens[t], key, value);
    for (h = 0; h < kHeads; ++h) EXPECT(memcmp(out[h][t], value + h * kDim, sizeof out[h][t]) == 0);
  }
  MUST(quire_cache_get_stats(cache, &stats, &error));
  EXPECT(stats.hit_tokens == 2 * kBlock);
  MUST(quire_view_open(sequence, 0, QUIRE_KEY, &view, &error));
  EXPECT(quire_view_tokens(view) == kTokens && quire_view_block_count(view) == 3);
  MUST(quire_view_tensor(view, 2, &tensor, &error));
  EXPECT(tensor.rank == 3 && tensor.shape[0] == kHeads && tensor.shape[1] == kTokens - 2 * kBlock &&
         tensor.shape[2] == kDim && tensor.dtype == QUIRE_F16 && tensor.strides[1] == 1);
  MUST(quire_view_dlpack(view, 0, &shared, &error));
  quire_view_free(view);
  EXPECT(shared->version.major == 1 && shared->flags == DLPACK_FLAG_BITMASK_READ_ONLY);
  EXPECT(shared->dl_tensor.ndim == 3 && shared->dl_tensor.dtype.bits == 16);
  shared->deleter(shared);
  return "ok";
}

static const char* Attend(quire_sequence* sequence) {
  float queries[kQueryHeads * kDim] = {0};
  float out[kQueryHeads * kDim];
  quire_attend_task task = {sequence, NULL, NULL, 1, kTokens - 1};
  quire_attend_request request = {.size = sizeof request, .query_heads = kQueryHeads};
  quire_attention* attention = NULL;
  float mean[kHeads * kDim];
  int i;
  memset(out, 0, sizeof out);
  task.queries = queries;
  task.out = out;
  request.task_count = 1;
  request.tasks = &task;
  MUST(quire_attention_create(NULL, &attention, &error));
  MUST(quire_attend(attention, &request, &error));
  quire_attention_free(attention);
  /* A query of zeros weighs every token alike. */
  memset(mean, 0, sizeof mean);
  for (i = 0; i < kTokens; ++i) {
    float key[kHeads * kDim], value[kHeads * kDim];
    int j;
    Compute(0, 100 + i, key, value);
    for (j = 0; j < kHeads * kDim; ++j) mean[j] += value[j] / kTokens;
  }
  for (i = 0; i < kQueryHeads * kDim; ++i) {
    const float difference = out[i] - mean[i / kDim / (kQueryHeads / kHeads) * kDim + i % kDim];
    EXPECT(difference < 1e-4f && difference > -1e-4f);
  }
  return "ok";
}

static const char* Run(quire_cache* cache) {
  quire_identity identity = {.size = sizeof identity};
  quire_acquire_request request = {.size = sizeof request};
  quire_sequence_options options = {.size = sizeof options, .reserve_tokens = 2 * kTokens};
  quire_plan* plan = NULL;
  quire_sequence* sequence = NULL;
  int32_t tokens[kTokens];
  const char* said = "ok";
  int i;
  for (i = 0; i < kTokens; ++i) tokens[i] = 100 + i;
  identity.position_encoding = "none";
  request.identity = &identity;
  request.tokens = tokens;
  request.token_count = kTokens;
  for (i = 0; i < 2; ++i) {
    MUST(quire_acquire(cache, &request, &plan, &error));
    EXPECT(quire_plan_resident_tokens(plan) == (i == 0 ? 0u : 2u * kBlock));
    EXPECT(quire_plan_reason(plan) == (i == 0 ? QUIRE_NEVER_SEEN : QUIRE_PARTIAL_BLOCK));
    MUST(quire_open(plan, &options, &sequence, &error));
    MUST(Feed(sequence, tokens, kTokens));
    if (i == 1) said = Check(cache, sequence, tokens);
    if (i == 1 && strcmp(said, "ok") == 0) said = Attend(sequence);
    quire_sequence_free(sequence);
  }
  return said;
}

const char* QuireC99Life(void) {
  quire_cache_options options = {.size = sizeof options,
                                 .layers = kLayers,
                                 .kv_heads = kHeads,
                                 .head_dim = kDim,
                                 .hot_bytes = 1 << 20};
  quire_cache* cache = NULL;
  const char* said;
  MUST(quire_cache_create(&options, &cache, &error));
  EXPECT(error.code == QUIRE_OK && error.message[0] == '\0');
  said = Run(cache);
  quire_cache_free(cache);
  return said;
}
