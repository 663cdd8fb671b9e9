#include "agent/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static size_t name_len(const char *entry)
{
    return strcspn(entry, "=");
}

bool environment_well_formed(char *const *entries)
{
    for (; *entries != NULL; entries++) {
        size_t len = name_len(*entries);
        if (len == 0 || (*entries)[len] != '=')
            return false;
        for (size_t i = 0; i < len; i++) {
            if ((unsigned char)(*entries)[i] < ' ' || (*entries)[i] == 127)
                return false;
        }
    }
    return true;
}

const char *environment_get(char *const *entries, const char *name)
{
    size_t len = strlen(name);
    for (; entries != NULL && *entries != NULL; entries++) {
        if (strncmp(*entries, name, len) == 0 && (*entries)[len] == '=')
            return *entries + len + 1;
    }
    return NULL;
}

static void measure(char *const *entries, size_t *count, size_t *bytes)
{
    for (; entries != NULL && *entries != NULL; entries++) {
        *count += 1;
        *bytes += strlen(*entries) + 1;
    }
}

static char *add_all(char **merged, size_t *count, char *text, char *const *entries)
{
    for (; entries != NULL && *entries != NULL; entries++) {
        size_t name = name_len(*entries), len = strlen(*entries), at = 0;
        while (at < *count &&
               (strncmp(merged[at], *entries, name) != 0 || merged[at][name] != (*entries)[name]))
            at++;
        memcpy(text, *entries, len + 1);
        merged[at] = text;
        if (at == *count)
            *count += 1;
        text += len + 1;
    }
    return text;
}

char **environment_merge(char *const *first, char *const *second, char *const *third)
{
    size_t count = 0, bytes = 0;
    measure(first, &count, &bytes);
    measure(second, &count, &bytes);
    measure(third, &count, &bytes);
    char **merged = malloc((count + 1) * sizeof(*merged) + bytes);
    if (merged == NULL)
        return NULL;
    char *text = (char *)(merged + count + 1);
    count = 0;
    text = add_all(merged, &count, text, first);
    text = add_all(merged, &count, text, second);
    add_all(merged, &count, text, third);
    merged[count] = NULL;
    return merged;
}

static bool is_writable_directory(const char *path)
{
    struct stat status;
    return path != NULL && path[0] == '/' && stat(path, &status) == 0 && S_ISDIR(status.st_mode) &&
           access(path, W_OK | X_OK) == 0;
}

static const char *choose_home(char *const *image, char *const *configured)
{
    const char *home = environment_get(configured, "HOME");
    if (is_writable_directory(home))
        return home;
    home = environment_get(image, "HOME");
    return is_writable_directory(home) ? home : "/tmp";
}

static char *joined(const char *name, const char *value)
{
    size_t size = strlen(name) + strlen(value) + 1;
    char *entry = malloc(size);
    if (entry != NULL)
        (void)snprintf(entry, size, "%s%s", name, value);
    return entry;
}

/* Tools that ask the machine how many processors it has, and would start as many threads. Each is
 * understood by what it is named for; nproc(1) and most numeric libraries read OMP_NUM_THREADS. */
static const struct hint {
    const char *name, *before; /* the number */
} hints[] = {
    {"GOMAXPROCS", ""},        {"OMP_NUM_THREADS", ""},
    {"RAYON_NUM_THREADS", ""}, {"CARGO_BUILD_JOBS", ""},
    {"MAKEFLAGS", "-j"},       {"CMAKE_BUILD_PARALLEL_LEVEL", ""},
    {"PYTHON_CPU_COUNT", ""},  {"DOTNET_PROCESSOR_COUNT", ""},
};

#define HINT_COUNT (sizeof(hints) / sizeof(hints[0]))
#define HINT_MAX 64

struct extra {
    char *entries[HINT_COUNT + 7]; /* HOME, three of git, the file, TERM, and the end */
    size_t count;
    char hints[HINT_COUNT][HINT_MAX];
    char *home, *directory, *info;
};

static void extra_done(struct extra *extra)
{
    free(extra->home);
    free(extra->directory);
    free(extra->info);
}

static void add_hints(struct extra *extra, char *const *merged, uint64_t cpus)
{
    for (size_t i = 0; i < HINT_COUNT; i++) {
        if (environment_get(merged, hints[i].name) != NULL)
            continue;
        (void)snprintf(extra->hints[i], HINT_MAX, "%s=%s%llu", hints[i].name, hints[i].before,
                       (unsigned long long)cpus);
        extra->entries[extra->count++] = extra->hints[i];
    }
}

static bool add_git(struct extra *extra, const char *workdir)
{
    static char count[] = "GIT_CONFIG_COUNT=1";
    static char key[] = "GIT_CONFIG_KEY_0=safe.directory";
    extra->directory = joined("GIT_CONFIG_VALUE_0=", workdir);
    extra->entries[extra->count++] = count;
    extra->entries[extra->count++] = key;
    extra->entries[extra->count++] = extra->directory;
    return extra->directory != NULL;
}

static bool add_info(struct extra *extra, const char *path)
{
    extra->info = joined("PODSANDBOX_INFO=", path);
    extra->entries[extra->count++] = extra->info;
    return extra->info != NULL;
}

char **environment_build(char *const *image, char *const *configured, char *const *own,
                         const struct environment_facts *facts)
{
    static char term[] = "TERM=xterm-256color";
    struct extra extra = {.count = 0};
    char **result = NULL;
    bool made = true;
    char **merged = environment_merge(image, configured, own);
    if (merged == NULL)
        return NULL;
    if (environment_get(own, "HOME") == NULL) {
        extra.home = joined("HOME=", choose_home(image, configured));
        extra.entries[extra.count++] = extra.home;
        made = extra.home != NULL;
    }
    if (made && facts->workdir != NULL && environment_get(merged, "GIT_CONFIG_COUNT") == NULL)
        made = add_git(&extra, facts->workdir);
    if (made && facts->info != NULL && environment_get(merged, "PODSANDBOX_INFO") == NULL)
        made = add_info(&extra, facts->info);
    if (facts->terminal && environment_get(merged, "TERM") == NULL)
        extra.entries[extra.count++] = term;
    if (facts->cpus > 0)
        add_hints(&extra, merged, facts->cpus);
    if (made)
        result = environment_merge(merged, extra.entries, NULL);
    free(merged);
    extra_done(&extra);
    return result;
}
