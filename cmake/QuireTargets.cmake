# The few shapes of target this project has. All take keyword arguments only.
#
#   quire_layer(NAME pool DEPS base env LIBS hwy::hwy)            a folder of src/
#   quire_library(NAME bench DEPS cache model LIBS fmt::fmt)      the same outside src/
#   quire_app(NAME quire PART demo DEPS serve MORE_DEPS bench)    needs main.cc, demo_main.cc
#   quire_test(NAME golden_test DEPS model [SOURCES a.cc ...])    tests that stand alone
#   quire_test_again(NAME x_again_test OF x_test ENVIRONMENT A=b) a suite in other surroundings
#
# DEPS are names of layers or libraries, LIBS imported targets, TEST_LIBS for the tests only. ALONE
# are files that are not compiled together with others, TOGETHER files that are, and with no others.

set(QUIRE_LAYERS "")
file(STRINGS "${CMAKE_CURRENT_SOURCE_DIR}/src/LAYERS" layer_lines REGEX "^[a-z]+:")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "src/LAYERS")
foreach(line IN LISTS layer_lines)
  string(REGEX MATCH "^([a-z]+): *(.*)$" matched "${line}")
  set(layer "${CMAKE_MATCH_1}")
  string(REPLACE " " ";" "QUIRE_LAYER_DEPS_${layer}" "${CMAKE_MATCH_2}")
  list(APPEND QUIRE_LAYERS "${layer}")
endforeach()

# The layers that libquire.so is made of (cmake/QuireInstall.cmake): embed, and all it stands on.
set(QUIRE_SHARED_LAYERS embed)
foreach(layer IN LISTS QUIRE_LAYER_DEPS_embed)
  list(APPEND QUIRE_SHARED_LAYERS ${layer} ${QUIRE_LAYER_DEPS_${layer}})
endforeach()
list(REMOVE_DUPLICATES QUIRE_SHARED_LAYERS)
# What libquire_engine.so has besides: the engine in C, and all that stands on the cache below it.
set(QUIRE_ENGINE_LIBRARIES engine_c serve registry model text)

# Links `target` with layers that are part of the build, and with libraries.
function(quire_link target scope)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "DEPS;LIBS")
  foreach(dep IN LISTS arg_DEPS)
    if(TARGET "quire_${dep}")
      target_link_libraries(${target} ${scope} "quire_${dep}")
    endif()
  endforeach()
  target_link_libraries(${target} ${scope} ${arg_LIBS})
endfunction()

# Sets `result` to the files of this folder, and of folders below that are no targets of their own,
# whose names end with `ending`.
function(quire_glob result ending)
  file(GLOB found CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*${ending}")
  file(GLOB below CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*/*${ending}")
  foreach(path IN LISTS below)
    cmake_path(GET path PARENT_PATH folder)
    if(NOT EXISTS "${folder}/CMakeLists.txt")
      list(APPEND found "${path}")
    endif()
  endforeach()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# Compiles the files of `target` several at a time, so that what all of them include is read, and
# what all of them instantiate is made, once for each batch. The files of TOGETHER are one batch:
# they alone include what costs seconds. Files of ALONE stay alone: their names clash with those of
# others. So do files that Highway includes again for each of its targets. Files of libraries with
# doors for planted bugs are a batch, too: sim/canaries puts its own in place of all of them, and
# whole objects are replaced.
function(quire_batch target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "ALONE;TOGETHER")
  if(NOT QUIRE_BATCHES)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # g++ takes what a batch includes for a header, whose types should not use those of one file.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  get_target_property(sources ${target} SOURCES)
  # What tests include costs more than what they are: more of them share it.
  set(files_max 8)
  if(target MATCHES "_test$")
    set(files_max 12)
  endif()
  set(count 0)
  foreach(source IN LISTS sources)
    cmake_path(GET source FILENAME name)
    file(STRINGS "${source}" again REGEX "foreach_target|HWY_ONCE" LIMIT_COUNT 1)
    file(STRINGS "${source}" doors REGEX "Planted\\(" LIMIT_COUNT 1)
    if(again OR name IN_LIST arg_ALONE OR NOT source MATCHES "\\.cc$")
      continue()
    elseif(name IN_LIST arg_TOGETHER)
      set_source_files_properties("${source}" PROPERTIES UNITY_GROUP together)
    elseif(doors AND target MATCHES "^quire_")
      set_source_files_properties("${source}" PROPERTIES UNITY_GROUP doors)
    else()
      math(EXPR batch "${count} / ${files_max}")
      math(EXPR count "${count} + 1")
      set_source_files_properties("${source}" PROPERTIES UNITY_GROUP ${batch})
    endif()
  endforeach()
endfunction()

# These compile kernels, which are tried as they are shipped; other tests are compiled with -O1.
set(QUIRE_TESTS_OF_KERNELS attention_test codec_test cuda_test cuda_kernels_test)

# Makes an executable of GoogleTest and rapidcheck tests and enters it in the list of suites.
function(quire_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "SOURCES;DEPS;LIBS;ALONE")
  if(NOT arg_SOURCES)
    quire_glob(arg_SOURCES "_test.cc")
    quire_glob(c_sources "_test.c")
    list(APPEND arg_SOURCES ${c_sources})
  endif()
  if(NOT arg_SOURCES)
    return()
  endif()
  add_executable(${arg_NAME} ${arg_SOURCES})
  quire_batch(${arg_NAME} ALONE ${arg_ALONE})
  if(NOT arg_NAME IN_LIST QUIRE_TESTS_OF_KERNELS)
    target_compile_options(${arg_NAME} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  target_include_directories(${arg_NAME} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_compile_definitions(${arg_NAME} PRIVATE QUIRE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  quire_link(${arg_NAME} PRIVATE DEPS ${arg_DEPS} LIBS ${arg_LIBS} rapidcheck rapidcheck_gtest
             GTest::gmock GTest::gtest GTest::gtest_main)
  add_test(NAME ${arg_NAME} COMMAND ${arg_NAME} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_property(GLOBAL APPEND PROPERTY QUIRE_TESTS ${arg_NAME})
endfunction()

# A suite again, in other surroundings: a script in bin/ that is a suite of its own name.
function(quire_test_again)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;OF;ENVIRONMENT" "")
  set(script "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${arg_NAME}")
  file(WRITE "${script}" "#!/bin/sh\n${arg_ENVIRONMENT} exec \"$(dirname \"$0\")/${arg_OF}\" \"$@\"\n")
  file(CHMOD "${script}" FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  add_custom_target(${arg_NAME} DEPENDS ${arg_OF})
  add_test(NAME ${arg_NAME} COMMAND "${script}" WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_property(GLOBAL APPEND PROPERTY QUIRE_TESTS ${arg_NAME})
endfunction()

# A library that is a layer: src/LAYERS must allow its DEPS.
function(quire_layer)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "DEPS;LIBS;TEST_LIBS;ALONE")
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME IN_LIST QUIRE_LAYERS)
    message(FATAL_ERROR "quire_layer(NAME <layer of src/LAYERS> DEPS ... LIBS ... TEST_LIBS ...)")
  endif()
  foreach(dep IN LISTS arg_DEPS)
    if(NOT dep IN_LIST QUIRE_LAYER_DEPS_${arg_NAME})
      message(FATAL_ERROR "src/LAYERS does not let ${arg_NAME} use ${dep}")
    endif()
  endforeach()
  quire_library(${ARGV})
endfunction()

# Makes libquire_<name> from the folder's *.cc, <name>_test from *_test.cc and, in the fuzz
# preset, one program per *_fuzz.cc. Folders below that have no CMakeLists.txt of their own belong to it.
function(quire_library)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "DEPS;LIBS;TEST_LIBS;ALONE;TOGETHER")
  quire_glob(sources ".cc")
  list(FILTER sources EXCLUDE REGEX "_(test|fuzz)\\.cc$")

  set(library "quire_${arg_NAME}")
  if(sources)
    add_library(${library} STATIC ${sources})
    quire_batch(${library} ALONE ${arg_ALONE} TOGETHER ${arg_TOGETHER})
    set(scope PUBLIC)
    if(arg_NAME IN_LIST QUIRE_SHARED_LAYERS OR arg_NAME IN_LIST QUIRE_ENGINE_LIBRARIES)
      set_target_properties(${library} PROPERTIES POSITION_INDEPENDENT_CODE ON
                            CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
    endif()
  else()
    add_library(${library} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${library} ${scope} "${PROJECT_SOURCE_DIR}/include"
                             "${PROJECT_SOURCE_DIR}/src")
  if(NOT arg_NAME IN_LIST QUIRE_LAYERS)
    target_include_directories(${library} ${scope} "${PROJECT_SOURCE_DIR}")
  endif()
  quire_link(${library} ${scope} DEPS ${arg_DEPS} LIBS ${arg_LIBS} Threads::Threads)

  quire_test(NAME "${arg_NAME}_test" DEPS ${arg_NAME} LIBS ${arg_TEST_LIBS} ALONE ${arg_ALONE})
  quire_fuzzers(DEPS ${arg_NAME})
endfunction()

# In the fuzz preset, makes one program from each of the folder's *_fuzz.cc.
function(quire_fuzzers)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "DEPS;LIBS")
  quire_glob(fuzzers "_fuzz.cc")
  if(QUIRE_FUZZ)
    foreach(fuzzer IN LISTS fuzzers)
      cmake_path(GET fuzzer STEM stem)
      add_executable(${stem} "${fuzzer}")
      target_link_options(${stem} PRIVATE -fsanitize=fuzzer)
      quire_link(${stem} PRIVATE DEPS ${arg_DEPS} LIBS ${arg_LIBS})
    endforeach()
  endif()
endfunction()

# Makes a program at the top of the build folder from the folder's *.cc; *_test.cc become
# <name>_app_test and *_fuzz.cc fuzzers, linked with everything but main.cc. PART names files that are
# an object library of their own, <name>_part: with <name>_main.cc for a program <name>_part, which
# is built without the others. DEPS and LIBS are those of the part, MORE_DEPS and MORE_LIBS what the
# other files need besides.
function(quire_app)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;PART"
                        "PART_SOURCES;DEPS;LIBS;MORE_DEPS;MORE_LIBS;TEST_LIBS;ALONE")
  set(here "${CMAKE_CURRENT_SOURCE_DIR}")
  file(GLOB sources CONFIGURE_DEPENDS "${here}/*.cc")
  list(FILTER sources EXCLUDE REGEX "(_(test|bench|fuzz|main)|/main)\\.cc$")
  list(TRANSFORM arg_PART_SOURCES PREPEND "${here}/")
  list(REMOVE_ITEM sources ${arg_PART_SOURCES})
  set(part ${arg_NAME}_${arg_PART})
  add_library(${part}_app OBJECT ${arg_PART_SOURCES})
  quire_batch(${part}_app ALONE ${arg_ALONE})
  quire_link(${part}_app PUBLIC DEPS ${arg_DEPS} LIBS ${arg_LIBS})
  add_library(${arg_NAME}_app OBJECT ${sources})
  quire_batch(${arg_NAME}_app ALONE ${arg_ALONE})
  quire_link(${arg_NAME}_app PUBLIC DEPS ${arg_DEPS} ${arg_MORE_DEPS} LIBS ${arg_LIBS} ${arg_MORE_LIBS})
  foreach(objects ${part}_app ${arg_NAME}_app)
    target_include_directories(${objects} PUBLIC "${PROJECT_SOURCE_DIR}")
  endforeach()
  add_executable(${part} "${here}/${arg_PART}_main.cc")
  target_link_libraries(${part} PRIVATE ${part}_app)
  add_executable(${arg_NAME} "${here}/main.cc")
  target_link_libraries(${arg_NAME} PRIVATE ${part}_app ${arg_NAME}_app)
  set_target_properties(${part} ${arg_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")
  quire_test(NAME "${arg_NAME}_app_test" LIBS ${part}_app ${arg_NAME}_app ${arg_TEST_LIBS}
             ALONE ${arg_ALONE})
  quire_fuzzers(LIBS ${part}_app ${arg_NAME}_app)
endfunction()

# Leaves the names of the suites and benchmarks where scripts/run-tests and `make bench` find them.
function(quire_write_lists)
  foreach(kind TESTS BENCHES)
    get_property(names GLOBAL PROPERTY QUIRE_${kind})
    list(JOIN names "\n" text)
    string(TOLOWER ${kind} lower)
    file(WRITE "${CMAKE_BINARY_DIR}/quire_${lower}.txt" "${text}\n")
  endforeach()
endfunction()
