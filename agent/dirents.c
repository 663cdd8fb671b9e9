#include "agent/dirents.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct kernel_dirent {
    uint64_t inode;
    int64_t offset;
    uint16_t length;
    uint8_t type;
    char name[];
};

void dirents_init(struct dirents *dirents, int fd)
{
    dirents->fd = fd;
    dirents->len = dirents->at = 0;
    dirents->failed = false;
}

bool dirents_next(struct dirents *dirents, struct dirent_entry *ret_entry)
{
    for (;;) {
        if (dirents->at == dirents->len) {
            long count =
                syscall(SYS_getdents64, dirents->fd, dirents->buffer, sizeof(dirents->buffer));
            dirents->failed = count < 0;
            if (count <= 0)
                return false;
            dirents->len = (size_t)count;
            dirents->at = 0;
        }
        const struct kernel_dirent *entry = (const void *)(dirents->buffer + dirents->at);
        dirents->at += entry->length;
        if (strcmp(entry->name, ".") == 0 || strcmp(entry->name, "..") == 0)
            continue;
        ret_entry->name = entry->name;
        ret_entry->type = entry->type;
        return true;
    }
}
