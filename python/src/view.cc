// Views: blocks in place for NumPy, read-only and pinned, and copies for all others.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <cstring>

#include "bind.h"

namespace quire::python {
namespace {

TensorView BlockOf(const PinnedView& pinned, uint32_t block) {
  const BlockListView& view = pinned.view;
  if (block >= view.block_count()) {
    Raise(ErrorCode::kInvalidArgument,
          "block " + std::to_string(block) + " of " + std::to_string(view.block_count()));
  }
  if (view.slots()[block] == nullptr) {
    Raise(ErrorCode::kNotFound, "the layer's window has passed block " + std::to_string(block));
  }
  return view.block(block);
}

nb::dlpack::dtype TypeOf(Codec codec) {
  switch (codec) {
    case Codec::kF32: return nb::dtype<float>();
    case Codec::kF16: return {static_cast<uint8_t>(nb::dlpack::dtype_code::Float), 16, 1};
    default: return {static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat), 16, 1};
  }
}

// A NumPy array over the bytes in place. Its owner keeps them pinned, also when the view is closed.
nb::object InPlace(const std::shared_ptr<PinnedView>& pinned, const TensorView& tensor) {
  if (tensor.dtype == Codec::kBf16) {
    Raise(ErrorCode::kUnsupported,
          "NumPy has no bfloat16: take copy(), or the sequence's gather()");
  }
  if (tensor.device != "cpu") {
    Raise(ErrorCode::kUnsupported, "the blocks lie in \"" + std::string(tensor.device) + "\"");
  }
  nb::capsule owner(new std::shared_ptr<PinnedView>(pinned), [](void* held) noexcept {
    delete static_cast<std::shared_ptr<PinnedView>*>(held);
  });
  std::vector<size_t> shape(tensor.shape.begin(), tensor.shape.begin() + tensor.rank);
  const nb::ndarray<nb::numpy, nb::ro> array(tensor.data, tensor.rank, shape.data(), owner,
                                             tensor.strides.data(), TypeOf(tensor.dtype));
  // nb::cast would refuse no type here; the class is what keeps torch from writing to the bytes.
  return nb::cast(array).attr("view")(nb::module_::import_("quire._arrays").attr("ReadOnlyArray"));
}

// An array of its own in C order, [heads, tokens, dim], of the type that is stored.
nb::ndarray<nb::array_api> Copy(const PyView& self, uint32_t block) {
  const std::shared_ptr<PinnedView> pinned = self.get();
  const TensorView from = BlockOf(*pinned, block);
  const size_t bytes = from.dtype == Codec::kF32 ? 4 : 2;
  const size_t shape[3] = {static_cast<size_t>(from.shape[0]), static_cast<size_t>(from.shape[1]),
                           static_cast<size_t>(from.shape[2])};
  auto* data = new std::byte[shape[0] * shape[1] * shape[2] * bytes];
  nb::capsule owner(data, [](void* made) noexcept { delete[] static_cast<std::byte*>(made); });
  {
    const GilFree free;
    std::byte* to = data;
    for (size_t head = 0; head < shape[0]; ++head) {
      for (size_t token = 0; token < shape[1]; ++token) {
        for (size_t i = 0; i < shape[2]; ++i, to += bytes) {
          const int64_t at = static_cast<int64_t>(head) * from.strides[0] +
                             static_cast<int64_t>(token) * from.strides[1] +
                             static_cast<int64_t>(i) * from.strides[2];
          std::memcpy(to, static_cast<const std::byte*>(from.data) + at * int64_t(bytes), bytes);
        }
      }
    }
  }
  return {data, 3, shape, owner, nullptr, TypeOf(from.dtype)};
}

}  // namespace

void BindView(nb::module_& module) {
  nb::class_<PyView>(module, "View",
                     "The blocks of one stream of a sequence, in place and pinned until this is "
                     "closed and every array made of it is gone.\n\n"
                     "Made by Sequence.view(). Pinned blocks count against the budget. Threads: "
                     "any; it may end on any thread.")
      .def("__len__", [](const PyView& self) { return self.get()->view.block_count(); })
      .def_prop_ro(
          "tokens", [](const PyView& self) { return self.get()->view.tokens(); },
          "Tokens that can be read, from first_token on.")
      .def_prop_ro(
          "first_token", [](const PyView& self) { return self.get()->view.first_token(); },
          "Of the sequence, the first that is shown: a multiple of block_tokens.")
      .def(
          "has_block",
          [](const PyView& self, uint32_t block) {
            const auto pinned = self.get();
            return block < pinned->view.block_count() && pinned->view.slots()[block] != nullptr;
          },
          nb::arg("block"), "False for a block that the layer's window has passed.")
      .def(
          "numpy",
          [](const PyView& self, uint32_t block) {
            const auto pinned = self.get();
            return InPlace(pinned, BlockOf(*pinned, block));
          },
          nb::arg("block"), nb::sig("def numpy(self, block: int) -> ReadOnlyArray"),
          "Block `block` as [heads, tokens, dim] in place: nothing is copied, and nothing can be "
          "written.\n\nThe array pins the block while it lives. DLPack is refused, because torch "
          "would write through it: use copy().\n\nRaises: InvalidArgumentError no such block; "
          "NotFoundError the window has passed it; UnsupportedError bf16, which NumPy lacks.")
      .def(
          "array",
          [](const PyView& self) {
            const auto pinned = self.get();
            return InPlace(pinned, Value(pinned->view.array()));
          },
          nb::sig("def array(self) -> ReadOnlyArray"),
          "All blocks as one array in place, where they lie equally far apart, as in a contiguous "
          "sequence: [heads, tokens, dim] in a head-major arena, elsewhere [blocks, heads, "
          "block_tokens, dim].\n\nRaises: UnsupportedError they do not lie so.")
      .def("copy", &Copy, nb::arg("block"),
           "Block `block` as an array [heads, tokens, dim] of its own, of the stored type; "
           "numpy.from_dlpack and torch.from_dlpack take it without another copy.")
      .def("__repr__",
           [](const PyView& self) {
             return self.Repr("View", [](const PinnedView& pinned) {
               return std::to_string(pinned.view.tokens()) + " tokens in " +
                      std::to_string(pinned.view.block_count()) + " blocks";
             });
           })
      .def_prop_ro("closed", &PyView::closed)
      .def("close", &PyView::Close, "Ends the pin, as far as no array made of this holds it.")
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> View"))
      .def(
          "__exit__", [](PyView& self, const nb::args&) { self.Close(); },
          nb::sig("def __exit__(self, *exception: object) -> None"));
}

}  // namespace quire::python
