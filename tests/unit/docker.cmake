foreach(test docker_container docker_frames docker_place)
    podsandbox_unit_test(${test} USES podsandbox_docker podsandbox_base)
endforeach()
