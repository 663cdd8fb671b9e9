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

char **environment_build(char *const *image, char *const *configured, char *const *own,
                         const char *workdir)
{
    char *extra[5] = {NULL};
    char **result = NULL;
    size_t count = 0;
    char **merged = environment_merge(image, configured, own);
    if (merged == NULL)
        return NULL;
    char *home = NULL, *directory = NULL;
    if (environment_get(own, "HOME") == NULL) {
        home = joined("HOME=", choose_home(image, configured));
        if (home == NULL)
            goto out;
        extra[count++] = home;
    }
    if (workdir != NULL && environment_get(merged, "GIT_CONFIG_COUNT") == NULL) {
        static char git_count[] = "GIT_CONFIG_COUNT=1";
        static char git_key[] = "GIT_CONFIG_KEY_0=safe.directory";
        directory = joined("GIT_CONFIG_VALUE_0=", workdir);
        if (directory == NULL)
            goto out;
        extra[count++] = git_count;
        extra[count++] = git_key;
        extra[count++] = directory;
    }
    result = environment_merge(merged, extra, NULL);
out:
    free(merged);
    free(home);
    free(directory);
    return result;
}
