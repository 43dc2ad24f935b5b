// A failure that the caller ignores.
// flags: -Werror=unused-result
// expect: ignoring return value
#include "base/json.h"

bool Use() {
#ifdef QUIRE_MUST_NOT_COMPILE
  quire::ParseJson("{}", "text");
#endif
  return quire::ParseJson("{}", "text").has_value();
}
