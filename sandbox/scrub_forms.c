#include "sandbox/scrub_forms.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"

/* The other forms of a shorter value would hit by chance. */
#define FORMS_FROM 8
/* No form is longer: JSON makes 6 bytes of one at most. */
#define ROOM_FOR(len) (6 * (len) + 16)

static const char lower[] = "0123456789abcdef";
static const char upper[] = "0123456789ABCDEF";

struct form {
    char *text;
    size_t len, room;
    struct str value;
    void (*add)(void *arg, const char *data, size_t len);
    void *arg;
};

static void put(struct form *form, unsigned int byte)
{
    assert(form->len < form->room);
    form->text[form->len++] = (char)(byte & 0xff);
}

static void put_hex(struct form *form, unsigned int byte, const char *digits)
{
    put(form, (unsigned char)digits[byte >> 4 & 15]);
    put(form, (unsigned char)digits[byte & 15]);
}

static unsigned int byte_at(const struct form *form, size_t at)
{
    return (unsigned char)form->value.ptr[at];
}

static void finish(struct form *form)
{
    if (form->len > 0)
        form->add(form->arg, form->text, form->len);
    form->len = 0;
}

static void add_hex(struct form *form, const char *digits)
{
    for (size_t i = 0; i < form->value.len; i++)
        put_hex(form, byte_at(form, i), digits);
    finish(form);
}

/* How a secret is seen inside base64. */
struct base64 {
    const char *alphabet;
    size_t shift;   /* bytes before it, modulo 3 */
    bool ends;      /* the text ends with it: its last bits are followed by zeros */
    bool padded;    /* and then by '=' */
    size_t columns; /* of a line; 0: one line */
};

/* The characters that the secret alone decides. */
static void add_base64(struct form *form, struct base64 how)
{
    size_t bits = 8 * (how.shift + form->value.len);
    size_t from = (8 * how.shift + 5) / 6;
    size_t to = how.ends ? (bits + 5) / 6 : bits / 6;
    for (size_t at = from; at < to; at++) {
        size_t first = 6 * at / 8 - how.shift; /* the byte in which it begins */
        unsigned int two = byte_at(form, first) << 8;
        if (first + 1 < form->value.len)
            two |= byte_at(form, first + 1);
        unsigned int sextet = two >> (10 - 6 * at % 8) & 63;
        if (how.columns > 0 && at > 0 && at % how.columns == 0)
            put(form, '\n');
        put(form, (unsigned char)how.alphabet[sextet]);
    }
    for (size_t pad = (3 - bits / 8 % 3) % 3; how.padded && pad > 0; pad--)
        put(form, '=');
    finish(form);
}

static void add_all_base64(struct form *form)
{
    static const char *const alphabets[] = {
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"};
    for (size_t i = 0; i < ARRAY_LEN(alphabets); i++) {
        for (size_t shift = 0; shift < 3; shift++) {
            struct base64 how = {.alphabet = alphabets[i], .shift = shift};
            add_base64(form, how);
            how.ends = true;
            add_base64(form, how);
            how.padded = true;
            add_base64(form, how);
        }
    }
    /* As base64(1) and PEM break their lines. */
    add_base64(form, (struct base64){.alphabet = alphabets[0], .columns = 76});
    add_base64(form, (struct base64){.alphabet = alphabets[0], .columns = 64});
}

static bool is_unreserved(unsigned int byte)
{
    return (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') ||
           (byte >= 'a' && byte <= 'z') || strchr("-._~", (int)byte) != NULL;
}

/* KEPT: what the encoder leaves alone besides the unreserved characters. */
static void add_url(struct form *form, const char *kept, bool plus, const char *digits)
{
    for (size_t i = 0; i < form->value.len; i++) {
        unsigned int byte = byte_at(form, i);
        if (byte == ' ' && plus) {
            put(form, '+');
        } else if (is_unreserved(byte) || strchr(kept, (int)byte) != NULL) {
            put(form, byte);
        } else {
            put(form, '%');
            put_hex(form, byte, digits);
        }
    }
    finish(form);
}

static void add_all_url(struct form *form, const char *digits)
{
    static const char *const kept[] = {
        "",
        "/",                /* Python's quote() */
        "!'()*",            /* JavaScript's encodeURIComponent() */
        "!$&'()*+,;=:@/?#", /* and encodeURI() */
        "$&+=:@",           /* Go's PathEscape() */
    };
    for (size_t i = 0; i < ARRAY_LEN(kept); i++)
        add_url(form, kept[i], false, digits);
    add_url(form, "", true, digits); /* forms */
}

struct json_style {
    bool ascii; /* \u for all that is not ASCII: Python */
    bool html;  /* \u for < > &: Go */
    bool slash; /* \/: PHP */
};

static void put_escape(struct form *form, uint32_t unit)
{
    put(form, '\\');
    put(form, 'u');
    put_hex(form, unit >> 8, lower);
    put_hex(form, unit, lower);
}

/* The character at AT, and its bytes; 0 when it is not valid UTF-8. */
static size_t decode(struct str value, size_t at, uint32_t *ret_point)
{
    unsigned int lead = (unsigned char)value.ptr[at];
    size_t len = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc0 || len > value.len - at || !utf8_valid(value.ptr + at, len))
        return 0;
    uint32_t point = lead & (0x7fu >> len);
    for (size_t i = 1; i < len; i++)
        point = point << 6 | ((unsigned char)value.ptr[at + i] & 0x3fu);
    *ret_point = point;
    return len;
}

/* Returns how many bytes of the value were used. */
static size_t put_wide(struct form *form, size_t at)
{
    uint32_t point = 0;
    size_t len = decode(form->value, at, &point);
    if (len == 0) {
        put(form, byte_at(form, at));
        return 1;
    }
    if (point >= 0x10000) {
        put_escape(form, 0xd800 + ((point - 0x10000) >> 10));
        put_escape(form, 0xdc00 + (point & 0x3ff));
    } else {
        put_escape(form, point);
    }
    return len;
}

static void put_json(struct form *form, unsigned int byte, struct json_style style)
{
    static const char plain[] = "\"\\\b\f\n\r\t";
    static const char names[] = "\"\\bfnrt";
    const char *special = strchr(plain, (int)byte);
    if (special != NULL) {
        put(form, '\\');
        put(form, (unsigned char)names[special - plain]);
    } else if (byte < 0x20 || (style.html && strchr("<>&", (int)byte) != NULL)) {
        put_escape(form, byte);
    } else {
        if (byte == '/' && style.slash)
            put(form, '\\');
        put(form, byte);
    }
}

static void add_json(struct form *form, struct json_style style)
{
    for (size_t i = 0; i < form->value.len;) {
        unsigned int byte = byte_at(form, i);
        if (byte >= 0x80 && style.ascii) {
            i += put_wide(form, i);
        } else {
            put_json(form, byte, style);
            i++;
        }
    }
    finish(form);
}

static void add_all_json(struct form *form)
{
    for (unsigned int bits = 0; bits < 8; bits++)
        add_json(form, (struct json_style){
                           .ascii = bits & 1, .html = bits >> 1 & 1, .slash = bits >> 2 & 1});
}

void scrub_forms(const char *value, void (*add)(void *arg, const char *data, size_t len), void *arg)
{
    size_t len = strlen(value);
    if (len == 0)
        return;
    add(arg, value, len);
    if (len < FORMS_FROM)
        return;
    struct form form = {.room = ROOM_FOR(len), .value = {value, len}, .add = add, .arg = arg};
    form.text = xmalloc(form.room);
    add_hex(&form, lower);
    add_hex(&form, upper);
    add_all_base64(&form);
    add_all_url(&form, lower);
    add_all_url(&form, upper);
    add_all_json(&form);
    free_secret(form.text, form.room);
}
