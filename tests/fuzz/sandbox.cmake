podsandbox_fuzz(client USES podsandbox_sandbox
    USES_SOURCES ${CMAKE_SOURCE_DIR}/sandbox/client.c ${CMAKE_SOURCE_DIR}/sandbox/client_channel.c
    ${CMAKE_SOURCE_DIR}/sandbox/client_queue.c ${CMAKE_SOURCE_DIR}/sandbox/fields.c
    ${CMAKE_SOURCE_DIR}/agent/frame.c ${CMAKE_SOURCE_DIR}/base/buf.c ${CMAKE_SOURCE_DIR}/base/err.c
    ${CMAKE_SOURCE_DIR}/base/mem.c ${CMAKE_SOURCE_DIR}/base/str.c)
