# `cmake --install`: the server, the agent where the server looks for it, and the unit for systemd, below /usr/local or
# --prefix DIR. systemd finds the program in /usr/local/bin and /usr/bin.
install(TARGETS podsandboxd RUNTIME DESTINATION bin)
install(PROGRAMS ${PODSANDBOX_AGENT} DESTINATION libexec/podsandbox)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/podsandboxd.service DESTINATION lib/systemd/system)
