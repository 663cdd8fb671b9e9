#include "server/origin.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

#include "base/str.h"

bool origin_is_loopback(const char *host)
{
    char name[64];
    struct in_addr address;
    uint64_t port;
    size_t len = host[0] == '[' ? strcspn(host, "]") : strcspn(host, ":");

    if (host[0] == '[' && host[len] == ']')
        len++;
    if (len == 0 || len >= sizeof(name))
        return false;
    if (host[len] && (host[len] != ':' || !str_to_u64(str_of(host + len + 1), 65535, &port)))
        return false;
    memcpy(name, host, len);
    name[len] = '\0';
    if (strcasecmp(name, "localhost") == 0 || strcmp(name, "[::1]") == 0)
        return true;
    return inet_pton(AF_INET, name, &address) == 1 && ntohl(address.s_addr) >> 24 == 127;
}

int origin_check(const char *host, const char *origin, bool local_only, struct err *err)
{
    if (local_only && (!host || !origin_is_loopback(host)))
        return err_set(err, ERR_MISDIRECTED,
                       "without API keys only localhost is served, the Host is another");
    if (!origin)
        return 0;
    const char *authority = strstr(origin, "://");
    if (!host || !authority || strcasecmp(authority + 3, host) != 0)
        return err_set(err, ERR_FORBIDDEN, "pages of another origin may not call this API");
    return 0;
}
