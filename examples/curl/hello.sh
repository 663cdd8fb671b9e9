#!/bin/sh
# The smallest use, by curl alone: a file goes in, a command reads it, its output comes back.
#
#   examples/curl/hello.sh [IMAGE]        default: host, the local driver's own
#
# PODSANDBOX_URL says where the API is, PODSANDBOX_API_KEY is its key.
set -eu
api=${PODSANDBOX_URL:-http://127.0.0.1:8080}/v1/sandboxes
box=hello-$$

key() { # as curl reads it from its input, so that no command line has it
    [ -z "${PODSANDBOX_API_KEY:-}" ] || printf 'header = "Authorization: Bearer %s"\n' "$PODSANDBOX_API_KEY"
}
call() { # METHOD PATH [CURL-OPTION...]
    method=$1 path=$2
    shift 2
    key | curl --silent --show-error --fail-with-body --config - --request "$method" "$@" "$api$path"
}
post() { # PATH JSON
    call POST "$1" --header 'Content-Type: application/json' --data "$2"
}

trap 'call DELETE "/$box"' EXIT
post "" "{\"id\": \"$box\", \"image\": \"${1:-host}\", \"ttl\": 600}"
call PUT "/$box/files?path=data.txt" --data-binary 'one two three'
post "/$box/execs" '{"cmd": ["wc", "-w", "data.txt"]}' # all about it, as JSON
call GET "/$box/execs/1/output"                        # what it wrote, as it is
