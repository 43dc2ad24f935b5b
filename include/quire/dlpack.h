// Blocks as DLPack tensors: in place, read-only, pinned until the consumer calls the deleter.
//
// Plain C up to the end, where C++ gets its functions (C has quire_view_dlpack in quire/quire.h).
// The structs are those of DLPack 1.x under their own names. A program that has a dlpack.h of its
// own includes that first, and this file then declares none.
#ifndef QUIRE_DLPACK_H_
#define QUIRE_DLPACK_H_

#include <stdint.h>

// NOLINTBEGIN(readability-identifier-naming): the names are DLPack's.
#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_

#define DLPACK_MAJOR_VERSION 1
#define DLPACK_MINOR_VERSION 0

// Bits of DLManagedTensorVersioned.flags.
#define DLPACK_FLAG_BITMASK_READ_ONLY (1UL << 0UL)
#define DLPACK_FLAG_BITMASK_IS_COPIED (1UL << 1UL)

#ifdef __cplusplus
extern "C" {
#endif

// A consumer that knows another major version may only call the deleter.
typedef struct {
  uint32_t major;
  uint32_t minor;
} DLPackVersion;

// Devices and types that Quire hands out; other producers have more.
#ifdef __cplusplus
typedef enum : int32_t {
#else
typedef enum {
#endif
  kDLCPU = 1,
  kDLCUDA = 2,
} DLDeviceType;

typedef struct {
  DLDeviceType device_type;
  int32_t device_id;
} DLDevice;

typedef enum {
  kDLFloat = 2U,
  kDLBfloat = 4U,
} DLDataTypeCode;

typedef struct {
  uint8_t code;  // a DLDataTypeCode
  uint8_t bits;
  uint16_t lanes;
} DLDataType;

typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;    // [ndim]
  int64_t* strides;  // [ndim], in elements
  uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensor* self);
} DLManagedTensor;

typedef struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;

#ifdef __cplusplus
}
#endif

#endif  // DLPACK_DLPACK_H_
// NOLINTEND(readability-identifier-naming)

#ifdef __cplusplus

#include <memory>

#include "quire/error.h"
#include "quire/sequence.h"

namespace [[gnu::visibility("default")]] quire {

/// `view` as a tensor for another library. The receiver calls its deleter once.
///
/// Shape:    shape and strides of the view, strides in elements: a block of K is token-contiguous,
///           so its strides are (head, 1, block_tokens)
/// Errors:   kUnsupported a codec that is no plain number, or a device other than "cpu";
///           kInvalidArgument no data, or a rank over 5
/// Threads:  any; the deleter may run on any thread
/// Lifetime: the tensor shares `owner`, which must keep the bytes in place: a BlockListView, with
///           the cache if that could end earlier
Result<DLManagedTensorVersioned*> ToDLPack(const TensorView& view,
                                           std::shared_ptr<const void> owner);

/// The same for consumers of DLPack before 1.0. That form cannot say that the bytes are read-only;
/// they are.
Result<DLManagedTensor*> ToDLPackLegacy(const TensorView& view, std::shared_ptr<const void> owner);

}  // namespace quire

#endif  // __cplusplus

#endif  // QUIRE_DLPACK_H_
