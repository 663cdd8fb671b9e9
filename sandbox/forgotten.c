/* Journals whose sandbox the store does not know: of a server that was killed while it forgot, or
 * that has lost its store. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "sandbox/lifecycle.h"

static bool is_unknown(struct sandboxes *all, const char *uid)
{
    struct sandbox_row row;
    struct err err = {0};
    if (store_get_sandbox_uid(all->store, uid, &row, &err) == 0) {
        sandbox_row_done(&row);
        return false;
    }
    return err.code == ERR_NOT_FOUND;
}

void execs_sweep(struct sandboxes *all)
{
    struct dirent **entries = NULL;
    int count = scandir(all->config.data_dir, &entries, NULL, NULL);
    for (int i = 0; i < count; i++) {
        const char *uid = entries[i]->d_name;
        if (uid[0] != '.' && is_unknown(all, uid)) {
            log_event(LOG_LEVEL_INFO, "removing journals of no sandbox", "uid", uid, NULL);
            execs_forget(all, uid);
        }
        free(entries[i]);
    }
    free(entries);
}
