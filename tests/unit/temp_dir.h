#pragma once

/* A private directory for one test. */
struct temp_dir {
    char path[64];
};

void temp_dir_make(struct temp_dir *dir);
void temp_dir_remove(struct temp_dir *dir); /* with all that is in it */

/* "DIR/NAME", malloc'd. */
char *temp_path(const struct temp_dir *dir, const char *name);
