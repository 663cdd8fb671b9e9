#pragma once

#include <stddef.h>

/* Allocation for small things of our own size: aborts when memory is out, never returns NULL.
 * What a client sizes goes through `struct buf`, which fails with an error instead. */
void *xmalloc(size_t size) __attribute__((malloc, returns_nonnull, warn_unused_result));
void *xcalloc(size_t count, size_t size)
    __attribute__((malloc, returns_nonnull, warn_unused_result));
void *xrealloc(void *ptr, size_t size) __attribute__((returns_nonnull, warn_unused_result));
char *xstrdup(const char *text) __attribute__((malloc, returns_nonnull, warn_unused_result));
char *xstrndup(const char *text, size_t len)
    __attribute__((malloc, returns_nonnull, warn_unused_result));
char *xasprintf(const char *fmt, ...)
    __attribute__((format(printf, 1, 2), malloc, returns_nonnull, warn_unused_result));

/* Zeroes LEN bytes in a way that is not optimised out, then frees. NULL is allowed. */
void free_secret(void *ptr, size_t len);

void cleanup_free_ptr(void *ptr_to_ptr);
void cleanup_fd_close(int *fd);

#define cleanup(fn) __attribute__((cleanup(fn)))
#define cleanup_free cleanup(cleanup_free_ptr)
#define cleanup_fd cleanup(cleanup_fd_close)

/* Hand over what a cleanup variable holds, inside the call that takes it. */
#define TAKE_PTR(ptr)                                                                              \
    ({                                                                                             \
        __typeof__(ptr) taken_ = (ptr);                                                            \
        (ptr) = NULL;                                                                              \
        taken_;                                                                                    \
    })
#define TAKE_FD(fd)                                                                                \
    ({                                                                                             \
        int taken_ = (fd);                                                                         \
        (fd) = -1;                                                                                 \
        taken_;                                                                                    \
    })
#define ARRAY_LEN(array) (sizeof(array) / sizeof((array)[0]))
#define container_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))
#define must_check __attribute__((warn_unused_result))
