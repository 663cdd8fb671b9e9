# Sourced by the scripts of this folder: where the test cluster lives, and how its programs are started and stopped.
# One such cluster per machine.
state=${PODSANDBOX_CLUSTER:-/var/tmp/podsandbox-cluster}
node_ns=podsandbox-node # network namespace of the node
node_ip=10.96.255.1
admin_kubeconfig=$state/conf/admin.kubeconfig
export PATH="$state/bin:$PATH"

in_node() { nsenter --net="/run/netns/$node_ns" "$@"; }

# start NAME COMMAND…: detached, inside the namespace; its pid and log are kept under $state.
start() {
    local name=$1
    shift
    (
        for fd in /proc/self/fd/*; do # such as a lock that the caller holds: it would be held as long as this runs
            fd=${fd##*/}
            [ "$fd" -le 2 ] || eval "exec $fd>&-"
        done
        exec setsid nsenter --net="/run/netns/$node_ns" "$@" >>"$state/log/$name.log" 2>&1 </dev/null
    ) &
    echo $! >"$state/run/$name.pid"
}

is_running() { # NAME: its recorded pid exists and is still that program
    [ -s "$state/run/$1.pid" ] && grep -aq "$1" "/proc/$(cat "$state/run/$1.pid")/cmdline" 2>/dev/null
}

# stop NAME: TERM to its process group, KILL after 2 s.
stop() {
    local pid
    is_running "$1" || return 0
    pid=$(cat "$state/run/$1.pid")
    kill -- "-$pid" 2>/dev/null || kill "$pid" 2>/dev/null
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    kill -9 "$pid" 2>/dev/null
    rm -f "$state/run/$1.pid"
}
