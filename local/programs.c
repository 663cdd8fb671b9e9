#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/agent_program.h"
#include "local/driver_impl.h"

static char *find_in_path(const char *name)
{
    const char *path = getenv("PATH"); /* NOLINT(concurrency-mt-unsafe): nobody sets it */

    for (const char *at = path ? path : "/usr/bin:/bin"; *at != '\0';) {
        size_t len = strcspn(at, ":");
        cleanup_free char *full = xasprintf("%.*s/%s", (int)len, at, name);
        if (full[0] == '/' && access(full, X_OK) == 0)
            return TAKE_PTR(full);
        at += len + (at[len] == ':');
    }
    return NULL;
}

int programs_find(struct local *local, struct err *err)
{
    const char *bwrap = local->config->bwrap;

    local->bwrap = bwrap ? realpath(bwrap, NULL) : find_in_path("bwrap");
    if (!local->bwrap || access(local->bwrap, X_OK) < 0)
        return err_set(err, ERR_CONFIG,
                       "the local driver needs bubblewrap, and there is no program '%s': install "
                       "it (Debian: bubblewrap), or name it with --bwrap",
                       bwrap ? bwrap : "bwrap");
    local->agent = agent_program_find(local->config->agent, "local", err);
    return local->agent ? 0 : -1;
}
