#include "agent/inodes.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS ((size_t)32768) /* a power of two */
#define COUNT_MAX (SLOTS / 2)
#define BYTES_MAX ((size_t)8 << 20) /* of the paths */

struct inode {
    dev_t device;
    ino_t inode;
    char *path; /* NULL: free */
};

const char *inodes_first(struct inodes *inodes, dev_t device, ino_t inode, const char *path)
{
    size_t size = strlen(path) + 1;
    if (inodes->slots == NULL)
        inodes->slots = calloc(SLOTS, sizeof(*inodes->slots));
    if (inodes->slots == NULL)
        return NULL;
    size_t at = (size_t)((inode * 0x9e3779b97f4a7c15u) >> 32) & (SLOTS - 1);
    for (; inodes->slots[at].path != NULL; at = (at + 1) & (SLOTS - 1)) {
        const struct inode *slot = &inodes->slots[at];
        if (slot->inode == inode && slot->device == device)
            return slot->path;
    }
    if (inodes->count >= COUNT_MAX || inodes->bytes + size > BYTES_MAX)
        return NULL;
    char *copy = malloc(size);
    if (copy == NULL)
        return NULL;
    memcpy(copy, path, size);
    inodes->slots[at] = (struct inode){.device = device, .inode = inode, .path = copy};
    inodes->count++;
    inodes->bytes += size;
    return NULL;
}

void inodes_done(struct inodes *inodes)
{
    for (size_t i = 0; inodes->slots != NULL && i < SLOTS; i++)
        free(inodes->slots[i].path);
    free(inodes->slots);
}
