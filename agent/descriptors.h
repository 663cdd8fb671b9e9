#pragma once

#include <stddef.h>
#include <sys/types.h>

/* Makes STANDARD the descriptors 0, 1 and 2, keeps EXTRA (at 3, close-on-exec) and closes all
 * others. Returns the new number of EXTRA, -1 when there is no room. */
int descriptors_arrange(const int standard[3], int extra);

/* Closes every descriptor from FIRST on. */
void descriptors_close_from(int first);

/* Takes one packet from a socket without waiting: its length, 0 when the other side has gone and
 * nothing is left, or -1 with errno (EAGAIN: none now). */
ssize_t packet_receive(int fd, void *buffer, size_t size);
