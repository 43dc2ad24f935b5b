# What others use: a shared library of the cache without the model, one of the engine with all it
# needs, and the rules of `make install` (docs/embedding.md). No package file that is installed names
# this build tree.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Sanitizers are for this project's own programs.
if(QUIRE_SANITIZE OR QUIRE_FUZZ)
  return()
endif()

# libquire.so: all of the layers' objects, for nothing in it calls what only others call. Highway,
# fmt and the rest, which come in through embed, are its own affair: whoever links it needs none.
set(shared_objects "")
foreach(layer IN LISTS QUIRE_SHARED_LAYERS)
  if(TARGET "quire_${layer}")
    list(APPEND shared_objects "$<TARGET_OBJECTS:quire_${layer}>")
  endif()
endforeach()
set(exports "${PROJECT_SOURCE_DIR}/cmake/exports.map")
add_library(quire_shared SHARED ${shared_objects})
target_link_libraries(quire_shared PRIVATE quire_embed)
target_link_options(quire_shared PRIVATE "LINKER:--version-script=${exports}"
                    "LINKER:--no-undefined")
# Before 1.0 a minor version may break the C++ interface, so it is part of the soname.
set_target_properties(quire_shared PROPERTIES
  OUTPUT_NAME quire EXPORT_NAME quire LINKER_LANGUAGE CXX LINK_DEPENDS "${exports}"
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

# libquire_engine.so: the C functions of engines and sessions. It has the cache inside: a program may
# link libquire.so too, but what it makes with one is nothing to the other.
set(engine_exports "${PROJECT_SOURCE_DIR}/cmake/engine_exports.map")
add_library(quire_engine_shared SHARED $<TARGET_OBJECTS:quire_engine_c>)
target_link_libraries(quire_engine_shared PRIVATE quire_engine_c)
target_link_options(quire_engine_shared PRIVATE "LINKER:--version-script=${engine_exports}"
                    "LINKER:--no-undefined")
set_target_properties(quire_engine_shared PROPERTIES
  OUTPUT_NAME quire_engine EXPORT_NAME engine LINKER_LANGUAGE CXX LINK_DEPENDS "${engine_exports}"
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

# Components are the packages of `make deb` (cmake/QuirePackages.cmake): library, development, program.
install(TARGETS quire_shared quire_engine_shared EXPORT quireTargets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library
        NAMELINK_COMPONENT development
        INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(TARGETS quire RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT program)
install(DIRECTORY include/quire DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT development
        FILES_MATCHING PATTERN "*.h")
# What `quire demo` runs, found from the program's own folder.
file(GLOB model_files CONFIGURE_DEPENDS models/tiny/*.json models/tiny/*.jsonl
     models/tiny/*.safetensors models/tiny/*.txt)
install(FILES ${model_files} DESTINATION "${CMAKE_INSTALL_DATADIR}/quire/models/tiny"
        COMPONENT program)
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT licence)

set(package "${CMAKE_INSTALL_LIBDIR}/cmake/quire")
set(made "${CMAKE_BINARY_DIR}/install")
install(EXPORT quireTargets NAMESPACE quire:: DESTINATION "${package}" COMPONENT development)
configure_package_config_file(cmake/quireConfig.cmake.in "${made}/quireConfig.cmake"
  INSTALL_DESTINATION "${package}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${made}/quireConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${made}/quireConfig.cmake" "${made}/quireConfigVersion.cmake"
        DESTINATION "${package}" COMPONENT development)

# The prefix is where the file is found, so that `cmake --install --prefix` may choose it late.
file(RELATIVE_PATH quire_pc_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" quire_pc_prefix "${quire_pc_prefix}")
configure_file(cmake/quire.pc.in "${made}/quire.pc" @ONLY)
configure_file(cmake/quire-engine.pc.in "${made}/quire-engine.pc" @ONLY)
install(FILES "${made}/quire.pc" "${made}/quire-engine.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig"
        COMPONENT development)
