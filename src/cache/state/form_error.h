// How far the sealed form of a block is from what was written.
#ifndef QUIRE_CACHE_STATE_FORM_ERROR_H_
#define QUIRE_CACHE_STATE_FORM_ERROR_H_

#include <algorithm>
#include <cmath>
#include <limits>

namespace quire::cache {

/// Of the layer in which it is largest: the root of the squared differences over the root of the
/// squares, of K and of V. Measured in caches with a precision ladder; elsewhere 0.
struct FormError {
  float key = 0.0f;
  float value = 0.0f;

  /// What a request compares with the largest error that it accepts.
  float largest() const { return std::max(key, value); }
  /// At most, of what is made of this form with that error of its own: values are off by what they
  /// were off before, and by a share of what they are now.
  FormError Then(const FormError& next) const {
    return FormError{.key = key + next.key * (1.0f + key),
                     .value = value + next.value * (1.0f + value)}
        .Checked();
  }
  /// As it was read from a store, say: what is no error is infinite, which no request accepts.
  FormError Checked() const {
    const auto checked = [](float error) {
      const bool is_error = std::isfinite(error) && error >= 0.0f;
      return is_error ? error : std::numeric_limits<float>::infinity();
    };
    return {.key = checked(key), .value = checked(value)};
  }
};
static_assert(sizeof(FormError) == 8);  // a section of records (below/records.h)

}  // namespace quire::cache

#endif  // QUIRE_CACHE_STATE_FORM_ERROR_H_
