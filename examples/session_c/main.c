/* A conversation that goes on after a restart, in C.
 *
 *   session_c MODEL STORE        begins one, says its name, and asks
 *   session_c MODEL STORE NAME   goes on with it
 */
#include <stdio.h>
#include <stdlib.h>

#include "quire/engine.h"

static quire_error error;

static void check(quire_code code) {
  if (code == QUIRE_OK) return;
  fprintf(stderr, "%s\n", error.message);
  exit(1);
}

/* Feeds a text and prints the answer as it comes. */
static void ask(quire_session* session, const char* text) {
  quire_turn_options turn = {0};
  quire_event event = {0};
  turn.size = sizeof turn;
  turn.text = text;
  turn.max_tokens = 24;
  event.size = sizeof event;
  check(quire_session_begin(session, &turn, &error));
  printf("%s[", text);
  do {
    check(quire_session_next(session, &event, &error));
    fputs(event.text, stdout);
  } while (event.kind != QUIRE_EVENT_DONE);
  printf("]\n%llu of %llu tokens were not computed\n", (unsigned long long)event.reused_tokens,
         (unsigned long long)event.prompt_tokens);
}

int main(int count, char** arguments) {
  quire_engine_options options = {0};
  quire_session_options sampling = {0};
  quire_engine* engine = NULL;
  quire_session* session = NULL;
  char name[65];
  size_t length = 0;
  if (count < 3) return 2;
  options.size = sizeof options;
  options.model = arguments[1];
  options.store = arguments[2];
  options.hot_bytes = 64 << 20;
  check(quire_engine_open(&options, &engine, &error));
  if (count > 3) {
    check(quire_session_reopen(engine, arguments[3], &session, &error));
  } else {
    sampling.size = sizeof sampling;
    sampling.temperature = 0.8f;
    sampling.seed = 1;
    check(quire_session_open(engine, &sampling, &session, &error));
  }
  check(quire_session_name(session, name, sizeof name, &length, &error));
  printf("session %s\n", name);
  ask(session, count > 3 ? "And then she said " : "It is a truth universally acknowledged, ");
  quire_session_free(session); /* it stays in the store; quire_session_end would remove it */
  quire_engine_free(engine);
  return 0;
}
