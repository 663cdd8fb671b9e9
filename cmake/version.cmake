# The version that --version shows: the nearest tag and what came since, or the project's own.
find_package(Git QUIET)
set(PODSANDBOX_VERSION ${PROJECT_VERSION})
if(GIT_FOUND)
    execute_process(
        COMMAND ${GIT_EXECUTABLE} describe --tags --always --dirty
        WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
        OUTPUT_VARIABLE described
        OUTPUT_STRIP_TRAILING_WHITESPACE
        ERROR_QUIET
        RESULT_VARIABLE failed)
    if(NOT failed AND described)
        set(PODSANDBOX_VERSION "${PROJECT_VERSION}+${described}")
    endif()
endif()
