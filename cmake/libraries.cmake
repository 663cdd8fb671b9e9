# Third-party libraries; each is used in one folder only (scripts/checksrc watches it).
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(microhttpd REQUIRED IMPORTED_TARGET libmicrohttpd>=0.9.75)
pkg_check_modules(curl REQUIRED IMPORTED_TARGET libcurl>=7.88)
pkg_check_modules(websockets REQUIRED IMPORTED_TARGET libwebsockets>=4.1)
pkg_check_modules(cjson REQUIRED IMPORTED_TARGET libcjson>=1.7.15)
pkg_check_modules(sqlite3 REQUIRED IMPORTED_TARGET sqlite3>=3.40)
pkg_check_modules(sodium REQUIRED IMPORTED_TARGET libsodium>=1.0.18)
pkg_check_modules(yaml REQUIRED IMPORTED_TARGET yaml-0.1)
pkg_check_modules(seccomp REQUIRED IMPORTED_TARGET libseccomp>=2.5)
pkg_check_modules(archive REQUIRED IMPORTED_TARGET libarchive>=3.6)
# libarchive's static library, of which the linker keeps what we call: the shared one brings libxml2 and ICU along, 36 MB
# that nothing here uses. Where there is none, the shared one serves as well.
find_library(ARCHIVE_STATIC_LIBRARY libarchive.a)
if(ARCHIVE_STATIC_LIBRARY)
    pkg_check_modules(archive_needs REQUIRED IMPORTED_TARGET zlib liblzma libzstd nettle)
    set_target_properties(PkgConfig::archive PROPERTIES
        INTERFACE_LINK_LIBRARIES "${ARCHIVE_STATIC_LIBRARY};PkgConfig::archive_needs;bz2"
        INTERFACE_LINK_OPTIONS "-Wl,--gc-sections;-Wl,--as-needed")
endif()
# http_parser has no pkg-config file.
find_path(HTTP_PARSER_INCLUDE_DIR http_parser.h REQUIRED)
find_library(HTTP_PARSER_LIBRARY http_parser REQUIRED)
add_library(http_parser::http_parser UNKNOWN IMPORTED)
set_target_properties(http_parser::http_parser PROPERTIES
    IMPORTED_LOCATION ${HTTP_PARSER_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${HTTP_PARSER_INCLUDE_DIR})
# Nor has wslay.
find_path(WSLAY_INCLUDE_DIR wslay/wslay.h REQUIRED)
find_library(WSLAY_LIBRARY wslay REQUIRED)
add_library(wslay::wslay UNKNOWN IMPORTED)
set_target_properties(wslay::wslay PROPERTIES
    IMPORTED_LOCATION ${WSLAY_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${WSLAY_INCLUDE_DIR})
if(BUILD_TESTING)
    pkg_check_modules(check REQUIRED IMPORTED_TARGET check)
endif()
