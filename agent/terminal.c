#include "agent/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "agent/proto.h"

bool terminal_wanted(const struct message *message, struct terminal *ret_terminal)
{
    uint64_t columns = message_u64(message, TAG_COLUMNS, 0);
    uint64_t rows = message_u64(message, TAG_ROWS, 0);
    if (columns == 0 || rows == 0 || columns > UINT16_MAX || rows > UINT16_MAX)
        return false;
    ret_terminal->columns = (uint16_t)columns;
    ret_terminal->rows = (uint16_t)rows;
    return true;
}

/* By its name where the kernel cannot give it by our end (before Linux 4.13). */
static int open_peer(int ours)
{
    char name[32];
    int fd = ioctl(ours, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0)
        return fd;
    int errnum = ptsname_r(ours, name, sizeof(name));
    if (errnum != 0) {
        errno = errnum;
        return -1;
    }
    return open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
}

static int set_size(const struct terminal *terminal, int ours)
{
    const struct winsize size = {.ws_col = terminal->columns, .ws_row = terminal->rows};
    return ioctl(ours, TIOCSWINSZ, &size);
}

/* A character is erased as one. */
static void set_utf8(int fd)
{
    struct termios settings;
    if (tcgetattr(fd, &settings) < 0)
        return;
    settings.c_iflag |= IUTF8;
    (void)tcsetattr(fd, TCSANOW, &settings); /* then a byte is erased */
}

int terminal_open(struct terminal *terminal, int *ret_ours)
{
    int unlocked = 0;
    int ours = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (ours < 0)
        return -1;
    if (ioctl(ours, TIOCSPTLCK, &unlocked) == 0)
        terminal->fd = open_peer(ours);
    if (terminal->fd < 0 || set_size(terminal, ours) < 0) {
        int errnum = errno;
        if (terminal->fd >= 0)
            close(terminal->fd);
        terminal->fd = -1;
        close(ours);
        errno = errnum;
        return -1;
    }
    set_utf8(terminal->fd);
    *ret_ours = ours;
    return 0;
}

void terminal_resize(struct terminal *terminal, int ours, const struct message *message)
{
    struct terminal wanted = *terminal;
    if (terminal->columns > 0 && ours >= 0 && terminal_wanted(message, &wanted) &&
        set_size(&wanted, ours) == 0)
        *terminal = wanted;
}
