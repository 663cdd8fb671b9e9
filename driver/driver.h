#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "driver/box.h"
#include "net/stream.h"

/* The interface between the domain (sandbox/) and a substrate (k8s/, docker/, local/, fake/). A box
 * is what the substrate runs for one sandbox: a pod, a container, a process tree. */

/* Called on the driver's watch thread; must not block on the network. */
struct box_observer {
    void (*changed)(void *arg, const struct box_info *info);
    /* A whole list: every box of ours there is, at start and after each gap in the watch. */
    void (*listed)(void *arg, const struct box_info *infos, size_t count);
    /* WHY NULL: the substrate answers again. */
    void (*health)(void *arg, const struct err *why);
    void *arg;
};

struct driver {
    const struct driver_ops *ops;
    void *self;
};

/* What every box of a driver keeps beyond what the domain does alike for all of them. `promises` of
 * /v1/capabilities, and what the conformance tests skip by: a promise that is not made is told
 * here. */
struct driver_promises {
    bool programs;        /* a command is a process in the box; else its result is made up */
    bool posix_files;     /* users, modes, links and special files, and `..` as a kernel has it */
    bool images;          /* an image that is not there fails the create */
    bool previews;        /* a program that listens can be reached from outside */
    bool runtime_classes; /* `runtime_class` chooses among several */
    bool adoption; /* boxes outlive the server, which finds them again, without its store too */
};

/* Calls block (on a worker, never on the loop thread) unless stated otherwise, and are thread-safe.
 */
struct driver_ops {
    const char *name;
    struct driver_promises promises;
    /* Starts the watch; the first `listed` comes from it, soon or when the substrate answers. */
    int (*start)(void *self, const struct box_observer *observer, struct err *err);
    /* Ends the watch: no callback of the observer follows, and calls fail soon. */
    void (*stop)(void *self);
    void (*free)(void *self); /* after stop, when no call runs and no stream is open */

    /* Validates with the substrate without making anything. */
    int (*check)(void *self, const struct box_spec *spec, struct err *err);
    /* Idempotent by id and uid: an existing box with the same uid is success; another one is
     * ERR_ALREADY_EXISTS. Fills RET_INFO. Nothing is left behind on failure. */
    int (*create)(void *self, const struct box_spec *spec, struct box_info *ret_info,
                  struct err *err);
    /* Asks for the end of the box (only of BOX_UID when not "") and its side objects; success also
     * when nothing is there. The end of the box itself is told by the observer. A failure says what
     * is left; the box may be gone all the same. */
    int (*destroy)(void *self, const char *id, const char *box_uid, struct err *err);
    /* Fresh from the substrate: ERR_BACKEND_NOT_FOUND when there is none. */
    int (*inspect)(void *self, const char *id, struct box_info *ret_info, struct err *err);
    /* Every box, ours or foreign, if FOREIGN; malloc'd array. */
    int (*list)(void *self, bool foreign, struct box_info **ret_infos, size_t *ret_count,
                struct err *err);

    /* This and unpublish are NULL where the substrate has no way of its own: the server's proxy
     * serves previews then. */
    int (*publish)(void *self, const struct preview_spec *spec, struct preview_names *ret_names,
                   struct err *err);
    int (*unpublish)(void *self, const char *id, int64_t port, bool first, struct err *err);
    int (*side_objects)(void *self, struct side_object **ret_objects, size_t *ret_count,
                        struct err *err);
    int (*remove_side_object)(void *self, const struct side_object *object, struct err *err);

    /* Loop thread, does not block: opens a stream to the agent of the box; the handler hears of it.
     * A refusal comes as `closed` with ERR_NOT_READY (try again), ERR_SANDBOX_GONE, or another
     * code. */
    struct stream *(*open)(void *self, const char *id, const char *box_uid,
                           const struct stream_handler *handler, void *arg);

    /* Adds what this driver can do and which promises hold to the reply of /v1/capabilities. */
    void (*capabilities)(void *self, struct json *object);
};
