#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/frame.h"
#include "agent/proto.h"
#include "base/buf.h"
#include "base/err.h"

/* Messages of the agent stream (agent/frame.h fields) built in a growing buffer, and looked up by
 * tag. */

/* A missing field means its default, so a builder that ran out of room must not be sent: `overflow`
 * of the buffer tells. */
void fields_put(struct buf *message, uint16_t tag, const void *data, size_t len);
void fields_put_u64(struct buf *message, uint16_t tag, uint64_t value);
void fields_put_text(struct buf *message, uint16_t tag, const char *text);

/* The first field of that tag. All give false and leave RET alone when there is none. */
bool fields_find(const void *message, size_t len, uint16_t tag, struct field *ret_field);
bool fields_u64(const void *message, size_t len, uint16_t tag, uint64_t *ret_value);
char *fields_text(const void *message, size_t len,
                  uint16_t tag); /* malloc'd up to a NUL, or NULL */
/* ERROR and MESSAGE. A code that this server does not know becomes UNKNOWN, with its name in the
 * message. */
bool fields_error(const void *message, size_t len, enum err_code unknown, struct err *ret_err);
