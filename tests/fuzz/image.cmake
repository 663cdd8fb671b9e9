podsandbox_fuzz(image USES podsandbox_local
    USES_SOURCES ${CMAKE_SOURCE_DIR}/local/image_oci.c ${CMAKE_SOURCE_DIR}/local/image_tree.c
    ${CMAKE_SOURCE_DIR}/local/image_unpack.c)
if(TARGET fuzz_image_run)
    target_link_libraries(fuzz_image_run PRIVATE podsandbox_local) # what those call
endif()
