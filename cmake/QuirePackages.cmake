# Debian packages from the install rules (`make deb`): libquire<soname>, libquire-dev and quire.
# scripts/package-files makes what only packages have (copyright, changelog, man page).
if(NOT TARGET quire_shared)
  return()
endif()

set(QUIRE_MAINTAINER "Quire maintainers <maintainers@quire.invalid>" CACHE STRING
    "Who answers for the packages: NAME <ADDRESS>")
set(soname "${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}")
set(library "libquire${soname}")

# Only when a component is installed by name: `make install` leaves these out.
set(files "${CMAKE_BINARY_DIR}/package-files")
foreach(component library development program)
  set(name_library "${library}")
  set(name_development libquire-dev)
  set(name_program quire)
  install(FILES "${files}/${component}/copyright" "${files}/changelog.gz"
          DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/${name_${component}}"
          COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()
install(FILES "${files}/quire.1.gz" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1"
        COMPONENT program EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME quire)
set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL library development program)
# Packages are stripped; their symbols are in packages of their own, NAME-dbgsym.
set(CPACK_DEBIAN_DEBUGINFO_PACKAGE ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${QUIRE_MAINTAINER}")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
# Dependencies on libraries are what dpkg-shlibdeps finds in the programs.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME "${library}")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
# Loaded for s3://, events, and for ciphers on processors that have wide AES.
set(CPACK_DEBIAN_LIBRARY_PACKAGE_RECOMMENDS "libcurl4, libzmq5, libipsec-mb1")
# The `shlibs` file: programs that link libquire.so get their dependency on this package from it.
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
file(WRITE "${files}/triggers" "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA "${files}/triggers")
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "KV cache of LLM inference: shared library
Quire is the KV cache of LLM inference as a library: paged, shared by prefix,
within a hard budget, with attention kernels that read it in place.

This package has the shared library.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libquire-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${library} (= ${PROJECT_VERSION})")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "KV cache of LLM inference: headers
Quire is the KV cache of LLM inference as a library: paged, shared by prefix,
within a hard budget, with attention kernels that read it in place.

This package has the headers, the CMake package and quire.pc. The C++
interface needs C++23, the C interface C99.")

set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME quire)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS "libcurl4, libzmq5, libipsec-mb1")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SUGGESTS "openmpi-bin")  # loaded for --ranks
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION "KV cache of LLM inference: command line
Quire is the KV cache of LLM inference: paged, shared by prefix, within a
hard budget, with attention kernels that read it in place.

This package has the program, which runs Llama, Mistral and Qwen models on
the cache, and the small model of 'quire demo'.")

include(CPack)
