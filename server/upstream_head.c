#include "server/upstream_head.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "server/upstream_request.h"

void upstream_head_done(struct upstream_head *head)
{
    for (size_t i = 0; i < head->count; i++) {
        free(head->fields[i].name);
        free(head->fields[i].value);
    }
    free(head->fields);
    *head = (struct upstream_head){.status = 0};
}

/* A cookie for a whole domain would be another sandbox's, too. */
static void drop_domain(char *cookie)
{
    char *to = cookie + strcspn(cookie, ";");

    for (const char *at = to; *at;) {
        size_t len = 1 + strcspn(at + 1, ";");
        const char *name = at + 1 + strspn(at + 1, " ");

        if (strncasecmp(name, "Domain", 6) != 0 || !strchr(" =;", name[6])) {
            memmove(to, at, len);
            to += len;
        }
        at += len;
    }
    *to = '\0';
}

void upstream_head_clean(struct upstream_head *head)
{
    struct text_field *all = head->fields;
    size_t count = head->count, kept = 0;

    head->fields = xcalloc(count + 1, sizeof(*head->fields));
    for (size_t i = 0; i < count; i++) {
        bool agreed = head->status == 101 && strcasecmp(all[i].name, "Upgrade") == 0;

        if (strcasecmp(all[i].name, "Set-Cookie") == 0)
            drop_domain(all[i].value);
        if (agreed || !upstream_is_hop(all[i].name, all, count))
            head->fields[kept++] = (struct text_field){xstrdup(all[i].name), xstrdup(all[i].value)};
    }
    for (size_t i = 0; i < count; i++) {
        free(all[i].name);
        free(all[i].value);
    }
    free(all);
    head->count = kept;
}
