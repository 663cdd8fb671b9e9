#include "sandbox/fields.h"

#include <string.h>

#include "base/mem.h"

#define FIELD_HEADER_LEN 6

void fields_put(struct buf *message, uint16_t tag, const void *data, size_t len)
{
    char *at = buf_reserve(message, FIELD_HEADER_LEN + len);
    if (!at) {
        message->overflow = true;
        return;
    }
    struct field_writer writer = {.ptr = (uint8_t *)at, .cap = FIELD_HEADER_LEN + len};
    field_put(&writer, tag, data, len);
    buf_grew(message, writer.len);
}

void fields_put_u64(struct buf *message, uint16_t tag, uint64_t value)
{
    uint8_t bytes[8];
    wire_put_u64(bytes, value);
    fields_put(message, tag, bytes, sizeof(bytes));
}

void fields_put_text(struct buf *message, uint16_t tag, const char *text)
{
    fields_put(message, tag, text, strlen(text));
}

bool fields_find(const void *message, size_t len, uint16_t tag, struct field *ret_field)
{
    struct field_reader reader;
    struct field field;
    field_reader_init(&reader, message, len);
    while (field_next(&reader, &field)) {
        if (field.tag == tag) {
            *ret_field = field;
            return true;
        }
    }
    return false;
}

bool fields_u64(const void *message, size_t len, uint16_t tag, uint64_t *ret_value)
{
    struct field field;
    return fields_find(message, len, tag, &field) && field_u64(&field, ret_value);
}

char *fields_text(const void *message, size_t len, uint16_t tag)
{
    struct field field;
    if (!fields_find(message, len, tag, &field))
        return NULL;
    return xstrndup((const char *)field.data, field.len);
}

bool fields_error(const void *message, size_t len, enum err_code unknown, struct err *ret_err)
{
    cleanup_free char *name = fields_text(message, len, TAG_ERROR);
    if (!name || !name[0])
        return false;
    cleanup_free char *text = fields_text(message, len, TAG_MESSAGE);
    enum err_code code = err_code_from_name(name);
    if (code != ERR_NONE)
        (void)err_set(ret_err, code, "%s", text ? text : name);
    else
        (void)err_set(ret_err, unknown, "%s%s%s", name, text ? ": " : "", text ? text : "");
    return true;
}
