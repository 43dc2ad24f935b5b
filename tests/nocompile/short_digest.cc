// A digest too short to identify anything.
// expect: static assertion failed
#include "base/hash.h"

void Use() {
  quire::Blake2b<16> enough;
  enough.Update("text");
#ifdef QUIRE_MUST_NOT_COMPILE
  quire::Blake2b<8> too_short;
#endif
}
