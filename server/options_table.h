#pragma once

#include <stddef.h>
#include <stdint.h>

/* The one table of settings: what --help shows, what the environment and the file may set. */
enum option_type {
    /* const char *: NULL when not given; an empty one means the same, is refused, or counts */
    OPTION_TEXT,
    OPTION_TEXT_NEEDED,
    OPTION_TEXT_OR_EMPTY,
    OPTION_CHOICE,  /* const char *: one of those in `value`, which are separated by '|' */
    OPTION_CHOICES, /* const char *: a comma list of them; an empty one counts */
    OPTION_NUMBER,  /* int64_t */
    OPTION_SECONDS, /* int64_t milliseconds, given in seconds (fractions allowed) */
    OPTION_BYTES,   /* int64_t, given as a quantity */
    OPTION_BOOL,    /* bool: true or false; a flag alone means true */
};

struct option_entry {
    const char
        *name; /* --NAME; PODSANDBOX_NAME with '_' for '-' in the environment; NAME in the file */
    enum option_type type;
    size_t offset;
    const char *fallback; /* NULL: not set */
    int64_t min, max;     /* of a number, or of milliseconds */
    const char *value;    /* what the help calls it; of a choice: what there is */
    const char *help;
    const char *group; /* set on the first of a group: its heading */
};

extern const struct option_entry option_table[];
extern const size_t option_count;
