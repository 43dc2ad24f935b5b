// A cache whose sequences fail when a test says so.
#ifndef QUIRE_SERVE_FAULTY_CACHE_H_
#define QUIRE_SERVE_FAULTY_CACHE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "quire/cache.h"
#include "registry/forwarding_cache.h"

namespace quire::serve {

/// What goes wrong, and what was asked. An empty function lets everything pass; any may throw.
struct CacheFaults {
  /// Before the rows of a layer are written.
  std::function<Result<void>(Sequence& sequence, uint32_t layer)> append{};
  /// Before the tokens are committed.
  std::function<void(Sequence& sequence)> commit{};
  /// Before a rollback.
  std::function<Result<void>(Sequence& sequence)> rollback{};
  uint64_t acquires = 0;  // calls of Acquire
};

class FaultySequence final : public registry::ForwardingSequence {
 public:
  FaultySequence(std::unique_ptr<Sequence> inner, CacheFaults& faults)
      : ForwardingSequence(*inner), inner_(std::move(inner)), faults_(faults) {}

  Result<void> Append(uint32_t layer, const LayerRows& rows) override {
    if (faults_.append) QUIRE_TRY(faults_.append(*this, layer));
    return inner_->Append(layer, rows);
  }
  Result<void> Commit(std::span<const TokenId> tokens) override {
    if (faults_.commit) faults_.commit(*this);
    return inner_->Commit(tokens);
  }
  Result<void> Rollback(uint64_t position) override {
    if (faults_.rollback) QUIRE_TRY(faults_.rollback(*this));
    return inner_->Rollback(position);
  }
  Result<std::unique_ptr<Sequence>> Fork() override { return Wrap(inner_->Fork()); }
  Result<std::unique_ptr<Sequence>> Select(std::span<const uint64_t> kept_blocks) override {
    return Wrap(inner_->Select(kept_blocks));
  }

 private:
  Result<std::unique_ptr<Sequence>> Wrap(Result<std::unique_ptr<Sequence>> made) const {
    if (!made) return made;
    return std::make_unique<FaultySequence>(*std::move(made), faults_);
  }

  const std::unique_ptr<Sequence> inner_;
  CacheFaults& faults_;
};

/// Passes everything on to `inner`.
///
/// Lifetime: `inner` and `faults` must outlive it
class FaultyCache final : public registry::ForwardingCache {
 public:
  FaultyCache(Cache& inner, CacheFaults& faults) : ForwardingCache(inner), faults_(faults) {}

  Result<Plan> Acquire(const AcquireRequest& request) override {
    ++faults_.acquires;
    return inner().Acquire(request);
  }
  Result<std::unique_ptr<Sequence>> Open(Plan plan, const SequenceOptions& options) override {
    return Faulty(inner().Open(std::move(plan), options));
  }
  Result<std::unique_ptr<Opening>> BeginOpen(Plan plan, const SequenceOptions& options) override {
    return registry::WrappedOpening::Of(
        inner().BeginOpen(std::move(plan), options),
        [this](Result<std::unique_ptr<Sequence>> made) { return Faulty(std::move(made)); });
  }

 private:
  Result<std::unique_ptr<Sequence>> Faulty(Result<std::unique_ptr<Sequence>> made) {
    if (!made) return made;
    return std::make_unique<FaultySequence>(*std::move(made), faults_);
  }

  CacheFaults& faults_;
};

}  // namespace quire::serve

#endif  // QUIRE_SERVE_FAULTY_CACHE_H_
