#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/text.h"

/* What is said of boxes and of what stands beside them: plain values, from and to the drivers. */

#define ID_LEN 41  /* sandbox id with its NUL */
#define UID_LEN 64 /* a uid of ours or of the substrate, with its NUL */
#define OWNER_LEN 129
#define BOX_MESSAGE_LEN 1024

/* What the driver needs to make a box. Borrowed; nothing secret is in here. */
struct box_spec {
    const char *id;
    const char *uid; /* ours, of this life of the id */
    const char *owner;
    int64_t created_ms;
    const char *digest; /* of the public spec */
    const char *image;
    const char *pull_policy; /* IfNotPresent, Always, Never */
    int64_t run_as_user, run_as_group;
    bool read_only_root;
    const char *workdir;
    const struct text_list *writable_mounts; /* absolute paths, checked */
    const char *cpu_limit, *cpu_request, *memory_limit, *memory_request, *storage_limit;
    const char *runtime_class; /* NULL: the operator's default, or none */
    const char *network;       /* "internet" or "none" */
    const char *profile;       /* "hardened"; "compat": the image's own user */
    int64_t max_lifetime_ms;   /* from creation: the substrate's own last resort */
    size_t secrets;            /* how many values are masked; not which */
};

enum box_state {
    BOX_STARTING,   /* exists, not yet on a node */
    BOX_ATTACHABLE, /* an agent may answer from now on: try */
    BOX_FAILED,     /* will not run, or has ended; `reason` and `message` say why */
    BOX_GONE,       /* no longer exists */
};

/* What the substrate says of a box. Plain values. */
struct box_info {
    char id[ID_LEN];
    char uid[UID_LEN]; /* ours; "" on a box that is not ours (foreign) */
    char owner[OWNER_LEN];
    char digest[72];
    char box_uid[UID_LEN]; /* the substrate's: the pod's uid */
    char name[64];
    char node[254];
    char container_id[128];
    char image[512];
    char cpu_limit[24], memory_limit[24];
    uint64_t pids_limit,
        storage_limit; /* enforced beside what its agent sees; 0: not, or unknown */
    char runtime_class[64];
    char workdir[256];
    int64_t created_ms;
    enum box_state state;
    bool ended_well; /* BOX_FAILED: the agent exited by itself (deadline, TERM), not a fault */
    bool waiting; /* cannot go on now but may (unschedulable, pulling slowly): `reason` is what for
                   */
    enum err_code reason;
    char message[BOX_MESSAGE_LEN]; /* the substrate's own words */
    bool foreign;                  /* of another instance, or of another tool */
};

struct preview_spec {
    const char *id, *uid, *owner, *box_uid;
    int64_t port;
    bool first;       /* named preview-<id>; further ones preview<port>-<id> */
    const char *host; /* checked by the domain */
};

struct preview_names {
    char service[64];
    char ingress[64];
};

/* An object beside the boxes that carries our labels (Service, Ingress, NetworkPolicy). */
struct side_object {
    char kind[24];
    char name[64];
    char id[ID_LEN];
    char uid[UID_LEN];     /* the object's */
    char box_uid[UID_LEN]; /* the owner reference's, or "" */
    char host[254];        /* of an Ingress */
    int64_t port;          /* of a Service or Ingress */
};
