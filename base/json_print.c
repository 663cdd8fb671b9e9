#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_impl.h"
#include "base/str.h"

/* cJSON's printer writes bad UTF-8 as it is, rounds integers of 16 digits and does not know our
 * maximum, so printing is done here. */

struct printer {
    struct buf *out;
    bool sorted;
};

#define EACH_BYTE(byte) (UINT64_C(0x0101010101010101) * (byte))
/* Not zero when a byte of WORD is less than LESS, which is at most 0x80. */
#define ANY_BELOW(word, less) (((word)-EACH_BYTE(less)) & ~(word)&EACH_BYTE(0x80))

/* How many bytes of ASCII that need no escape there are, at least; eight at a time. */
static size_t easy_run(const char *text, size_t len)
{
    size_t i = 0;
    for (; len - i >= sizeof(uint64_t); i += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, text + i, sizeof(word));
        uint64_t quotes = word ^ EACH_BYTE('"'), backslashes = word ^ EACH_BYTE('\\');
        if ((word & EACH_BYTE(0x80)) | ANY_BELOW(word, 0x20) | ANY_BELOW(quotes, 1) |
            ANY_BELOW(backslashes, 1))
            break;
    }
    return i;
}

/* How many bytes at the start of TEXT go out as they are; 0 when the first does not. */
static size_t plain_run(const char *text, size_t len)
{
    size_t i = 0;
    while (i < len) {
        i += easy_run(text + i, len - i);
        if (i == len)
            break;
        unsigned char byte = (unsigned char)text[i];
        if (byte < 0x20 || byte == '"' || byte == '\\')
            break;
        size_t width = byte < 0x80 ? 1 : utf8_width(text + i, len - i);
        if (width == 0)
            break;
        i += width;
    }
    return i;
}

static bool print_escaped(unsigned char byte, struct buf *out)
{
    static const char escaped[] = "\"\\\b\f\n\r\t";
    static const char letters[] = "\"\\bfnrt";
    if (byte >= 0x80)
        return buf_append_str(out, "\xEF\xBF\xBD"); /* U+FFFD */
    const char *found = memchr(escaped, byte, sizeof(escaped) - 1);
    if (!found)
        return buf_printf(out, "\\u%04x", byte);
    return buf_append(out, (char[]){'\\', letters[found - escaped]}, 2);
}

bool json_print_text(const char *text, size_t len, struct buf *out)
{
    bool fits = buf_append_char(out, '"');
    for (size_t i = 0; fits && i < len;) {
        size_t run = plain_run(text + i, len - i);
        fits = run ? buf_append(out, text + i, run) : print_escaped((unsigned char)text[i], out);
        i += run ? run : 1;
    }
    return fits && buf_append_char(out, '"');
}

static bool print_number(const cJSON *item, struct buf *out)
{
    int64_t integer;
    if (item->valuestring)
        return buf_append_str(out, item->valuestring);
    if (json_int_value(item, &integer))
        return buf_printf(out, "%lld", (long long)integer);
    char text[32];
    snprintf(text, sizeof(text), "%.15g", item->valuedouble);
    bool exact = strtod(text, NULL) == item->valuedouble;
    return exact ? buf_append_str(out, text) : buf_printf(out, "%.17g", item->valuedouble);
}

static bool print_item(const struct printer *printer, const cJSON *item);

static bool print_member(const struct printer *printer, const cJSON *item, bool named, bool first)
{
    if (!first && !buf_append_char(printer->out, ','))
        return false;
    if (named && (!json_print_text(item->string, strlen(item->string), printer->out) ||
                  !buf_append_char(printer->out, ':')))
        return false;
    return print_item(printer, item);
}

static int compare_names(const void *a, const void *b)
{
    const cJSON *const *left = a;
    const cJSON *const *right = b;
    return strcmp((*left)->string, (*right)->string);
}

static bool print_sorted(const struct printer *printer, const cJSON *object)
{
    size_t count = 0;
    size_t room = json_count((const struct json *)object);
    cleanup_free const cJSON **items = xcalloc(room, sizeof(const cJSON *));
    for (const cJSON *item = object->child; item; item = item->next)
        items[count++] = item;
    qsort(items, count, sizeof(const cJSON *), compare_names);
    for (size_t i = 0; i < count; i++) {
        if (!print_member(printer, items[i], true, i == 0))
            return false;
    }
    return true;
}

static bool print_container(const struct printer *printer, const cJSON *container)
{
    bool named = cJSON_IsObject(container);
    if (!buf_append_char(printer->out, named ? '{' : '['))
        return false;
    if (named && printer->sorted) {
        if (!print_sorted(printer, container))
            return false;
    } else {
        for (const cJSON *item = container->child; item; item = item->next) {
            if (!print_member(printer, item, named, item == container->child))
                return false;
        }
    }
    return buf_append_char(printer->out, named ? '}' : ']');
}

static bool print_item(const struct printer *printer, const cJSON *item)
{
    if (cJSON_IsObject(item) || cJSON_IsArray(item))
        return print_container(printer, item);
    if (cJSON_IsString(item))
        return json_print_text(item->valuestring, strlen(item->valuestring), printer->out);
    if (cJSON_IsNumber(item))
        return print_number(item, printer->out);
    if (cJSON_IsRaw(item))
        return buf_append_str(printer->out, item->valuestring);
    if (cJSON_IsBool(item))
        return buf_append_str(printer->out, cJSON_IsTrue(item) ? "true" : "false");
    return buf_append_str(printer->out, "null");
}

static bool print_all(const struct json *json, bool sorted, struct buf *out)
{
    const struct printer printer = {.out = out, .sorted = sorted};
    return print_item(&printer, item_of(json));
}

bool json_print(const struct json *json, struct buf *out)
{
    return print_all(json, false, out);
}

bool json_print_canonical(const struct json *json, struct buf *out)
{
    return print_all(json, true, out);
}
