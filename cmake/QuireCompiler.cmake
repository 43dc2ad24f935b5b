# Language, warnings, optimisation, sanitizers: the same for every target.
option(QUIRE_WERROR "Warnings are errors" ON)
option(QUIRE_DEBUG_CHECKS "QUIRE_DCHECK, lock ranks and libstdc++ assertions are on" OFF)
option(QUIRE_FUZZ "Build the *_fuzz.cc targets with libFuzzer (clang only)" OFF)
option(QUIRE_CUDA "Build for CUDA devices (needs nvcc 13; `make cuda`)" OFF)
set(QUIRE_CUDA_ARCHITECTURES "80;89;90" CACHE STRING "Compute capabilities that device code is made for")
set(QUIRE_SANITIZE "" CACHE STRING "Value of -fsanitize=, for example address,undefined")

set(CMAKE_CXX_STANDARD 23)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)  # of the tests and examples of the C interface; nothing else is C
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g")
set(CMAKE_C_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")
set(CMAKE_C_FLAGS_DEBUG "${CMAKE_CXX_FLAGS_DEBUG}")

# -ffp-contract=off: the compiler must not fuse a multiply and an add that docs/numerics.md keeps
# apart. It would do so inside Highway's FMA targets and not elsewhere, and the bits would differ.
add_compile_options(-fno-omit-frame-pointer -ffp-contract=off -Wall -Wextra -Wshadow
                    "$<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>"
                    "$<$<COMPILE_LANGUAGE:C>:-pedantic>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # False positives of g++ 12: std::string concatenation (PR 105651), std::expected and the AVX-512
  # intrinsics' undefined operands. Clang and its analyser look for the real ones.
  add_compile_options(-Wno-restrict -Wno-maybe-uninitialized)
else()
  # The standard library's own use of std::get_temporary_buffer counts as the caller's (stable_sort).
  add_compile_options(-Wthread-safety -Wthread-safety-beta -Wno-deprecated-declarations)
endif()
if(QUIRE_WERROR)
  add_compile_options(-Werror)
endif()
if(QUIRE_DEBUG_CHECKS)
  add_compile_definitions(QUIRE_DEBUG_CHECKS=1 _GLIBCXX_ASSERTIONS)
endif()
if(QUIRE_SANITIZE)
  add_compile_options(-fsanitize=${QUIRE_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${QUIRE_SANITIZE})
endif()
if(QUIRE_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

option(QUIRE_BATCHES "Compile several files of a target at once" ON)

# A miss costs one pass of the preprocessor less where ccache asks the compiler what a file includes.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER /usr/bin/env CCACHE_DEPEND=1 "${CCACHE_PROGRAM}")
endif()
