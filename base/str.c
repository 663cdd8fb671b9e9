#include "base/str.h"

#include <string.h>

struct str str_of(const char *text)
{
    return text ? (struct str){text, strlen(text)} : (struct str){"", 0};
}

bool str_eq(struct str a, struct str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

bool str_is(struct str a, const char *text)
{
    return str_eq(a, str_of(text));
}

bool str_starts(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool str_ends(const char *text, const char *suffix)
{
    size_t len = strlen(text);
    size_t suffix_len = strlen(suffix);
    return len >= suffix_len && memcmp(text + len - suffix_len, suffix, suffix_len) == 0;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

bool str_to_u64(struct str text, uint64_t max, uint64_t *ret_value)
{
    uint64_t value = 0;
    if (text.len == 0)
        return false;
    for (size_t i = 0; i < text.len; i++) {
        if (!is_digit(text.ptr[i]))
            return false;
        uint64_t digit = (uint64_t)(text.ptr[i] - '0');
        if (value > (max - digit) / 10 || digit > max)
            return false;
        value = value * 10 + digit;
    }
    *ret_value = value;
    return true;
}

/* A quantity is digits * 10^ten * 2^two. */
struct quantity {
    uint64_t digits;
    int ten;
    int two;
};

static const struct suffix {
    const char *text;
    int ten, two;
} suffixes[] = {
    {"", 0, 0},    {"n", -9, 0},  {"u", -6, 0},  {"m", -3, 0},  {"k", 3, 0},   {"M", 6, 0},
    {"G", 9, 0},   {"T", 12, 0},  {"P", 15, 0},  {"E", 18, 0},  {"Ki", 0, 10}, {"Mi", 0, 20},
    {"Gi", 0, 30}, {"Ti", 0, 40}, {"Pi", 0, 50}, {"Ei", 0, 60},
};

static bool parse_exponent(const char *text, int *ret_ten)
{
    bool minus = *text == '-';
    if (*text == '-' || *text == '+')
        text++;
    uint64_t value;
    if (!str_to_u64(str_of(text), 30, &value))
        return false;
    *ret_ten = minus ? -(int)value : (int)value;
    return true;
}

static bool parse_suffix(const char *text, struct quantity *quantity)
{
    if ((*text == 'e' || *text == 'E') && text[1] != '\0' && text[1] != 'i') {
        int ten;
        if (!parse_exponent(text + 1, &ten))
            return false;
        quantity->ten += ten;
        return true;
    }
    for (size_t i = 0; i < ARRAY_LEN(suffixes); i++) {
        if (strcmp(text, suffixes[i].text) != 0)
            continue;
        quantity->ten += suffixes[i].ten;
        quantity->two = suffixes[i].two;
        return true;
    }
    return false;
}

/* The digits before and behind the point as one number of at most 18 digits. */
static bool parse_quantity(const char *text, struct quantity *ret_quantity)
{
    struct quantity quantity = {0};
    bool point = false;
    size_t seen = 0;
    for (; is_digit(*text) || (*text == '.' && !point); text++) {
        if (*text == '.') {
            point = true;
            continue;
        }
        if (quantity.digits > (UINT64_C(1000000000000000000) - 10) / 10)
            return false;
        quantity.digits = quantity.digits * 10 + (uint64_t)(*text - '0');
        quantity.ten -= point ? 1 : 0;
        seen++;
    }
    if (seen == 0 || !parse_suffix(text, &quantity))
        return false;
    *ret_quantity = quantity;
    return true;
}

/* Rounds up, as Kubernetes does. Refuses what int64 does not hold, so that it fits JSON too. */
static bool quantity_value(struct quantity quantity, int extra_ten, uint64_t *ret_value)
{
    const unsigned __int128 limit = (unsigned __int128)INT64_MAX;
    unsigned __int128 value = quantity.digits;
    int ten = quantity.ten + extra_ten;
    bool rest = false;
    if (value == 0) {
        *ret_value = 0;
        return true;
    }
    value <<= quantity.two; /* 60 bits of digits and 60 of this fit */
    for (; ten < 0; ten++) {
        rest = rest || value % 10 != 0;
        value /= 10;
    }
    for (; ten > 0 && value <= limit; ten--)
        value *= 10;
    value += rest ? 1 : 0;
    if (value > limit)
        return false;
    *ret_value = (uint64_t)value;
    return true;
}

bool str_to_milli(const char *text, uint64_t *ret_milli)
{
    struct quantity quantity;
    return parse_quantity(text, &quantity) && quantity_value(quantity, 3, ret_milli);
}

bool str_to_bytes(const char *text, uint64_t *ret_bytes)
{
    struct quantity quantity;
    return parse_quantity(text, &quantity) && quantity_value(quantity, 0, ret_bytes);
}

/* What a lead byte says: the length of its character and the range of the byte behind it, which
 * rules out overlong forms, surrogates and what is above U+10FFFF. Length 0: no lead byte. */
struct lead {
    size_t width;
    unsigned char low, high;
};

static struct lead lead_of(unsigned char byte)
{
    if (byte < 0x80)
        return (struct lead){1, 0, 0};
    if (byte >= 0xC2 && byte <= 0xDF)
        return (struct lead){2, 0x80, 0xBF};
    if (byte >= 0xE0 && byte <= 0xEF)
        return (struct lead){3, byte == 0xE0 ? 0xA0 : 0x80, byte == 0xED ? 0x9F : 0xBF};
    if (byte >= 0xF0 && byte <= 0xF4)
        return (struct lead){4, byte == 0xF0 ? 0x90 : 0x80, byte == 0xF4 ? 0x8F : 0xBF};
    return (struct lead){0, 0, 0};
}

/* How many bytes of DATA fit the character that it begins with (0: none does). */
static size_t fitting(const char *data, size_t len, struct lead lead)
{
    size_t i = lead.width ? 1 : 0;
    for (; i > 0 && i < lead.width && i < len; i++) {
        unsigned char byte = (unsigned char)data[i];
        unsigned char low = i == 1 ? lead.low : 0x80;
        unsigned char high = i == 1 ? lead.high : 0xBF;
        if (byte < low || byte > high)
            break;
    }
    return i;
}

size_t utf8_width(const char *data, size_t len)
{
    if (len == 0)
        return 0;
    struct lead lead = lead_of((unsigned char)data[0]);
    return fitting(data, len, lead) == lead.width ? lead.width : 0;
}

/* Most text is ASCII: eight bytes at a time. */
static size_t ascii_run(const char *data, size_t len)
{
    size_t i = 0;
    for (; len - i >= sizeof(uint64_t); i += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, data + i, sizeof(word));
        if (word & UINT64_C(0x8080808080808080))
            break;
    }
    return i;
}

bool utf8_valid(const char *data, size_t len)
{
    size_t i = 0;
    while (i < len) {
        i += ascii_run(data + i, len - i);
        if (i == len)
            break;
        size_t width = utf8_width(data + i, len - i);
        if (width == 0)
            return false;
        i += width;
    }
    return true;
}

size_t utf8_partial_tail(const char *data, size_t len)
{
    for (size_t back = 1; back <= 3 && back <= len; back++) {
        const char *start = data + len - back;
        struct lead lead = lead_of((unsigned char)*start);
        if (lead.width == 0)
            continue; /* a continuation byte, or one that never fits */
        return lead.width > back && fitting(start, back, lead) == back ? back : 0;
    }
    return 0;
}

bool str_is_printable(const char *data, size_t len)
{
    for (size_t i = 0; i < len;) {
        unsigned char byte = (unsigned char)data[i];
        size_t width = utf8_width(data + i, len - i);
        if (width == 0 || byte < 0x20 || byte == 0x7F)
            return false;
        if (byte == 0xC2 && (unsigned char)data[i + 1] < 0xA0)
            return false; /* U+0080 to U+009F */
        i += width;
    }
    return true;
}

bool str_is_token(const char *text)
{
    static const char allowed[] = "!#$%&'*+-.^_`|~0123456789"
                                  "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    return *text != '\0' && text[strspn(text, allowed)] == '\0';
}
