// Two kinds of id compared.
// expect: no match for .operator==
#include <quire/identity.h>

bool Same(quire::SlotId slot, quire::BlockId block) {
#ifdef QUIRE_MUST_NOT_COMPILE
  return slot == block;
#else
  return slot.number() == block.number();
#endif
}
