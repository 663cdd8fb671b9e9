foreach(module http http_streams http_stop route framing problem callers upstream preview_gate)
    podsandbox_unit_test(${module} USES podsandbox_http)
endforeach()
# Over raw sockets, with routes of their own.
foreach(module http http_streams http_stop)
    target_sources(test_${module} PRIVATE http_support.c http_routes.c http_no_previews.c)
endforeach()
podsandbox_unit_test(options USES podsandbox_server)
# Stepped by hand, with doubles of the execution and of the thread.
podsandbox_unit_test(attached USES podsandbox_server)
target_sources(test_attached PRIVATE fake_clock.c)
