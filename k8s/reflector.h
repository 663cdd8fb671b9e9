#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "k8s/object.h"

/* Follows one kind of objects: a list, then a watch from where the list ended, then the watch again
 * from the last version seen; a new list when the server has forgotten that version or could not be
 * reached. Runs on a thread of the caller's and calls back on it. */
struct reflector {
    const struct space *space;
    enum kind kind;
    struct selector selector;
    const _Atomic bool *stop;

    struct object_sink listing; /* `begin` may be called again before `listed` */
    void (*listed)(void *arg);  /* the list is whole */
    /* TYPE is "ADDED", "MODIFIED" or "DELETED". */
    void (*event)(void *arg, const char *type, const struct json *object);
    /* Whether the server can be reached and lets us: once for each change. WHY NULL: it does. */
    void (*health)(void *arg, const struct err *why);
    void *arg;
};

void reflector_run(const struct reflector *reflector);

/* One line of a watch, for tests: takes the new version out of it into *VERSION (malloc'd,
 * replaced) and calls `event`. ERR_BACKEND_EXPIRED: the list has to be made anew. */
int reflector_line(const struct reflector *reflector, const char *text, size_t len, char **version,
                   struct err *err);
