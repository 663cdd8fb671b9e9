#pragma once

#include <stddef.h>
#include <stdint.h>

/* What the fake driver wants to know of requests; nothing happens with another driver. */
struct request;
struct preview_request;

void note_preview(struct request *request, const struct preview_request *preview);
void note_preview_removed(struct request *request, int64_t port);
void note_secrets(struct request *request, size_t count);
/* The id that a test has prepared for the next create, malloc'd, or NULL. */
char *take_prepared_id(struct request *request);
