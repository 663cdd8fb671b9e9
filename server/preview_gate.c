#include "server/preview_gate.h"

#include <string.h>
#include <strings.h>

#include "base/str.h"
#include "server/upstream_request.h"

/* Copies what is a ticket by its length. */
static bool copy_ticket(struct str text, char ret_ticket[PREVIEW_TICKET_LEN])
{
    if (text.len >= PREVIEW_TICKET_LEN)
        return false;
    memcpy(ret_ticket, text.ptr, text.len);
    ret_ticket[text.len] = '\0';
    return true;
}

static bool opens(const struct preview_target *preview, enum preview_ticket kind, struct str text,
                  int64_t now_s, int64_t *ret_expires_s)
{
    char ticket[PREVIEW_TICKET_LEN];

    return copy_ticket(text, ticket) &&
           preview_ticket_check(preview, kind, ticket, now_s, ret_expires_s);
}

static bool cookie_opens(const struct preview_target *preview, const char *cookies, int64_t now_s)
{
    static const char name[] = PREVIEW_COOKIE "=";
    int64_t expires_s;

    while (*cookies) {
        const char *at = cookies + strspn(cookies, " \t");
        size_t len = strcspn(at, ";");

        if (strncmp(at, name, sizeof(name) - 1) == 0 && len >= sizeof(name) - 1) {
            struct str value = {at + sizeof(name) - 1, len - (sizeof(name) - 1)};

            if (opens(preview, PREVIEW_COOKIE_TICKET, value, now_s, &expires_s))
                return true;
        }
        cookies = at + len + (at[len] == ';');
    }
    return false;
}

static bool has_cookie(const struct preview_target *preview, const struct preview_visit *visit)
{
    for (size_t i = 0; i < visit->header_count; i++) {
        if (strcasecmp(visit->headers[i].name, "Cookie") == 0 &&
            cookie_opens(preview, visit->headers[i].value, visit->now_s))
            return true;
    }
    return false;
}

/* Splits the target: what is left without the parameter goes to CLEAN. False: it is not there. */
static bool take_link(const char *target, struct buf *clean, struct str *ret_ticket)
{
    static const char name[] = LINK_PARAMETER "=";
    size_t path = strcspn(target, "?");
    char separator = '?';
    bool found = false;

    (void)buf_append(clean, target, path); /* no longer than what it comes from */
    for (const char *at = target + path; *at;) {
        size_t len = strcspn(++at, "&");

        if (strncmp(at, name, sizeof(name) - 1) == 0) {
            found = true;
            *ret_ticket = (struct str){at + sizeof(name) - 1, len - (sizeof(name) - 1)};
        } else {
            (void)buf_append_char(clean, separator);
            (void)buf_append(clean, at, len);
            separator = '&';
        }
        at += len;
    }
    return found;
}

enum preview_verdict preview_gate_look(const struct preview_target *preview,
                                       const struct preview_visit *visit, struct buf *clean,
                                       struct buf *cookie)
{
    char ticket[PREVIEW_TICKET_LEN];
    struct str given = {0};
    int64_t expires_s = 0;

    if (!preview->facts.is_private)
        return PREVIEW_PASS;
    bool has_link = take_link(visit->target, clean, &given);
    if (has_link && opens(preview, PREVIEW_LINK, given, visit->now_s, &expires_s)) {
        preview_ticket_make(preview, PREVIEW_COOKIE_TICKET, expires_s, ticket);
        (void)buf_printf(
            cookie, PREVIEW_COOKIE "=%s; Path=/; Max-Age=%lld; HttpOnly; SameSite=Lax%s", ticket,
            (long long)(expires_s - visit->now_s), visit->secure ? "; Secure" : "");
        return PREVIEW_REDIRECT;
    }
    if (!has_cookie(preview, visit))
        return PREVIEW_REFUSE;
    return has_link ? PREVIEW_REDIRECT : PREVIEW_PASS;
}
