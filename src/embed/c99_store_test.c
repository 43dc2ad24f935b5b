/* A store of blocks from a C99 program: compiled by the C compiler, pedantic, and run by
   store_test.cc. Says "ok", or what went wrong. */
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "quire/quire.h"

static quire_error error;

#define MUST(call) \
  if ((call) != QUIRE_OK) return #call
#define EXPECT(condition) \
  if (!(condition)) return #condition

const char* QuireC99Store(const char* directory);

static const char* Write(quire_store* store) {
  static unsigned char block[10000];
  quire_put_block puts[2] = {{"one", 3, NULL, 0}, {"two\0", 4, NULL, 0}};
  quire_block_result results[2];
  uint64_t batch = 0;
  size_t i;
  for (i = 0; i < sizeof block; ++i) block[i] = (unsigned char)(i * 7 + i / 256);
  puts[0].data = block;
  puts[0].data_bytes = sizeof block;
  MUST(quire_store_put(store, "model", puts, 2, &batch, &error));
  MUST(quire_store_wait(store, batch, QUIRE_FOREVER, results, 2, &error));
  EXPECT(results[0].outcome == QUIRE_BLOCK_OK && results[1].outcome == QUIRE_BLOCK_OK);
  MUST(quire_store_put(store, "model", puts, 1, &batch, &error));
  MUST(quire_store_wait(store, batch, QUIRE_FOREVER, results, 1, &error));
  EXPECT(results[0].outcome == QUIRE_BLOCK_PRESENT);
  return "ok";
}

static const char* Read(quire_store* store) {
  static unsigned char out[20000];
  unsigned char little[10];
  quire_get_block gets[4] = {{"one", 3, out, sizeof out},
                             {"two\0", 4, little, 10},
                             {"one", 3, little, 10},
                             {"two", 3, 0, 0}};
  quire_block_result results[4];
  struct pollfd readable;
  uint64_t batch = 0, ended = 0;
  size_t count = 0, i;
  readable.fd = quire_store_event_fd(store);
  readable.events = POLLIN;
  MUST(quire_store_get(store, "model", gets, 4, &batch, &error));
  while (ended == 0) {  // it may still be readable for a batch that was waited for
    EXPECT(poll(&readable, 1, 10000) == 1);
    MUST(quire_store_next(store, &ended, results, 4, &count, &error));
  }
  EXPECT(ended == batch && count == 4);
  EXPECT(results[0].outcome == QUIRE_BLOCK_OK && results[0].bytes == 10000);
  EXPECT(results[1].outcome == QUIRE_BLOCK_OK && results[1].bytes == 0);
  EXPECT(results[2].outcome == QUIRE_BLOCK_TOO_SMALL && results[2].bytes >= 10000);
  EXPECT(results[3].outcome == QUIRE_BLOCK_ABSENT);
  for (i = 0; i < 10000; ++i) EXPECT(out[i] == (unsigned char)(i * 7 + i / 256));
  MUST(quire_store_next(store, &ended, results, 4, &count, &error));
  EXPECT(ended == 0 && count == 0);
  EXPECT(strcmp(quire_block_outcome_name(results[2].outcome), "too_small") == 0);
  return "ok";
}

static const char* Remove(quire_store* store) {
  quire_block_key keys[2] = {{"one", 3}, {"other", 5}};
  quire_block_result results[2];
  quire_store_stats stats = {.size = sizeof stats};
  uint64_t batch = 0;
  MUST(quire_store_exists(store, "model", keys, 2, &batch, &error));
  MUST(quire_store_wait(store, batch, 0, results, 2, &error));
  EXPECT(results[0].outcome == QUIRE_BLOCK_OK && results[0].bytes >= 10000);
  EXPECT(results[1].outcome == QUIRE_BLOCK_ABSENT);
  MUST(quire_store_remove(store, "model", keys, 2, &batch, &error));
  MUST(quire_store_wait(store, batch, QUIRE_FOREVER, results, 2, &error));
  EXPECT(results[0].outcome == QUIRE_BLOCK_OK && results[1].outcome == QUIRE_BLOCK_ABSENT);
  MUST(quire_store_flush(store, &batch, &error));
  MUST(quire_store_wait(store, batch, QUIRE_FOREVER, NULL, 0, &error));
  MUST(quire_store_get_stats(store, &stats, &error));
  EXPECT(stats.blocks == 1 && stats.removed == 1 && stats.bytes <= stats.bytes_cap);
  return "ok";
}

const char* QuireC99Store(const char* directory) {
  quire_store_options options = {
      .size = sizeof options, .bytes_cap = 16 << 20, .commit_interval_us = 2000};
  const char* said;
  int round;
  options.directory = directory;
  for (round = 0; round < 2; ++round) {
    quire_store* store = NULL;
    quire_store* second = NULL;
    MUST(quire_store_open(&options, &store, &error));
    EXPECT(quire_store_open(&options, &second, &error) == QUIRE_BUSY && second == NULL);
    said = round == 0 ? Write(store) : "ok";
    if (strcmp(said, "ok") == 0) said = Read(store);
    if (strcmp(said, "ok") == 0 && round == 1) said = Remove(store);
    if (round == 0) {
      MUST(quire_store_close(store, &error));
      MUST(quire_store_close(store, NULL));
    }
    quire_store_free(store);
    if (strcmp(said, "ok") != 0) return said;
  }
  return "ok";
}
