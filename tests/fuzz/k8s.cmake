set(k8s_readers channel delivery plugin reason reflector status tracker yaml)
list(TRANSFORM k8s_readers PREPEND ${CMAKE_SOURCE_DIR}/k8s/)
list(TRANSFORM k8s_readers APPEND .c)
podsandbox_fuzz(k8s USES podsandbox_k8s USES_SOURCES ${k8s_readers})
if(TARGET fuzz_k8s_run)
    target_link_libraries(fuzz_k8s_run PRIVATE podsandbox_k8s) # what those readers call
endif()
