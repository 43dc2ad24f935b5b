// The extension module quire._quire, and the conversions that its parts share.
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <quire/quire.h>

#include <algorithm>

#include "bind.h"

namespace quire::python {

Codec ToValueType(nb::dlpack::dtype type, const char* name) {
  const auto code = static_cast<nb::dlpack::dtype_code>(type.code);
  if (type.lanes == 1 && code == nb::dlpack::dtype_code::Float && type.bits == 32) {
    return Codec::kF32;
  }
  if (type.lanes == 1 && code == nb::dlpack::dtype_code::Float && type.bits == 16) {
    return Codec::kF16;
  }
  if (type.lanes == 1 && code == nb::dlpack::dtype_code::Bfloat && type.bits == 16) {
    return Codec::kBf16;
  }
  const char* advice = type.bits == 64 && code == nb::dlpack::dtype_code::Float
                           ? " are float64: convert them to float32"
                           : " are neither float32 nor float16 nor bfloat16";
  Raise(ErrorCode::kUnsupported, "the values of " + std::string(name) + advice);
}

RowsView ToRows(const AnyArray& array, const Stream& stream, const char* name) {
  if (array.ndim() != 3 || array.shape(1) != stream.heads || array.shape(2) != stream.dim) {
    std::string shape;
    for (size_t i = 0; i < array.ndim(); ++i) {
      shape += (i == 0 ? "" : ", ") + std::to_string(array.shape(i));
    }
    Raise(ErrorCode::kInvalidArgument, std::string(name) + " has shape [" + shape +
                                           "], not [tokens, " + std::to_string(stream.heads) +
                                           ", " + std::to_string(stream.dim) + "]");
  }
  if (stream.dim > 1 && array.stride(2) != 1) {
    Raise(ErrorCode::kInvalidArgument, std::string(name) + ": the values of a head lie " +
                                           std::to_string(array.stride(2)) + " apart, not 1");
  }
  return {.data = array.data(),
          .dtype = ToValueType(array.dtype(), name),
          .token_stride = array.stride(0),
          .head_stride = array.stride(1)};
}

const LayerGroup& GroupOf(const Cache& cache, uint32_t layer) {
  for (const LayerGroup& group : cache.options().geometry.groups) {
    if (std::ranges::binary_search(group.layers, layer)) return group;
  }
  Raise(ErrorCode::kInvalidArgument, "layer " + std::to_string(layer) + " of " +
                                         std::to_string(cache.options().geometry.layer_count()));
}

const Stream& StreamOf(const Cache& cache, uint32_t layer, StreamRole role) {
  for (const Stream& stream : GroupOf(cache, layer).streams) {
    if (stream.role == role) return stream;
  }
  Raise(ErrorCode::kInvalidArgument, "layer " + std::to_string(layer) + " has no such stream");
}

StreamRole ToRole(std::string_view name) {
  if (name == "key") return StreamRole::kKey;
  if (name == "value") return StreamRole::kValue;
  if (name == "latent") return StreamRole::kLatent;
  Raise(ErrorCode::kInvalidArgument,
        "role \"" + std::string(name) + "\" is not key, value or latent");
}

Codec ToCodec(std::string_view name) {
  const std::optional<Codec> codec = ParseCodec(name);
  if (!codec) Raise(ErrorCode::kInvalidArgument, "no codec is named \"" + std::string(name) + "\"");
  return *codec;
}

uint64_t ToTtl(double ttl_s) { return ttl_s == 0 ? 0 : ToMicros(ttl_s); }

void CheckOwner(const PyPlan& plan, const std::shared_ptr<Cache>& cache) {
  if (plan.get()->cache != cache) {
    Raise(ErrorCode::kInvalidArgument, "the plan is of another cache");
  }
}

void BindErrors(nb::module_& module) {
  RegisterFailures();
  nb::dict codecs;
  for (const Codec codec : kCodecs) {
    const std::string_view name = CodecName(codec);
    codecs[nb::str(name.data(), name.size())] = CodecBitsPerValue(codec);
  }
  module.attr("CODECS") = codecs;
  module.attr("__version__") = quire_version();
}

}  // namespace quire::python

NB_MODULE(_quire, module) {
  module.doc() = "The compiled half of quire; import quire instead.";
  // A thread that is at work while Python ends keeps its objects.
  nanobind::set_leak_warnings(false);
  quire::python::CountForks();
  quire::python::BindErrors(module);
  quire::python::BindView(module);
  quire::python::BindSequence(module);
  quire::python::BindStore(module);
  quire::python::BindCache(module);
  quire::python::BindAttention(module);
  quire::python::BindRegistry(module);
}
