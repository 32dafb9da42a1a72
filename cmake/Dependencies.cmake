# Libraries, all from Debian packages (scripts/install_packages.sh names them).
add_library(peregrine_dependencies INTERFACE)

find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(spdlog REQUIRED)
find_package(fmt REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(ICU REQUIRED IMPORTED_TARGET icu-uc)
pkg_check_modules(EDIT REQUIRED IMPORTED_TARGET libedit)  # the program only

find_package(OpenSSL REQUIRED)
find_package(Boost 1.81 REQUIRED)
find_package(prometheus-cpp REQUIRED)
pkg_check_modules(TOMLPLUSPLUS REQUIRED IMPORTED_TARGET tomlplusplus)
pkg_check_modules(HIREDIS REQUIRED hiredis)

target_link_libraries(peregrine_dependencies INTERFACE
  Threads::Threads nlohmann_json::nlohmann_json fmt::fmt spdlog::spdlog
  PkgConfig::HWY PkgConfig::ICU Boost::boost OpenSSL::SSL OpenSSL::Crypto
  prometheus-cpp::core PkgConfig::TOMLPLUSPLUS ${HIREDIS_LIBRARIES} $<LINK_ONLY:blake3>)
target_compile_definitions(peregrine_dependencies INTERFACE SPDLOG_FMT_EXTERNAL)
