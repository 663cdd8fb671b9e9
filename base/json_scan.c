#include <string.h>

#include "base/json_impl.h"
#include "base/str.h"

/* A well-formedness check by RFC 8259, run before cJSON reads the values: cJSON takes 007, "1.",
 * raw control characters, bad \u escapes (as a NUL) and trailing text. */

struct scan {
    const char *text;
    size_t len;
    size_t pos;
    size_t depth;
    size_t values;
    const struct json_limits *limits;
    bool wide;
    struct err *err;
};

static int refuse(struct scan *scan, const char *what)
{
    return err_set(scan->err, ERR_INVALID_JSON, "not valid JSON: %s at byte %zu", what, scan->pos);
}

/* A NUL at the end; one within the text is nowhere allowed, so they need not be told apart. */
static char peek(const struct scan *scan)
{
    if (scan->pos >= scan->len)
        return '\0';
    return scan->text[scan->pos];
}

static void skip_space(struct scan *scan)
{
    char c;
    while ((c = peek(scan)) == ' ' || c == '\t' || c == '\r' || c == '\n')
        scan->pos++;
}

static size_t skip_digits(struct scan *scan)
{
    size_t start = scan->pos;
    while (peek(scan) >= '0' && peek(scan) <= '9')
        scan->pos++;
    return scan->pos - start;
}

#define NUMBER_MAX 63 /* what cJSON has room for */

static int scan_number(struct scan *scan)
{
    size_t start = scan->pos;
    bool integer = true;
    if (peek(scan) == '-')
        scan->pos++;
    bool zero = peek(scan) == '0';
    size_t digits = skip_digits(scan);
    if (digits == 0)
        return refuse(scan, "expected a value");
    if (zero && digits > 1)
        return refuse(scan, "a number with a leading zero");
    if (peek(scan) == '.') {
        integer = false;
        scan->pos++;
        if (skip_digits(scan) == 0)
            return refuse(scan, "expected digits behind the point");
    }
    if (peek(scan) == 'e' || peek(scan) == 'E') {
        integer = false;
        scan->pos++;
        if (peek(scan) == '+' || peek(scan) == '-')
            scan->pos++;
        if (skip_digits(scan) == 0)
            return refuse(scan, "expected digits in the exponent");
    }
    if (scan->pos - start > NUMBER_MAX)
        return refuse(scan, "a number with too many digits");
    scan->wide = scan->wide || (integer && digits >= 16);
    return 0;
}

/* The code unit of the four hex digits at OFFSET behind the position, or -1. */
static int code_unit(const struct scan *scan, size_t offset)
{
    int unit = 0;
    for (size_t i = 0; i < 4; i++) {
        size_t at = scan->pos + offset + i;
        const char *found = NULL;
        static const char digits[] = "0123456789abcdefABCDEF";
        if (at < scan->len)
            found = memchr(digits, scan->text[at], sizeof(digits) - 1);
        if (!found)
            return -1;
        int digit = (int)(found - digits);
        unit = unit * 16 + (digit < 16 ? digit : digit - 6);
    }
    return unit;
}

/* At the "u" of \uXXXX. */
static int scan_unicode(struct scan *scan)
{
    int unit = code_unit(scan, 1);
    if (unit < 0)
        return refuse(scan, "\\u without four hex digits");
    if (unit == 0 && !scan->limits->lenient_text)
        return refuse(scan, "\\u0000 is not allowed");
    if (unit >= 0xDC00 && unit <= 0xDFFF)
        return refuse(scan, "half of a surrogate pair");
    if (unit >= 0xD800 && unit <= 0xDBFF) {
        bool follows =
            scan->len - scan->pos >= 11 && memcmp(scan->text + scan->pos + 5, "\\u", 2) == 0;
        int low = follows ? code_unit(scan, 7) : -1;
        if (low < 0xDC00 || low > 0xDFFF)
            return refuse(scan, "half of a surrogate pair");
        scan->pos += 6;
    }
    scan->pos += 5;
    return 0;
}

static int scan_escape(struct scan *scan)
{
    scan->pos++;
    char kind = peek(scan);
    if (kind == 'u')
        return scan_unicode(scan);
    if (kind == '\0' || !strchr("\"\\/bfnrt", kind))
        return refuse(scan, "an unknown escape");
    scan->pos++;
    return 0;
}

static int scan_string(struct scan *scan)
{
    scan->pos++;
    while (scan->pos < scan->len && scan->text[scan->pos] != '"') {
        unsigned char byte = (unsigned char)scan->text[scan->pos];
        if (byte < 0x20)
            return refuse(scan, "a raw control character in a string");
        if (byte == '\\') {
            if (scan_escape(scan) < 0)
                return -1;
            continue;
        }
        size_t width = byte < 0x80 ? 1 : utf8_width(scan->text + scan->pos, scan->len - scan->pos);
        if (width == 0 && !scan->limits->lenient_text)
            return refuse(scan, "a byte that is not UTF-8");
        scan->pos += width ? width : 1;
    }
    if (scan->pos == scan->len)
        return refuse(scan, "a string that does not end");
    scan->pos++;
    return 0;
}

static int scan_word(struct scan *scan)
{
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        size_t len = strlen(words[i]);
        if (scan->len - scan->pos < len || memcmp(scan->text + scan->pos, words[i], len) != 0)
            continue;
        scan->pos += len;
        return 0;
    }
    return refuse(scan, "expected a value");
}

static int scan_value(struct scan *scan);

static int scan_member(struct scan *scan, bool named)
{
    skip_space(scan);
    if (named) {
        if (peek(scan) != '"')
            return refuse(scan, "expected a name in quotes");
        if (scan_string(scan) < 0)
            return -1;
        skip_space(scan);
        if (peek(scan) != ':')
            return refuse(scan, "expected ':'");
        scan->pos++;
    }
    return scan_value(scan);
}

static int scan_container(struct scan *scan, char end)
{
    if (++scan->depth > scan->limits->depth)
        return refuse(scan, "nested too deeply");
    scan->pos++;
    skip_space(scan);
    if (peek(scan) != end) {
        for (;;) {
            if (scan_member(scan, end == '}') < 0)
                return -1;
            skip_space(scan);
            if (peek(scan) != ',')
                break;
            scan->pos++;
        }
    }
    if (peek(scan) != end)
        return refuse(scan, end == '}' ? "expected ',' or '}'" : "expected ',' or ']'");
    scan->pos++;
    scan->depth--;
    return 0;
}

static int scan_value(struct scan *scan)
{
    if (++scan->values > scan->limits->values)
        return refuse(scan, "too many values");
    skip_space(scan);
    switch (peek(scan)) {
    case '{':
        return scan_container(scan, '}');
    case '[':
        return scan_container(scan, ']');
    case '"':
        return scan_string(scan);
    case 't':
    case 'f':
    case 'n':
        return scan_word(scan);
    default:
        return scan_number(scan);
    }
}

int json_scan(const char *text, size_t len, const struct json_limits *limits, bool *ret_wide,
              struct err *err)
{
    struct scan scan = {.text = text, .len = len, .limits = limits, .err = err};
    if (scan_value(&scan) < 0)
        return -1;
    skip_space(&scan);
    if (scan.pos != scan.len)
        return refuse(&scan, "text behind the value");
    *ret_wide = scan.wide;
    return 0;
}
