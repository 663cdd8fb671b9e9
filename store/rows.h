#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The records. Times are wall-clock milliseconds, 0 when not set. Texts in rows that a query
 * returns are malloc'd and belong to the row (free them by …_done or …_free); in rows given in they
 * are borrowed. */

struct sandbox_row {
    char *uid; /* primary key; ours, new for each life of an id */
    char *id;
    char *owner;
    char *state;  /* creating, running, deleting, failed, gone */
    char *reason; /* a code of base/err_codes.h, or NULL */
    char *message;
    char *image;
    char *spec;   /* JSON: the public part, as shown */
    char *labels; /* JSON object */
    void *sealed; /* env and secrets, sealed by the domain */
    size_t sealed_len;
    int64_t sealed_version; /* of the blob that the agent has, too */
    char *digest;
    char *box_uid, *node, *container_id;
    int64_t created, since, ready, ended; /* since: of the state */
    int64_t deadline;                     /* ttl */
    int64_t last_exec;                    /* number of the newest exec */
};
void sandbox_row_done(struct sandbox_row *row);
void sandbox_rows_free(struct sandbox_row *rows, size_t count);

struct state_row {
    char *state, *reason, *message;
    int64_t at;
};
void state_rows_free(struct state_row *rows, size_t count);

struct exec_row {
    char *uid; /* the sandbox's */
    int64_t number;
    char *state;  /* running, exited */
    char *spec;   /* JSON as shown: cmd scrubbed, workdir, timeout… */
    char *result; /* JSON of the facts, NULL while running */
    int64_t created, ended;
    bool committed;  /* the agent may forget it */
    int64_t session; /* whose shell runs it; its own number: it is that shell; 0: neither */
};
void exec_row_done(struct exec_row *row);
void exec_rows_free(struct exec_row *rows, size_t count);

struct preview_row {
    char *uid;
    int64_t port;
    bool first;
    char *host; /* or NULL */
    char *service, *ingress;
    int64_t exec; /* number of its command's exec, 0: none */
    char *spec;   /* JSON as shown */
    int64_t created;
};
void preview_row_done(struct preview_row *row);
void preview_rows_free(struct preview_row *rows, size_t count);

struct event_row {
    int64_t seq; /* given by the store, never twice */
    char *uid;   /* the sandbox's; NULL: of the server itself */
    char *type;
    char *detail; /* JSON object */
    int64_t at;
};
void event_rows_free(struct event_row *rows, size_t count);

struct idempotency_row {
    const char *owner, *route, *key;
    const char *digest; /* of the canonical body */
    char uid[64];
    int64_t number;
};

struct state_count {
    char state[16];
    int64_t count;
};
