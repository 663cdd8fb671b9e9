#pragma once

#include "driver/driver.h"
#include "k8s/object.h"

/* The objects beside the pods that carry our labels. */

/* Of one sandbox, or of all when ID is NULL; malloc'd array. Without any right to previews there
 * are none; where some kinds may be listed and others not, that is an error which names the verb.
 */
int side_list(const struct space *space, const char *id, struct side_object **ret_objects,
              size_t *ret_count, struct err *err) must_check;
int side_remove(const struct space *space, const struct side_object *object,
                struct err *err) must_check;
/* Those of the sandbox that are named NAME, or all of them when NAME is NULL. Goes on after a
 * failure and reports the first. */
int side_remove_all(const struct space *space, const char *id, const char *name,
                    struct err *err) must_check;
