#pragma once

#include "docker/engine.h"

/* Fetching an image. */
struct pull_progress {
    void (*told)(void *arg, const char *text); /* not more often than twice a second; may be NULL */
    void *arg;
    const _Atomic bool *cancelled;
};

/* Blocks until the image is there. ERR_IMAGE_PULL_FAILED with the registry's words, also when they
 * come inside of an answer that began as a success; ERR_INVALID_IMAGE. */
int pull_image(struct engine *engine, const char *image, const struct pull_progress *progress,
               struct err *err) must_check;

/* The path of the request, malloc'd: never one that fetches all tags. NULL when IMAGE is too long.
 */
char *pull_path(const char *image);
