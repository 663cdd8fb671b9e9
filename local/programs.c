#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "local/driver_impl.h"

/* --- bubblewrap ---------------------------------------------------------------------------------
 */

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

/* --- the agent ----------------------------------------------------------------------------------
 */

/* Installed together, or in a build tree. */
static char *find_near_us(void)
{
    static const char *const places[] = {"", "/../libexec", "/../libexec/podsandbox", "/../agent"};
    char own[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", own, sizeof(own) - 1);

    own[len > 0 ? len : 0] = '\0';
    char *slash = strrchr(own, '/');
    if (!slash)
        return NULL;
    *slash = '\0';
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        cleanup_free char *path = xasprintf("%s%s/podsandbox-agent", own, places[i]);
        char *real = access(path, X_OK) == 0 ? realpath(path, NULL) : NULL;
        if (real)
            return real;
    }
    return NULL;
}

int programs_find(struct local *local, struct err *err)
{
    const char *bwrap = local->config->bwrap, *agent = local->config->agent;

    local->bwrap = bwrap ? realpath(bwrap, NULL) : find_in_path("bwrap");
    if (!local->bwrap || access(local->bwrap, X_OK) < 0)
        return err_set(err, ERR_CONFIG,
                       "the local driver needs bubblewrap, and there is no program '%s': install "
                       "it (Debian: bubblewrap), or name it with --bwrap",
                       bwrap ? bwrap : "bwrap");
    local->agent = agent ? realpath(agent, NULL) : find_near_us();
    if (!local->agent || access(local->agent, X_OK) < 0)
        return err_set(err, ERR_CONFIG,
                       "the local driver needs podsandbox-agent, and there is no program '%s': "
                       "name it with --agent-program",
                       agent ? agent : "podsandbox-agent beside this one");
    return 0;
}
