#pragma once

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"
#include "driver/box.h"
#include "local/cgroup.h"

/* What a box is made of, as arguments of bubblewrap. Nothing is made here. */

#define BOX_HOME "/home/sandbox"
#define BOX_AGENT "/opt/podsandbox/podsandbox-agent"

/* The descriptors that bubblewrap gets, by number. */
enum box_fd {
    BOX_FD_LISTEN = 3, /* handed on to the agent */
    BOX_FD_STATUS,     /* where bubblewrap writes how the box ended */
    BOX_FD_INFO,       /* a pipe, for the agent's pid */
    BOX_FD_KNOWN,      /* the filters */
    BOX_FD_REFUSED,
    BOX_FD_PASSWD, /* files of /etc */
    BOX_FD_GROUP,
    BOX_FD_HOSTS,
    BOX_FD_RESOLV,
    BOX_FD_END,
};

struct plan {
    const struct box_spec *spec;
    const char *bwrap; /* path of the program */
    const char *agent; /* on this machine */
    const char *root;  /* of the image; NULL: the machine's own */
    uint64_t storage;  /* bytes, of each writable place */
    const struct cgroup_paths *cgroup;
    bool version_2;            /* of control groups */
    int64_t without_server_ms; /* then the box ends; 0: it does not */
};

/* Appends the whole command, its name first. */
int plan_command(const struct plan *plan, struct text_list *ret_arguments,
                 struct err *err) must_check;
/* IMAGE: of the image, or NULL. */
void plan_environment(const struct text_list *image, struct text_list *ret_environment);

/* The contents of what BOX_FD_PASSWD to BOX_FD_RESOLV are to hold, malloc'd; NULL: it is not
 * needed. */
char *plan_file(const struct plan *plan, enum box_fd which);
