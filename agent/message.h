#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/frame.h"
#include "agent/proto.h"

/* A whole message: its fields, in memory of its own. */
struct message {
    uint8_t *data; /* malloc'd */
    size_t len;
};

bool message_copy(struct message *ret_message, const void *data, size_t len);
void message_free(struct message *message);

bool message_well_formed(const struct message *message);
bool message_find(const struct message *message, uint16_t tag, struct field *ret_field);
uint64_t message_u64(const struct message *message, uint16_t tag, uint64_t missing);
size_t message_count(const struct message *message, uint16_t tag);

/* Copies the field as a C string into a buffer of SIZE. Returns 1, 0 when it is absent (the buffer
 * is then
 * ""), -1 when it has a NUL or does not fit. */
int message_text(const struct message *message, uint16_t tag, char *buffer, size_t size);

/* Every field of that tag as C strings in one malloc'd array that ends with NULL (free it, it holds
 * the texts too). NULL when memory is out or one has a NUL byte in it: errno is ENOMEM or EINVAL.
 */
char **message_texts(const struct message *message, uint16_t tag, size_t *ret_count);

/* A small message being built on the stack. */
struct reply {
    struct field_writer fields;
    uint8_t room[12288];
};

void reply_init(struct reply *reply);
/* ERROR and MESSAGE, cut to what a reply should hold. */
void reply_error(struct reply *reply, const char *code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void reply_verror(struct reply *reply, const char *code, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

/* The code of base/err_codes.h for an errno value of a file operation. */
const char *errno_code(int errnum);
