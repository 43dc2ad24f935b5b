// A bare number passed where a block id belongs.
// expect: could not convert
#include <quire/identity.h>

void Pin(quire::BlockId block);

void Use() {
  Pin(quire::BlockId(7));
#ifdef QUIRE_MUST_NOT_COMPILE
  Pin(7);
#endif
}
