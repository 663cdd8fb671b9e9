foreach(module err buf str json json_decode text clock log event histogram pipe pool crypto)
    podsandbox_unit_test(${module} USES podsandbox_base)
endforeach()
