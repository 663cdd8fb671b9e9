#include "agent/message.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool message_copy(struct message *ret_message, const void *data, size_t len)
{
    uint8_t *copy = malloc(len + 1); /* never 0 bytes */
    if (copy == NULL)
        return false;
    if (len > 0)
        memcpy(copy, data, len);
    *ret_message = (struct message){.data = copy, .len = len};
    return true;
}

void message_free(struct message *message)
{
    free(message->data);
    *message = (struct message){0};
}

bool message_well_formed(const struct message *message)
{
    struct field_reader reader;
    struct field field;
    field_reader_init(&reader, message->data, message->len);
    while (field_next(&reader, &field))
        continue;
    return !reader.broken;
}

bool message_find(const struct message *message, uint16_t tag, struct field *ret_field)
{
    struct field_reader reader;
    struct field field;
    field_reader_init(&reader, message->data, message->len);
    while (field_next(&reader, &field)) {
        if (field.tag == tag) {
            *ret_field = field;
            return true;
        }
    }
    return false;
}

uint64_t message_u64(const struct message *message, uint16_t tag, uint64_t missing)
{
    struct field field;
    uint64_t value;
    if (!message_find(message, tag, &field) || !field_u64(&field, &value))
        return missing;
    return value;
}

size_t message_count(const struct message *message, uint16_t tag)
{
    struct field_reader reader;
    struct field field;
    size_t count = 0;
    field_reader_init(&reader, message->data, message->len);
    while (field_next(&reader, &field))
        count += field.tag == tag;
    return count;
}

int message_text(const struct message *message, uint16_t tag, char *buffer, size_t size)
{
    struct field field;
    buffer[0] = '\0';
    if (!message_find(message, tag, &field))
        return 0;
    if (field.len >= size || memchr(field.data, 0, field.len) != NULL)
        return -1;
    memcpy(buffer, field.data, field.len);
    buffer[field.len] = '\0';
    return 1;
}

char **message_texts(const struct message *message, uint16_t tag, size_t *ret_count)
{
    struct field_reader reader;
    struct field field;
    size_t count = 0, bytes = 0;
    field_reader_init(&reader, message->data, message->len);
    while (field_next(&reader, &field)) {
        if (field.tag != tag)
            continue;
        if (memchr(field.data, 0, field.len) != NULL) {
            errno = EINVAL;
            return NULL;
        }
        count++;
        bytes += (size_t)field.len + 1;
    }
    char **texts = malloc((count + 1) * sizeof(*texts) + bytes);
    if (texts == NULL)
        return NULL;
    char *text = (char *)(texts + count + 1);
    size_t index = 0;
    field_reader_init(&reader, message->data, message->len);
    while (field_next(&reader, &field)) {
        if (field.tag != tag)
            continue;
        texts[index++] = text;
        memcpy(text, field.data, field.len);
        text[field.len] = '\0';
        text += (size_t)field.len + 1;
    }
    texts[count] = NULL;
    *ret_count = count;
    return texts;
}

void reply_init(struct reply *reply)
{
    reply->fields = (struct field_writer){.ptr = reply->room, .cap = sizeof(reply->room)};
}

void reply_verror(struct reply *reply, const char *code, const char *format, va_list args)
{
    char text[1024];
    /* clang 14 does not see va_start() through calls. */
    (void)vsnprintf(text, sizeof(text), format, args); /* NOLINT(clang-analyzer-valist.*) */
    field_put_text(&reply->fields, TAG_ERROR, code);
    field_put_text(&reply->fields, TAG_MESSAGE, text);
}

void reply_error(struct reply *reply, const char *code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    reply_verror(reply, code, format, args);
    va_end(args);
}

const char *errno_code(int errnum)
{
    static const struct {
        int errnum;
        const char *code;
    } table[] = {
        {ENOENT, "file_not_found"},
        {EISDIR, "is_directory"},
        {ENOTDIR, "not_directory"},
        {EACCES, "permission_denied"},
        {EPERM, "permission_denied"},
        {EBUSY, "permission_denied"},
        {EROFS, "read_only"},
        {ENOSPC, "no_space"},
        {EDQUOT, "no_space"},
        {EFBIG, "no_space"},
        {ELOOP, "link_loop"},
        {ENAMETOOLONG, "name_too_long"},
        {ENOTEMPTY, "not_empty"},
        {EEXIST, "already_exists"},
        {ENXIO, "not_regular"},
        {ENODEV, "not_regular"},
        {ENOMEM, "busy"},
        {EMFILE, "busy"},
        {ENFILE, "busy"},
        {EILSEQ, "invalid_path"},
        {EXDEV, "not_supported"},
        {EOPNOTSUPP, "not_supported"},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (table[i].errnum == errnum)
            return table[i].code;
    }
    return "file_io";
}
