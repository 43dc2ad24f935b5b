# Every library of docs/dependencies.md as an imported target. All come from Debian packages, see
# scripts/install-deps.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(hwy REQUIRED)             # hwy::hwy
find_package(absl REQUIRED)            # absl::flat_hash_map, ...
find_package(nlohmann_json REQUIRED)   # nlohmann_json::nlohmann_json
find_package(CLI11 REQUIRED)           # CLI11::CLI11
find_package(fmt REQUIRED)             # fmt::fmt
find_package(spdlog REQUIRED)          # spdlog::spdlog
find_package(ZLIB REQUIRED)            # ZLIB::ZLIB
find_package(Boost 1.81 REQUIRED)      # Boost::headers: Asio and Beast
find_package(OpenSSL REQUIRED)         # OpenSSL::SSL, OpenSSL::Crypto
find_package(CURL REQUIRED)            # its headers alone (src/remote/libcurl.h)
find_package(prometheus-cpp REQUIRED)  # prometheus-cpp::core
find_package(GTest REQUIRED)           # GTest::gtest_main, GTest::gmock
find_package(rapidcheck REQUIRED)      # rapidcheck, rapidcheck_gtest

# Packages that only know pkg-config: PkgConfig::sodium, PkgConfig::isal, PkgConfig::pcre2,
# PkgConfig::utf8proc, PkgConfig::uring, PkgConfig::sqlite3; of libzmq the headers alone
# (src/events/libzmq.h), and of Open MPI (src/ranks/libmpi.h)
pkg_check_modules(sodium REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(isal REQUIRED IMPORTED_TARGET libisal)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(uring REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(sqlite3 REQUIRED IMPORTED_TARGET sqlite3)
pkg_check_modules(zmq REQUIRED libzmq)
pkg_check_modules(mpi REQUIRED ompi-c)

# libipsec-mb: its header alone (src/keys/wide_gcm.cc), where compilers look by themselves.
find_path(QUIRE_IPSEC_MB_INCLUDE intel-ipsec-mb.h REQUIRED)
