podsandbox_fuzz(ws_server USES podsandbox_net
    USES_SOURCES ${CMAKE_SOURCE_DIR}/net/ws_server.c ${CMAKE_SOURCE_DIR}/base/buf.c ${CMAKE_SOURCE_DIR}/base/err.c
    ${CMAKE_SOURCE_DIR}/base/mem.c ${CMAKE_SOURCE_DIR}/base/str.c)
if(TARGET fuzz_ws_server_run)
    target_link_libraries(fuzz_ws_server_run PRIVATE wslay::wslay crypto)
endif()
