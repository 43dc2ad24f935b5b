// Merge of two softmax states (docs/numerics.md section 2): of what they end with first, then of
// any of their sums.
#ifndef QUIRE_CUDA_KERNELS_MERGE_INL_H_
#define QUIRE_CUDA_KERNELS_MERGE_INL_H_

#include "attention/scalar.h"
#include "cuda/kernels/simt.h"
#include "cuda/kernels/split_shared-inl.h"

namespace quire::cuda {

/// How the sums of two states become those of one.
struct Joint {
  // Which of them has seen something.
  bool has_first = false;
  bool has_second = false;
  // Factors of the sums, where both have.
  float of_first = 1.0f;
  float of_second = 1.0f;
  // Of the merged state.
  float max = kNothingSeen;
  float sum = 0.0f;

  QUIRE_KERNEL bool has_both() const { return has_first && has_second; }
  /// Of the merged state, from a sum of each.
  QUIRE_KERNEL float SumOf(float first, float second) const {
    const float both = SumOfBoth(first, second);
    return !has_second ? first : has_first ? both : second;
  }
  QUIRE_KERNEL float SumOfBoth(float first, float second) const {
    return Fma(first, of_first, second * of_second);
  }
};

/// By the maxima and sums of weights of both.
QUIRE_KERNEL Joint JointOf(float first_max, float first_sum, float second_max, float second_sum) {
  Joint joint;
  joint.has_first = first_max != kNothingSeen;
  joint.has_second = second_max != kNothingSeen;
  joint.max = joint.has_first ? first_max : second_max;
  joint.sum = joint.has_first ? first_sum : second_sum;
  if (!joint.has_both()) return joint;
  joint.max = Max(first_max, second_max);
  joint.of_first = attention::Exp(first_max - joint.max);
  joint.of_second = attention::Exp(second_max - joint.max);
  joint.sum = joint.SumOfBoth(first_sum, second_sum);
  return joint;
}

}  // namespace quire::cuda

#endif  // QUIRE_CUDA_KERNELS_MERGE_INL_H_
