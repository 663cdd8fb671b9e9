foreach(test kubeconfig k8s_credentials k8s_status k8s_pod k8s_preview k8s_reason k8s_watch
             k8s_channel)
    podsandbox_unit_test(${test} USES podsandbox_k8s podsandbox_base)
    target_sources(test_${test} PRIVATE temp_dir.c k8s_support.c)
endforeach()
# These start k8s_server.py as the API server.
foreach(test k8s_api k8s_driver k8s_follow k8s_stream)
    podsandbox_unit_test(${test} USES podsandbox_k8s podsandbox_base)
    target_sources(test_${test} PRIVATE temp_dir.c k8s_support.c k8s_peer.c)
    target_compile_definitions(test_${test}
        PRIVATE K8S_SERVER="${CMAKE_CURRENT_SOURCE_DIR}/k8s_server.py")
endforeach()
foreach(test k8s_driver k8s_follow)
    target_sources(test_${test} PRIVATE k8s_boxes.c)
endforeach()
