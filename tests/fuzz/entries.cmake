podsandbox_fuzz(entries USES podsandbox_frame
    USES_SOURCES ${CMAKE_SOURCE_DIR}/agent/entries.c ${CMAKE_SOURCE_DIR}/agent/frame.c)
