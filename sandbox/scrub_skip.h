#pragma once

#include <stddef.h>
#include <stdint.h>

/* Passes over text in which no pattern begins, many bytes at a time: of those that a pattern may
 * begin at, a stride long, it looks at the four bytes behind the last one alone, which are a part
 * of each pattern that does. */
struct scrub_skip;

#define SCRUB_BLOCK 4       /* no pattern may be shorter */
#define SCRUB_WINDOW_MAX 16 /* a longer one would fill the table */

/* SHORTEST pattern's bytes; about BLOCKS calls of scrub_skip_add follow. */
struct scrub_skip *scrub_skip_new(size_t shortest, size_t blocks);
void scrub_skip_free(struct scrub_skip *skip); /* NULL is allowed; wipes it */
/* How many bytes of each pattern's beginning are to be added. */
size_t scrub_skip_window(const struct scrub_skip *skip);
/* BLOCK ends a pattern's first LEN bytes, at most a window. */
void scrub_skip_add(struct scrub_skip *skip, const unsigned char block[SCRUB_BLOCK], size_t len);
/* From AT on, where a pattern may begin, or where less than a window is left of LEN. */
size_t scrub_skip(const struct scrub_skip *skip, const unsigned char *data, size_t at, size_t len);
