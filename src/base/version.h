// The version, for the command line and for CMakeLists.txt, which reads it from here.
#ifndef QUIRE_BASE_VERSION_H_
#define QUIRE_BASE_VERSION_H_

#include <string_view>

namespace quire {

inline constexpr std::string_view kVersion = "0.2.0";

}  // namespace quire

#endif  // QUIRE_BASE_VERSION_H_
