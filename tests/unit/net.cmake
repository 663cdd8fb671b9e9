foreach(test loop timers http_client http_lines ws ws_life ws_server)
    podsandbox_unit_test(${test} USES podsandbox_net podsandbox_base)
endforeach()
# These start net_server.py as their peer.
foreach(test http_client http_lines ws ws_life)
    target_sources(test_${test} PRIVATE net_support.c)
    target_compile_definitions(test_${test}
        PRIVATE NET_SERVER="${CMAKE_CURRENT_SOURCE_DIR}/net_server.py")
endforeach()
target_sources(test_ws PRIVATE net_ws_client.c)
target_sources(test_ws_life PRIVATE net_ws_client.c)
