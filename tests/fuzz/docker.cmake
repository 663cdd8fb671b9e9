set(docker_readers container frames)
list(TRANSFORM docker_readers PREPEND ${CMAKE_SOURCE_DIR}/docker/)
list(TRANSFORM docker_readers APPEND .c)
podsandbox_fuzz(docker USES podsandbox_docker USES_SOURCES ${docker_readers})
if(TARGET fuzz_docker_run)
    target_link_libraries(fuzz_docker_run PRIVATE podsandbox_docker) # what those readers call
endif()
