// A failure that nobody looks at.
// flags: -Werror=unused-result
// expect: ignoring return value
#include "base/json.h"

bool Use() {
#ifdef QUIRE_MUST_NOT_COMPILE
  quire::ParseJson("{}", "text");
#endif
  return quire::ParseJson("{}", "text").has_value();
}
