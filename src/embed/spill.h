// A C function as the cache's spill.
#ifndef QUIRE_EMBED_SPILL_H_
#define QUIRE_EMBED_SPILL_H_

#include "quire/cache.h"
#include "quire/quire.h"

namespace quire::embed {

/// Threads: any, as the function
class FunctionSpill final : public Spill {
 public:
  FunctionSpill(quire_spill_store store, void* context) : store_(store), context_(context) {}

  Result<void> Store(const LeavingBlock& block) override;

 private:
  const quire_spill_store store_;
  void* const context_;
};

}  // namespace quire::embed

#endif  // QUIRE_EMBED_SPILL_H_
