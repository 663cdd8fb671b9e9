#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "tests/unit/k8s_support.h"

/* k8s_server.py, with a kubeconfig that leads to it and whose token is in a file, "T1" at first. */
struct k8s_peer {
    pid_t pid;
    int input; /* the server ends when it is closed */
    int port;
    struct temp_dir dir;
    char *kubeconfig;
};

void peer_start(struct k8s_peer *ret_peer);
void peer_stop(struct k8s_peer *peer);

/* RULES in JSON with single quotes; see k8s_server.py. Clears the log. */
void peer_script(const struct k8s_peer *peer, const char *rules);

/* What was asked, a request a line, malloc'd. */
char *peer_log(const struct k8s_peer *peer);
/* How many requests begin with START ("GET /api"). */
int peer_count(const struct k8s_peer *peer, const char *start);
/* Waits until there are COUNT such requests; false after 20 s. */
bool peer_await(const struct k8s_peer *peer, const char *start, int count);
