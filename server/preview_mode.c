#include "server/preview_mode.h"

#include <string.h>

#include "driver/driver.h"
#include "server/options.h"

static bool is_domain(const char *domain)
{
    size_t len = strlen(domain);

    return len > 0 && len <= 200 && domain[0] != '.' && domain[len - 1] != '.' &&
           strspn(domain, "abcdefghijklmnopqrstuvwxyz0123456789-.") == len;
}

int preview_mode_choose(const struct options *options, const struct driver *driver,
                        struct preview_mode *ret_mode, struct err *err)
{
    const char *name = options->preview_mode;
    bool publishes = driver->ops->publish != NULL;
    bool proxy = strcmp(name, "proxy") == 0;

    if (strcmp(name, "substrate") == 0 && !publishes)
        return err_set(err, ERR_CONFIG,
                       "--preview-mode substrate: the driver %s has no way of its own to publish a "
                       "port; use proxy",
                       driver->ops->name);
    const char *domain = options->preview_domain;
    if (!domain)
        domain = publishes ? "127.0.0.1.nip.io" : "localhost";
    if (!is_domain(domain))
        return err_set(err, ERR_CONFIG, "--preview-domain '%s' is not a domain in lower case",
                       domain);
    *ret_mode = (struct preview_mode){.proxied = proxy || !publishes, .domain = domain};
    return 0;
}
