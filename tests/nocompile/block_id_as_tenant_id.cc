// A block id passed where a tenant id belongs.
// expect: could not convert|cannot convert|no matching function
#include <quire/identity.h>

void Charge(quire::TenantId tenant);

void Use() {
  Charge(quire::TenantId(1));
#ifdef QUIRE_MUST_NOT_COMPILE
  Charge(quire::BlockId(1));
#endif
}
