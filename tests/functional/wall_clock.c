/* Preloaded into a server under test: its wall clock is that of the machine plus the seconds that
 * the file $WALL_CLOCK_OFFSET holds, now and after every change, as if somebody had set it. The
 * other clocks stay true. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset; /* NULL: none is asked for */

__attribute__((constructor)) static void map_offset(void)
{
    const char *path = getenv("WALL_CLOCK_OFFSET");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) {
        return;
    }
    void *page = mmap(NULL, sizeof(*offset), PROT_READ, MAP_SHARED, fd, 0);
    offset = page == MAP_FAILED ? NULL : page;
    (void)close(fd);
}

int clock_gettime(clockid_t id, struct timespec *now)
{
    long result = syscall(SYS_clock_gettime, id, now);
    if (result == 0 && offset && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        now->tv_sec += *offset;
    }
    return (int)result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec time;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &time) != 0) {
        return -1;
    }
    *now = (struct timeval){.tv_sec = time.tv_sec, .tv_usec = time.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *ret_now)
{
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (ret_now) {
        *ret_now = now.tv_sec;
    }
    return now.tv_sec;
}
