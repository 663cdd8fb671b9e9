#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "driver/box.h"

/* Who may see a preview that the server itself serves, and what it leads to. */
struct sandbox;
struct sandboxes;

/* What a preview's row says of it beyond its columns, as JSON. */
struct preview_facts {
    bool proxied; /* served by this server: nothing of it is in the substrate */
    bool is_private;
    int64_t generation; /* of its links: those of another one open nothing */
};
void preview_facts_read(const char *spec, struct preview_facts *ret_facts);
char *preview_facts_write(const struct preview_facts *facts); /* malloc'd */

struct preview_target {
    struct sandbox *sandbox; /* referenced */
    int64_t port;
    struct preview_facts facts;
    char host[254];
};
void preview_target_done(struct preview_target *target);

/* HOST: lower case, without a port. ERR_NOT_FOUND; ERR_GONE when its sandbox has ended, with why
 * unless it is private; ERR_NOT_READY. */
int preview_find(struct sandboxes *all, const char *host, struct preview_target *ret_target,
                 struct err *err) must_check;

/* Whether the sandbox of a private one still lives: ERR_GONE, without why. */
int preview_private_check(const struct preview_target *target, struct err *err) must_check;

/* preview_find() from memory: false when it has to be looked up. Never blocks. */
bool preview_recall(struct sandboxes *all, const char *host, struct preview_target *ret_target);

/* What preview_recall() knows. */
void preview_memory_init(struct sandboxes *all);
void preview_memory_done(struct sandboxes *all);

/* What leads to that port. ERR_NOT_FOUND. */
int preview_of_port(struct sandbox *sandbox, int64_t port, struct preview_target *ret_target,
                    struct err *err) must_check;
/* Between preview_claim() and preview_release(): no ticket made until now opens it any more. */
int preview_revoke_links(struct sandbox *sandbox, int64_t port, struct err *err) must_check;
/* The address at HOST, ends with a slash; malloc'd. */
char *preview_url(const struct sandboxes *all, const char *host);

/* A ticket opens a private preview until it expires or the links are revoked: one in a link, and
 * another kind in the cookie that the link is exchanged for. */
enum preview_ticket { PREVIEW_LINK, PREVIEW_COOKIE_TICKET };
#define PREVIEW_TICKET_LEN 96 /* with its NUL: decimal seconds since 1970, '.', hex */
void preview_ticket_make(const struct preview_target *target, enum preview_ticket kind,
                         int64_t expires_s, char ret_ticket[PREVIEW_TICKET_LEN]);
/* RET_EXPIRES_S: when it does. False: malformed, forged, revoked, or expired at NOW_S. */
bool preview_ticket_check(const struct preview_target *target, enum preview_ticket kind,
                          const char *ticket, int64_t now_s, int64_t *ret_expires_s);
