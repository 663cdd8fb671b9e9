#pragma once

#include <locale.h>
#include <stdbool.h>

/* libarchive takes names for what the thread's locale says: in that of C it refuses those that are
 * not ASCII. A scope with C.UTF-8, in which other bytes pass as they are. */
struct tar_locale {
    locale_t utf8, before;
};

bool tar_locale_enter(struct tar_locale *locale); /* false: it cannot be had */
void tar_locale_leave(struct tar_locale *locale);
