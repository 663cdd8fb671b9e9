#include "tests/unit/temp_dir.h"

#include <check.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

void temp_dir_make(struct temp_dir *dir)
{
    (void)snprintf(dir->path, sizeof(dir->path), "/tmp/podsandbox-unit-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir->path));
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

void temp_dir_remove(struct temp_dir *dir)
{
    ck_assert_int_eq(nftw(dir->path, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

char *temp_path(const struct temp_dir *dir, const char *name)
{
    return xasprintf("%s/%s", dir->path, name);
}
