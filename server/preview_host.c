#include "server/preview_host.h"

#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/str.h"

static bool is_reserved(const char *label, size_t len)
{
    static const char *const names[] = {"api", "www", "admin", "localhost"};

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strlen(names[i]) == len && strncasecmp(names[i], label, len) == 0)
            return true;
    }
    return false;
}

bool preview_host_read(const char *host, const char *domain, char ret_name[PREVIEW_HOST_LEN])
{
    size_t domain_len = strlen(domain);
    size_t len = strlen(host);
    const char *colon = strrchr(host, ':');

    if (colon && strspn(colon + 1, "0123456789") == strlen(colon + 1))
        len = (size_t)(colon - host);
    if (len && host[len - 1] == '.')
        len--;
    if (len < domain_len + 2 || len >= PREVIEW_HOST_LEN)
        return false;
    size_t label_len = len - domain_len - 1;
    if (host[label_len] != '.' || strncasecmp(host + label_len + 1, domain, domain_len) != 0 ||
        is_reserved(host, label_len))
        return false;
    for (size_t i = 0; i < len; i++) {
        char c = host[i];

        ret_name[i] = (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    }
    ret_name[len] = '\0';
    return true;
}
