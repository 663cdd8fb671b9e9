#include "base/mem.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Noreturn void out_of_memory(void)
{
    static const char message[] = "out of memory\n";
    ssize_t ignored = write(STDERR_FILENO, message, sizeof(message) - 1);
    (void)ignored; /* nothing is left to do about it */
    abort();
}

void *xmalloc(size_t size)
{
    void *ptr = malloc(size ? size : 1);
    if (!ptr)
        out_of_memory();
    return ptr;
}

void *xcalloc(size_t count, size_t size)
{
    void *ptr = calloc(count ? count : 1, size ? size : 1);
    if (!ptr)
        out_of_memory();
    return ptr;
}

void *xrealloc(void *ptr, size_t size)
{
    void *grown = realloc(ptr, size ? size : 1);
    if (!grown)
        out_of_memory();
    return grown;
}

char *xstrdup(const char *text)
{
    return xstrndup(text, strlen(text));
}

char *xstrndup(const char *text, size_t len)
{
    len = strnlen(text, len);
    char *copy = xmalloc(len + 1);
    memcpy(copy, text, len);
    copy[len] = '\0';
    return copy;
}

char *xasprintf(const char *fmt, ...)
{
    va_list args;
    char *text = NULL;
    va_start(args, fmt);
    int len = vasprintf(&text, fmt, args);
    va_end(args);
    if (len < 0)
        out_of_memory();
    return text;
}

void free_secret(void *ptr, size_t len)
{
    if (!ptr)
        return;
    explicit_bzero(ptr, len);
    free(ptr);
}

void cleanup_free_ptr(void *ptr_to_ptr)
{
    void *ptr;
    memcpy(&ptr, ptr_to_ptr, sizeof(ptr)); /* the caller's pointer has a type of its own */
    free(ptr);
}

void cleanup_fd_close(int *fd)
{
    if (*fd < 0)
        return;
    int saved = errno;
    close(*fd);
    errno = saved;
}
