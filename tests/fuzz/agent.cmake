# podsandbox_fuzz(NAME USES …): fuzz_NAME.c with LLVMFuzzerTestOneInput. Its corpus replays as an ordinary
# test with any compiler; with clang there is also `fuzz_NAME_run`, the fuzzer itself (built on demand:
# it compiles the sources in USES_SOURCES again, with coverage).
function(podsandbox_fuzz name)
    cmake_parse_arguments(arg "" "" "USES;USES_SOURCES" ${ARGN})
    add_executable(fuzz_${name} fuzz_${name}.c replay.c)
    target_link_libraries(fuzz_${name} PRIVATE podsandbox_flags podsandbox_pie ${arg_USES})
    add_test(NAME fuzz_${name}
        COMMAND fuzz_${name} ${CMAKE_CURRENT_SOURCE_DIR}/corpus/${name})
    set_tests_properties(fuzz_${name} PROPERTIES LABELS fuzz TIMEOUT 120)
    if(CMAKE_C_COMPILER_ID MATCHES Clang AND NOT PODSANDBOX_SANITIZE)
        add_executable(fuzz_${name}_run EXCLUDE_FROM_ALL fuzz_${name}.c ${arg_USES_SOURCES})
        target_link_libraries(fuzz_${name}_run PRIVATE podsandbox_flags)
        target_compile_options(fuzz_${name}_run PRIVATE -g -fsanitize=fuzzer,address,undefined)
        target_link_options(fuzz_${name}_run PRIVATE -fsanitize=fuzzer,address,undefined)
    endif()
endfunction()

podsandbox_fuzz(frame USES podsandbox_agent_parts podsandbox_frame
    USES_SOURCES ${CMAKE_SOURCE_DIR}/agent/frame.c ${CMAKE_SOURCE_DIR}/agent/message.c
    ${CMAKE_SOURCE_DIR}/agent/environment.c)
