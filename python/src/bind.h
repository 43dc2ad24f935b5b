// What the files of the binding share: errors as exceptions, handles that outlive each other in any
// order, and NumPy and torch arrays as rows of the cache.
//
// Threads: a method takes its own copy of a handle while it holds the GIL, lets the GIL go, and
// only then takes a lock of Quire, so no thread waits for the GIL with a lock in its hands.
#ifndef QUIRE_PYTHON_BIND_H_
#define QUIRE_PYTHON_BIND_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <quire/attention.h>
#include <quire/cache.h>
#include <quire/disk_store.h>
#include <quire/env.h>
#include <quire/registry.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "handle.h"
#include "process.h"
#include "values.h"

namespace quire::python {

namespace nb = nanobind;

/// The value of a result, or its error as an exception.
template <typename T>
T Value(Result<T>&& result) {
  if (!result) throw Failure(std::move(result).error());
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

/// A sequence with the lock that makes its writers take turns. The cache ends last.
struct SequenceState {
  SequenceState(std::shared_ptr<Cache> of, std::unique_ptr<Sequence> made)
      : cache(std::move(of)), sequence(std::move(made)) {}

  const std::shared_ptr<Cache> cache;
  std::mutex writer;
  const std::unique_ptr<Sequence> sequence;
};

/// Blocks that a view of Python, and every array made of it, keep in place.
struct PinnedView {
  std::shared_ptr<Cache> cache;
  BlockListView view;
};

class PyCache : public Handle<Cache> {
 public:
  explicit PyCache(std::shared_ptr<Cache> cache) : Handle(std::move(cache), "the cache") {}
};
class PySequence : public Handle<SequenceState> {
 public:
  explicit PySequence(std::shared_ptr<SequenceState> state)
      : Handle(std::move(state), "the sequence") {}
};
/// Holds the resident part of a prompt until it is opened, loaded or closed.
struct PlanState {
  std::shared_ptr<Cache> cache;
  Plan plan;
};
class PyPlan : public Handle<PlanState> {
 public:
  explicit PyPlan(std::shared_ptr<PlanState> plan)
      : Handle(std::move(plan), "the plan", "was used or is closed") {}

  /// The plan itself; this one is closed then. Methods of a plan keep the GIL, so none is at work.
  Plan Take() {
    Plan plan = std::move(get()->plan);
    Close();
    return plan;
  }
};
class PyDiskStore : public Handle<DiskStore> {
 public:
  PyDiskStore(std::shared_ptr<DiskStore> store, std::string directory)
      : Handle(std::move(store), "the store"), directory_(std::move(directory)) {}
  const std::string& directory() const { return directory_; }

 private:
  std::string directory_;
};
class PyBudget : public Handle<SharedBudget> {
 public:
  explicit PyBudget(std::shared_ptr<SharedBudget> budget)
      : Handle(std::move(budget), "the shared budget") {}
};
/// A load under way. The cache ends last.
struct TicketState {
  TicketState(std::shared_ptr<Cache> of, bool is_from_end, Ticket made)
      : cache(std::move(of)), from_end(is_from_end), ticket(std::move(made)) {}

  const std::shared_ptr<Cache> cache;
  const bool from_end;
  std::mutex turn;
  Ticket ticket;
  bool taken = false;
};
class PyTicket : public Handle<TicketState> {
 public:
  explicit PyTicket(std::shared_ptr<TicketState> ticket)
      : Handle(std::move(ticket), "the ticket") {}
};
class PyView : public Handle<PinnedView> {
 public:
  explicit PyView(std::shared_ptr<PinnedView> view) : Handle(std::move(view), "the view") {}
};

struct RegistryState {
  std::shared_ptr<Registry> registry;
  NumericProfile profile;  // of owners that choose no codec
  Stream stream;           // of every layer: K and V alike
};
struct OwnerState {
  std::shared_ptr<RegistryState> of;  // ends last
  std::shared_ptr<OwnerCache> owner;
};
class PyOwner : public Handle<OwnerState> {
 public:
  explicit PyOwner(std::shared_ptr<OwnerState> owner) : Handle(std::move(owner), "the owner") {}
};

/// The type of an array's values.
/// Errors: kUnsupported another one than f32, f16 and bf16
Codec ToValueType(nb::dlpack::dtype type, const char* name);

/// An array [tokens, heads, dim] as rows of one stream; nothing is copied.
/// Errors: kInvalidArgument another shape than the stream's, or values of one head that do not lie
///         one after the other; kUnsupported another type than f32, f16 and bf16
RowsView ToRows(const AnyArray& array, const Stream& stream, const char* name);

/// The group of a layer.
/// Errors: kInvalidArgument the model has no such layer
const LayerGroup& GroupOf(const Cache& cache, uint32_t layer);
/// Errors: kInvalidArgument no such layer, or it has no such stream
const Stream& StreamOf(const Cache& cache, uint32_t layer, StreamRole role);
/// "key", "value" or "latent".
StreamRole ToRole(std::string_view name);
/// A name of quire.CODECS.
Codec ToCodec(std::string_view name);

/// Errors: kInvalidArgument the plan is of another cache
void CheckOwner(const PyPlan& plan, const std::shared_ptr<Cache>& cache);

/// Seconds that something lives: 0 is for good.
/// Errors: kInvalidArgument below zero, or too long
uint64_t ToTtl(double ttl_s);

/// A new array in C order that Python owns, not initialized: its pages are touched first where the
/// GIL is free.
template <typename... Options>
nb::ndarray<Options..., float> NewArray(std::vector<size_t> shape, float** data) {
  size_t values = 1;
  for (const size_t axis : shape) values *= axis;
  *data = new float[values];
  nb::capsule owner(*data, [](void* made) noexcept { delete[] static_cast<float*>(made); });
  return {*data, shape.size(), shape.data(), owner};
}

/// Tokens [begin, end) of a stream, `length` without an end, as float32 [heads, tokens, dim]:
/// `gather(begin, end, values)` fills them while the GIL is free.
///
/// Errors: kInvalidArgument there are only `length`; those of `gather`
template <typename Gather>
nb::ndarray<nb::numpy, float> GatherTokens(const Stream& stream, uint64_t begin,
                                           std::optional<uint64_t> end, uint64_t length,
                                           const Gather& gather) {
  const uint64_t last = end.value_or(length);
  if (begin > last || last > length) {
    Raise(ErrorCode::kInvalidArgument, "tokens [" + std::to_string(begin) + ", " +
                                           std::to_string(last) + ") of " + std::to_string(length) +
                                           " that are written");
  }
  float* data = nullptr;
  auto out =
      NewArray<nb::numpy>({stream.heads, static_cast<size_t>(last - begin), stream.dim}, &data);
  const std::span<float> values(data, uint64_t{stream.heads} * (last - begin) * stream.dim);
  const GilFree free;
  Value(gather(begin, last, values));
  return out;
}

void BindErrors(nb::module_& module);
void BindCache(nb::module_& module);
void BindStore(nb::module_& module);
void BindSequence(nb::module_& module);
void BindView(nb::module_& module);
void BindAttention(nb::module_& module);
void BindRegistry(nb::module_& module);

}  // namespace quire::python

#endif  // QUIRE_PYTHON_BIND_H_
