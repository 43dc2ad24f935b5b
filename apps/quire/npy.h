// Arrays in NumPy's file format.
#ifndef QUIRE_APPS_NPY_H_
#define QUIRE_APPS_NPY_H_

#include <cstdint>
#include <span>
#include <string>

#include "quire/error.h"

namespace quire::app {

/// Writes float32 values [rows, columns] as a .npy file (version 1.0), whole or not at all.
/// Errors: those of WriteFile
Result<void> WriteNpy(const std::string& path, std::span<const float> values, uint64_t rows,
                      uint64_t columns);

}  // namespace quire::app

#endif  // QUIRE_APPS_NPY_H_
