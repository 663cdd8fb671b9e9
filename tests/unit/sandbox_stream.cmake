# The stream to the agent from the server's side: its state machine, the connection, calls and executions.
podsandbox_unit_test(ranges USES podsandbox_sandbox)
foreach(test client client_channel)
    podsandbox_unit_test(${test} USES podsandbox_sandbox)
    target_sources(test_${test} PRIVATE client_probe.c)
endforeach()
podsandbox_unit_test(link USES podsandbox_sandbox)
target_sources(test_link PRIVATE fake_loop.c fake_stream.c)
foreach(test call exec exec_output exec_input exec_cuts follow attachment)
    podsandbox_unit_test(${test} USES podsandbox_sandbox)
    target_sources(test_${test}
        PRIVATE fake_loop.c fake_stream.c fake_domain.c domain_double.c temp_dir.c)
endforeach()
foreach(test exec exec_output exec_input exec_cuts follow attachment)
    target_sources(test_${test} PRIVATE exec_script.c)
    target_link_options(test_${test} PRIVATE -Wl,--wrap=store_put_exec)
endforeach()
target_sources(test_follow PRIVATE fake_clock.c)

# With the real agent, which needs a PID namespace: unprivileged user namespaces, or root.
podsandbox_unit_test(agent_stream USES podsandbox_sandbox)
target_sources(test_agent_stream PRIVATE poll_loop.c domain_double.c temp_dir.c)
target_compile_definitions(test_agent_stream PRIVATE PODSANDBOX_AGENT="${PODSANDBOX_AGENT}")
add_dependencies(test_agent_stream podsandbox_agent_program)
