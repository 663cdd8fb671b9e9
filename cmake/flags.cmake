# Warnings and hardening, the same for every target; `podsandbox_flags` carries them.
add_library(podsandbox_flags INTERFACE)
target_include_directories(podsandbox_flags INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_definitions(podsandbox_flags INTERFACE _GNU_SOURCE)
target_compile_options(podsandbox_flags INTERFACE
    -Wall -Wextra -Werror -Wshadow -Wconversion -Wformat=2 -Wstrict-prototypes -Wmissing-prototypes
    -Wundef -Wvla -Wwrite-strings -Wpointer-arith -Wimplicit-fallthrough
    $<$<C_COMPILER_ID:GNU>:-Wno-format-truncation> # snprintf is where we cut on purpose
    -fstack-protector-strong -fvisibility=hidden
    $<$<CONFIG:Release>:-O2 -D_FORTIFY_SOURCE=3>
    $<$<CONFIG:Debug>:-Og -g>)

if(PODSANDBOX_SANITIZE)
    target_compile_options(podsandbox_flags INTERFACE
        -fsanitize=${PODSANDBOX_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    target_link_options(podsandbox_flags INTERFACE -fsanitize=${PODSANDBOX_SANITIZE})
endif()

# Position-independent programs of our own; the agent is static and does not take these.
add_library(podsandbox_pie INTERFACE)
target_compile_options(podsandbox_pie INTERFACE -fPIE)
target_link_options(podsandbox_pie INTERFACE -pie -Wl,-z,relro,-z,now)

# Ours alone: CMake's own defaults would add -O3 and take the assertions out.
set(CMAKE_C_FLAGS_RELEASE "")
set(CMAKE_C_FLAGS_DEBUG "")
