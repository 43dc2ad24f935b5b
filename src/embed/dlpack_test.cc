// DLPack tensors: the values that Gather copies, where they lie, pinned until the deleter.
#include "quire/dlpack.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/float_bits.h"
#include "embed/test_util.h"

namespace quire::embed {
namespace {

constexpr uint32_t kBlock = CWorld::kBlock;

// The structs cross between libraries that were compiled with other headers.
static_assert(sizeof(DLTensor) == 48 && offsetof(DLTensor, shape) == 24);
static_assert(sizeof(DLManagedTensor) == 64 && offsetof(DLManagedTensor, deleter) == 56);
static_assert(sizeof(DLManagedTensorVersioned) == 80);
static_assert(offsetof(DLManagedTensorVersioned, flags) == 24);
static_assert(offsetof(DLManagedTensorVersioned, dl_tensor) == 32);

float At(const DLTensor& tensor, int64_t head, int64_t token, int64_t dim) {
  const int64_t index =
      head * tensor.strides[0] + token * tensor.strides[1] + dim * tensor.strides[2];
  const auto* bytes = static_cast<const std::byte*>(tensor.data) + tensor.byte_offset;
  if (tensor.dtype.bits == 32) {
    float value = 0;
    std::memcpy(&value, bytes + index * 4, 4);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, bytes + index * 2, 2);
  return tensor.dtype.code == kDLBfloat ? Bf16ToF32(bits) : F16ToF32(bits);
}

// Every value of every block of both streams, through either kind of tensor.
void ExpectValues(const CWorld& world, const quire_sequence& sequence,
                  std::span<const TokenId> history) {
  for (const quire_role role : {QUIRE_KEY, QUIRE_VALUE}) {
    const auto expected = world.Expected(history, 1, role == QUIRE_KEY ? 0 : 1);
    const auto view = world.View(sequence, 1, role);
    ASSERT_EQ(quire_view_block_count(view.get()), 3u);
    for (uint64_t block = 0; block < 3; ++block) {
      DLManagedTensorVersioned* versioned = nullptr;
      DLManagedTensor* legacy = nullptr;
      ASSERT_EQ(quire_view_dlpack(view.get(), block, &versioned, nullptr), QUIRE_OK);
      ASSERT_EQ(quire_view_dlpack_legacy(view.get(), block, &legacy, nullptr), QUIRE_OK);
      EXPECT_EQ(versioned->version.major, 1u);
      EXPECT_EQ(versioned->flags, DLPACK_FLAG_BITMASK_READ_ONLY);
      const int64_t tokens = block < 2 ? kBlock : 5;
      for (const DLTensor* tensor : {&versioned->dl_tensor, &legacy->dl_tensor}) {
        EXPECT_EQ(tensor->device.device_type, kDLCPU);
        EXPECT_EQ(tensor->device.device_id, 0);
        EXPECT_EQ(tensor->dtype.lanes, 1);
        ASSERT_EQ(tensor->ndim, 3);
        EXPECT_EQ(std::vector(tensor->shape, tensor->shape + 3),
                  (std::vector<int64_t>{2, tokens, 4}));
        EXPECT_EQ(tensor->strides[1], role == QUIRE_KEY ? 1 : 4);
        EXPECT_EQ(tensor->strides[2], role == QUIRE_KEY ? int64_t{kBlock} : 1);
        for (int64_t head = 0; head < 2; ++head) {
          for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t d = 0; d < 4; ++d) {
              const auto position = static_cast<int64_t>(block * kBlock) + t;
              const auto token_count = static_cast<int64_t>(history.size());
              EXPECT_EQ(At(*tensor, head, t, d),
                        expected[static_cast<size_t>((head * token_count + position) * 4 + d)]);
            }
          }
        }
      }
      versioned->deleter(versioned);
      legacy->deleter(legacy);
    }
  }
}

TEST(DLPack, ShowsWhatGatherCopiesInEveryCodec) {
  for (const quire_codec codec : {QUIRE_F32, QUIRE_F16, QUIRE_BF16}) {
    quire_cache_options options = SmallOptions();
    options.codec = codec;
    const CWorld world(options);
    const auto history = cache::SomeTokens(2 * kBlock + 5, 1);
    const auto sequence = world.Run(history);
    ExpectValues(world, *sequence, history);
    const auto view = world.View(*sequence, 0, QUIRE_KEY);
    DLManagedTensor* tensor = nullptr;
    ASSERT_EQ(quire_view_dlpack_legacy(view.get(), 0, &tensor, nullptr), QUIRE_OK);
    EXPECT_EQ(tensor->dl_tensor.dtype.code, codec == QUIRE_BF16 ? kDLBfloat : kDLFloat);
    EXPECT_EQ(tensor->dl_tensor.dtype.bits, codec == QUIRE_F32 ? 32 : 16);
    tensor->deleter(tensor);
  }
}

/// A sequence in one run of slots, whose views are one array.
Owned<quire_sequence> RunContiguous(const CWorld& world, std::span<const TokenId> history) {
  auto request = Sized<quire_acquire_request>();
  request.identity = &world.identity;
  request.tokens = history.data();
  request.token_count = history.size();
  request.no_reuse = 1;
  auto options = Sized<quire_sequence_options>();
  options.contiguous = 1;
  auto sequence = MustMake<quire_sequence>([&](quire_sequence** out, quire_error* error) {
    quire_plan* plan = nullptr;
    const quire_code code = quire_acquire(world.cache.get(), &request, &plan, error);
    return code == QUIRE_OK ? quire_open(plan, &options, out, error) : code;
  });
  world.Feed(*sequence, history);
  return sequence;
}

TEST(DLPack, AContiguousSequenceIsOneArray) {
  constexpr int64_t kTokens = 2 * kBlock + 5;
  const auto history = cache::SomeTokens(kTokens, 1);
  for (const quire_layout layout : {QUIRE_LAYER_MAJOR, QUIRE_HEAD_MAJOR}) {
    quire_cache_options options = SmallOptions();
    options.codec = QUIRE_F32;
    options.layout = layout;
    options.placement = QUIRE_FIRST_FIT;
    const CWorld world(options);
    const auto sequence = RunContiguous(world, history);
    const auto view = world.View(*sequence, 1, QUIRE_KEY);
    const auto expected = world.Expected(history, 1, 0);
    DLManagedTensorVersioned* tensor = nullptr;
    quire_error error{};
    ASSERT_EQ(quire_view_dlpack(view.get(), QUIRE_ALL_BLOCKS, &tensor, &error), QUIRE_OK)
        << Show(error);
    const DLTensor& array = tensor->dl_tensor;
    const bool by_head = layout == QUIRE_HEAD_MAJOR;
    EXPECT_EQ(
        std::vector(array.shape, array.shape + array.ndim),
        (by_head ? std::vector<int64_t>{2, kTokens, 4} : std::vector<int64_t>{3, 2, kBlock, 4}));
    const int64_t* stride = array.strides;
    for (int64_t i = 0; i < 2 * kTokens * 4; ++i) {
      const int64_t head = i / (kTokens * 4);
      const int64_t t = i / 4 % kTokens;
      const int64_t d = i % 4;
      const int64_t index = by_head ? head * stride[0] + t * stride[1] + d * stride[2]
                                    : t / kBlock * stride[0] + head * stride[1] +
                                          t % kBlock * stride[2] + d * stride[3];
      EXPECT_EQ(static_cast<const float*>(array.data)[index], expected[static_cast<size_t>(i)]);
    }
    tensor->deleter(tensor);
  }
}

TEST(DLPack, BlocksThatLieApartAreNoArray) {
  const CWorld world;
  auto first = world.Run(cache::SomeTokens(kBlock, 1));
  const auto between = world.Run(cache::SomeTokens(kBlock, 2));
  auto last = world.Run(cache::SomeTokens(kBlock, 3));
  first.reset();
  last.reset();
  uint64_t evicted = 0;
  EXPECT_EQ(quire_cache_evict(world.cache.get(), 2, &evicted, nullptr), QUIRE_OK);
  EXPECT_EQ(evicted, 2u);
  const auto apart = world.Run(cache::SomeTokens(3 * kBlock, 4));
  const auto view = world.View(*apart, 0, QUIRE_KEY);
  auto tensor = Sized<quire_tensor>();
  EXPECT_EQ(quire_view_tensor(view.get(), QUIRE_ALL_BLOCKS, &tensor, nullptr), QUIRE_UNSUPPORTED);
}

TEST(DLPack, ATensorPinsItsBlocksUntilItsDeleter) {
  const CWorld world;
  DLManagedTensorVersioned* tensor = nullptr;
  {
    const auto sequence = world.Run(cache::SomeTokens(2 * kBlock, 1));
    const auto view = world.View(*sequence, 0, QUIRE_KEY);
    ASSERT_EQ(quire_view_dlpack(view.get(), 1, &tensor, nullptr), QUIRE_OK);
  }
  uint64_t evicted = 0;
  EXPECT_EQ(quire_cache_evict(world.cache.get(), 2, &evicted, nullptr), QUIRE_OK);
  EXPECT_EQ(evicted, 0u);
  EXPECT_EQ(world.Stats().sealed.slots_used, 2u);
  tensor->deleter(tensor);
  EXPECT_EQ(quire_cache_evict(world.cache.get(), 2, &evicted, nullptr), QUIRE_OK);
  EXPECT_EQ(evicted, 2u);
}

TEST(DLPack, ATensorKeepsTheCacheItLiesIn) {
  const auto history = cache::SomeTokens(kBlock, 1);
  DLManagedTensor* tensor = nullptr;
  std::vector<float> expected;
  {
    const CWorld world;
    const auto sequence = world.Run(history);
    expected = world.Expected(history, 0, 1);
    const auto view = world.View(*sequence, 0, QUIRE_VALUE);
    ASSERT_EQ(quire_view_dlpack_legacy(view.get(), 0, &tensor, nullptr), QUIRE_OK);
  }
  EXPECT_EQ(At(tensor->dl_tensor, 1, kBlock - 1, 3), expected.back());
  tensor->deleter(tensor);
}

TEST(DLPack, RefusesWhatItCannotSay) {
  const std::vector<float> data(8);
  const auto owner = std::make_shared<int>(1);
  TensorView view;
  view.data = data.data();
  view.rank = 2;
  view.shape = {2, 4};
  view.strides = {4, 1};
  view.device = "cpu";
  const auto code = [&](const TensorView& changed) {
    const auto versioned = ToDLPack(changed, owner);
    const auto legacy = ToDLPackLegacy(changed, owner);
    EXPECT_FALSE(versioned.has_value() || legacy.has_value());
    EXPECT_EQ(versioned.error().code, legacy.error().code);
    return versioned.error().code;
  };
  TensorView changed = view;
  changed.device = "cuda:0";
  EXPECT_EQ(code(changed), ErrorCode::kUnsupported);
  changed = view;
  changed.dtype = static_cast<Codec>(200);
  EXPECT_EQ(code(changed), ErrorCode::kUnsupported);
  changed = view;
  changed.data = nullptr;
  EXPECT_EQ(code(changed), ErrorCode::kInvalidArgument);
  changed = view;
  changed.rank = 6;
  EXPECT_EQ(code(changed), ErrorCode::kInvalidArgument);
  EXPECT_EQ(owner.use_count(), 1);

  const auto tensor = ToDLPack(view, owner);
  ASSERT_TRUE(tensor.has_value());
  EXPECT_EQ(owner.use_count(), 2);
  EXPECT_EQ((*tensor)->dl_tensor.ndim, 2);
  EXPECT_EQ((*tensor)->dl_tensor.shape[1], 4);
  (*tensor)->deleter(*tensor);
  EXPECT_EQ(owner.use_count(), 1);
}

}  // namespace
}  // namespace quire::embed
