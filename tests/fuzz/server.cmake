podsandbox_fuzz(http USES podsandbox_http
    USES_SOURCES ${CMAKE_SOURCE_DIR}/server/framing.c ${CMAKE_SOURCE_DIR}/server/origin.c
    ${CMAKE_SOURCE_DIR}/server/route.c ${CMAKE_SOURCE_DIR}/server/uri.c)
if(TARGET fuzz_http_run)
    target_link_libraries(fuzz_http_run PRIVATE podsandbox_base) # what those call
endif()
podsandbox_fuzz(upstream USES podsandbox_http
    USES_SOURCES ${CMAKE_SOURCE_DIR}/server/upstream_head.c ${CMAKE_SOURCE_DIR}/server/upstream_parser.c
    ${CMAKE_SOURCE_DIR}/server/upstream_request.c ${CMAKE_SOURCE_DIR}/server/framing.c)
if(TARGET fuzz_upstream_run)
    target_link_libraries(fuzz_upstream_run PRIVATE http_parser::http_parser podsandbox_base) # what those call
endif()
