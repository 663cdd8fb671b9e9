#include "driver/agent_program.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

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

char *agent_program_find(const char *configured, const char *driver, struct err *err)
{
    char *path = configured ? realpath(configured, NULL) : find_near_us();

    if (path && access(path, X_OK) == 0)
        return path;
    free(path);
    (void)err_set(
        err, ERR_CONFIG,
        "the %s driver needs podsandbox-agent, and there is no program '%s': name it with "
        "--agent-program",
        driver, configured ? configured : "podsandbox-agent beside this one");
    return NULL;
}
