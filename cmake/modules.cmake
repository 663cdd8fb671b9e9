# podsandbox_module(NAME SOURCES … USES …): the static library of one folder.
# USES names the folders below it and the third-party libraries it wraps.
function(podsandbox_module name)
    cmake_parse_arguments(arg "" "" "SOURCES;USES" ${ARGN})
    add_library(podsandbox_${name} STATIC ${arg_SOURCES})
    target_link_libraries(podsandbox_${name}
        PRIVATE podsandbox_flags podsandbox_pie
        PUBLIC ${arg_USES})
endfunction()

# podsandbox_unit_test(NAME USES …): tests/unit/test_NAME.c, one Check program, CTest label `unit`.
function(podsandbox_unit_test name)
    cmake_parse_arguments(arg "" "" "USES" ${ARGN})
    add_executable(test_${name} test_${name}.c)
    target_link_libraries(test_${name}
        PRIVATE podsandbox_flags podsandbox_pie ${arg_USES} PkgConfig::check)
    add_test(NAME ${name} COMMAND test_${name})
    set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT 120)
    if(PODSANDBOX_SANITIZE)
        set_tests_properties(${name} PROPERTIES ENVIRONMENT CK_FORK=no)
    endif()
endfunction()
