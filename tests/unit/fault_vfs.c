#include "tests/unit/fault_vfs.h"

#include <check.h>
#include <errno.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <string.h>

static struct {
    long after, operations, log_syncs;
    enum fault fault;
    bool failing;
} state;

struct fault_file {
    sqlite3_file base;
    bool is_log;
    sqlite3_file *real; /* behind this struct */
};

static sqlite3_vfs *real_vfs;

static bool fails(void)
{
    state.operations++;
    if (state.after > 0 && state.operations >= state.after)
        state.failing = true;
    if (state.failing)
        errno = state.fault == FAULT_IO ? EIO : ENOSPC;
    return state.failing;
}

static sqlite3_file *real_of(sqlite3_file *file)
{
    return ((struct fault_file *)(void *)file)->real;
}

static int close_file(sqlite3_file *file)
{
    return real_of(file)->pMethods->xClose(real_of(file));
}

static int read_file(sqlite3_file *file, void *data, int len, sqlite3_int64 at)
{
    return real_of(file)->pMethods->xRead(real_of(file), data, len, at);
}

static int write_file(sqlite3_file *file, const void *data, int len, sqlite3_int64 at)
{
    if (fails())
        return state.fault == FAULT_FULL ? SQLITE_FULL : SQLITE_IOERR_WRITE;
    return real_of(file)->pMethods->xWrite(real_of(file), data, len, at);
}

static int truncate_file(sqlite3_file *file, sqlite3_int64 size)
{
    if (fails())
        return SQLITE_IOERR_TRUNCATE;
    return real_of(file)->pMethods->xTruncate(real_of(file), size);
}

static int sync_file(sqlite3_file *file, int flags)
{
    (void)flags;
    if (((struct fault_file *)(void *)file)->is_log)
        state.log_syncs++;
    if (fails())
        return SQLITE_IOERR_FSYNC;
    return SQLITE_OK; /* no power is cut here, and it takes its time */
}

static int file_size(sqlite3_file *file, sqlite3_int64 *size)
{
    return real_of(file)->pMethods->xFileSize(real_of(file), size);
}

static int lock_file(sqlite3_file *file, int lock)
{
    return real_of(file)->pMethods->xLock(real_of(file), lock);
}

static int unlock_file(sqlite3_file *file, int lock)
{
    return real_of(file)->pMethods->xUnlock(real_of(file), lock);
}

static int check_lock(sqlite3_file *file, int *result)
{
    return real_of(file)->pMethods->xCheckReservedLock(real_of(file), result);
}

static int control_file(sqlite3_file *file, int op, void *arg)
{
    return real_of(file)->pMethods->xFileControl(real_of(file), op, arg);
}

static int sector_size(sqlite3_file *file)
{
    return real_of(file)->pMethods->xSectorSize(real_of(file));
}

static int device_characteristics(sqlite3_file *file)
{
    return real_of(file)->pMethods->xDeviceCharacteristics(real_of(file));
}

static int shm_map(sqlite3_file *file, int page, int size, int extend, void volatile **memory)
{
    if (extend && fails())
        return SQLITE_IOERR_SHMSIZE;
    return real_of(file)->pMethods->xShmMap(real_of(file), page, size, extend, memory);
}

static int shm_lock(sqlite3_file *file, int offset, int n, int flags)
{
    return real_of(file)->pMethods->xShmLock(real_of(file), offset, n, flags);
}

static void shm_barrier(sqlite3_file *file)
{
    real_of(file)->pMethods->xShmBarrier(real_of(file));
}

static int shm_unmap(sqlite3_file *file, int delete_it)
{
    return real_of(file)->pMethods->xShmUnmap(real_of(file), delete_it);
}

static const sqlite3_io_methods methods = {
    .iVersion = 2,
    .xClose = close_file,
    .xRead = read_file,
    .xWrite = write_file,
    .xTruncate = truncate_file,
    .xSync = sync_file,
    .xFileSize = file_size,
    .xLock = lock_file,
    .xUnlock = unlock_file,
    .xCheckReservedLock = check_lock,
    .xFileControl = control_file,
    .xSectorSize = sector_size,
    .xDeviceCharacteristics = device_characteristics,
    .xShmMap = shm_map,
    .xShmLock = shm_lock,
    .xShmBarrier = shm_barrier,
    .xShmUnmap = shm_unmap,
};

static int open_file(sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int flags,
                     int *ret_flags)
{
    (void)vfs;
    struct fault_file *mine = (struct fault_file *)(void *)file;
    mine->real = (sqlite3_file *)(void *)(mine + 1);
    mine->is_log = flags & SQLITE_OPEN_WAL;
    int code = real_vfs->xOpen(real_vfs, name, mine->real, flags, ret_flags);
    mine->base.pMethods = mine->real->pMethods == NULL ? NULL : &methods;
    return code;
}

static int delete_file(sqlite3_vfs *vfs, const char *name, int sync_directory)
{
    (void)vfs;
    if (fails())
        return SQLITE_IOERR_DELETE;
    (void)sync_directory;
    return real_vfs->xDelete(real_vfs, name, 0);
}

static int last_error(sqlite3_vfs *vfs, int len, char *text)
{
    (void)vfs;
    if (state.failing)
        return state.fault == FAULT_IO ? EIO : ENOSPC;
    return real_vfs->xGetLastError(real_vfs, len, text);
}

void fault_vfs_install(void)
{
    static sqlite3_vfs vfs;
    if (real_vfs != NULL)
        return;
    real_vfs = sqlite3_vfs_find(NULL);
    ck_assert_ptr_nonnull(real_vfs);
    vfs = *real_vfs;
    vfs.pNext = NULL;
    vfs.zName = "fault";
    vfs.szOsFile = (int)sizeof(struct fault_file) + real_vfs->szOsFile;
    vfs.xOpen = open_file;
    vfs.xDelete = delete_file;
    vfs.xGetLastError = last_error;
    ck_assert_int_eq(sqlite3_vfs_register(&vfs, 1), SQLITE_OK);
}

void fault_set(long after, enum fault fault)
{
    memset(&state, 0, sizeof(state));
    state.after = after;
    state.fault = fault;
}

long fault_operations(void)
{
    return state.operations;
}

long fault_log_syncs(void)
{
    return state.log_syncs;
}
