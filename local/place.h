#pragma once

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"

/* The state directory: boxes/ID/ has the record of a box, the socket of its agent, what bubblewrap
 * says of its end (status) and what it and the agent print (log). Nobody else may enter it. */
struct place {
    int lock;  /* held for as long as this server uses the directory */
    int boxes; /* descriptor of boxes/ */
};

#define PLACE_STATUS "status"
#define PLACE_LOG "log"

int place_open(const char *path, struct place *ret_place, struct err *err) must_check;
void place_close(struct place *place);

void place_list(const struct place *place, struct text_list *ret_ids);
/* An empty directory for a new box; what an earlier life of ID left there is removed. */
int place_make_box(const struct place *place, const char *id, int *ret_dir,
                   struct err *err) must_check;
int place_open_box(const struct place *place, const char *id); /* or -1 */
/* The record goes first, so that nothing half removed looks like a box. */
void place_remove_box(const struct place *place, const char *id);

int place_listen(const struct place *place, const char *id, int *ret_fd,
                 struct err *err) must_check;
/* ERR_NOT_READY or ERR_SANDBOX_GONE. Does not block. */
int place_connect(const struct place *place, const char *id, int *ret_fd,
                  struct err *err) must_check;
/* What is in one of the small files of a box, cut to SIZE; "" when nothing is. */
void place_read(const struct place *place, const char *id, const char *name, char *ret_text,
                size_t size);

/* What could not be written below the state directory. ERR_STORE_FULL: its disk has no room. */
int place_write_error(struct err *err, int errnum, const char *what);
