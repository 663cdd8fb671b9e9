# The domain, on a scripted substrate (substrate.c, whose agents answer by themselves), step by step.
podsandbox_unit_test(spec USES podsandbox_sandbox)
set(domain_world world.c substrate.c substrate_agent.c stepper.c fake_clock.c temp_dir.c)
foreach(test lifecycle removal create sweep adopt update record previews pack pump pump_endless)
    podsandbox_unit_test(${test} USES podsandbox_sandbox)
    target_sources(test_${test} PRIVATE ${domain_world} stepper_pool.c)
endforeach()
target_sources(test_update PRIVATE fault_vfs.c)
# With the real workers, and callers on many threads.
podsandbox_unit_test(domain_threads USES podsandbox_sandbox)
target_sources(test_domain_threads PRIVATE ${domain_world})
