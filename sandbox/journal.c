/* The file: a header, the head, then a ring for the tail. The ring has room for one more piece than
 * TAIL_MAX, and a piece is written before the header counts it, so that a server killed in between
 * has overwritten only bytes that were out of the tail already. */
#include "sandbox/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/caps.h"
#include "base/str.h"

#define PIECE (64 * KIB)
#define LIMIT_MAX ((uint64_t)1 << 40)
#define MAGIC "PSBXJNL1"

struct header {
    char magic[8];
    uint64_t head_max, tail_max, received; /* of this machine's byte order: it never travels */
};

struct journal {
    pthread_mutex_t lock;
    char *path;
    bool exists;  /* the file is there */
    bool started; /* and has a header */
    uint64_t head_max, tail_max, received;
    /* Where journal_mask stands, to go on there. A secret that overlaps one that was masked before
     * would not be seen by looking at the file again. */
    struct scrub_stream *stream;
    const struct scrubber *scrubber; /* the stream's, which keeps it */
    uint64_t stream_begin;           /* where its first byte was */
    uint64_t scanned;
    uint64_t masked_from; /* what is not older has been looked at, up to `scanned` */
};

static void unlock(pthread_mutex_t **lock)
{
    pthread_mutex_unlock(*lock);
}

#define LOCK_JOURNAL(journal)                                                                      \
    cleanup(unlock) pthread_mutex_t *locked_ __attribute__((unused)) = &(journal)->lock;           \
    pthread_mutex_lock(&(journal)->lock)

static int failed(struct err *err, int errnum, const char *what)
{
    if (errnum == ENOSPC || errnum == EDQUOT || errnum == EFBIG)
        return err_set(err, ERR_STORE_FULL, "%s the journal of an exec: no space is left", what);
    return err_errno(err, ERR_STORE, errnum, "%s the journal of an exec", what);
}

static int write_all(int fd, const void *data, size_t len, uint64_t at, struct err *err)
{
    const char *from = data;
    while (len > 0) {
        ssize_t n = pwrite(fd, from, len, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return failed(err, errno, "write");
        from += n;
        len -= (size_t)n;
        at += (uint64_t)n;
    }
    return 0;
}

static int read_all(int fd, void *data, size_t len, uint64_t at, struct err *err)
{
    char *to = data;
    while (len > 0) {
        ssize_t n = pread(fd, to, len, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return failed(err, errno, "read");
        if (n == 0)
            return err_set(err, ERR_STORE, "the journal of an exec was cut short");
        to += n;
        len -= (size_t)n;
        at += (uint64_t)n;
    }
    return 0;
}

static int write_header(const struct journal *journal, int fd, uint64_t received, struct err *err)
{
    struct header header = {
        .head_max = journal->head_max, .tail_max = journal->tail_max, .received = received};
    memcpy(header.magic, MAGIC, sizeof(header.magic));
    return write_all(fd, &header, sizeof(header), 0, err);
}

static uint64_t ring_size(const struct journal *journal)
{
    return journal->tail_max == 0 ? 0 : journal->tail_max + PIECE;
}

/* What is in the file: offsets [0, head_end) and [tail_begin, received), which may touch. */
static uint64_t head_end(const struct journal *journal)
{
    return journal->received < journal->head_max ? journal->received : journal->head_max;
}

static uint64_t tail_begin(const struct journal *journal)
{
    uint64_t head = head_end(journal);
    return journal->received - head > journal->tail_max ? journal->received - journal->tail_max
                                                        : head;
}

/* Where the byte at OFFSET is in the file, and how many that follow it are next to it there. */
static uint64_t place_of(const struct journal *journal, uint64_t offset, uint64_t *ret_run)
{
    if (offset < journal->head_max) {
        *ret_run = journal->head_max - offset;
        return sizeof(struct header) + offset;
    }
    uint64_t at = (offset - journal->head_max) % ring_size(journal);
    *ret_run = ring_size(journal) - at;
    return sizeof(struct header) + journal->head_max + at;
}

static size_t smaller(uint64_t a, size_t b)
{
    return a < b ? (size_t)a : b;
}

/* Both for a range that is in the file without a gap. */
static int read_range(const struct journal *journal, int fd, uint64_t offset, char *data,
                      size_t len, struct err *err)
{
    while (len > 0) {
        uint64_t run;
        uint64_t place = place_of(journal, offset, &run);
        size_t n = smaller(run, len);
        if (read_all(fd, data, n, place, err) < 0)
            return -1;
        data += n;
        offset += n;
        len -= n;
    }
    return 0;
}

static int write_range(const struct journal *journal, int fd, uint64_t offset, const char *data,
                       size_t len, struct err *err)
{
    while (len > 0) {
        uint64_t run;
        uint64_t place = place_of(journal, offset, &run);
        size_t n = smaller(run, len);
        if (write_all(fd, data, n, place, err) < 0)
            return -1;
        data += n;
        offset += n;
        len -= n;
    }
    return 0;
}

/* A file that a power cut left shorter than its header says ends where its bytes end. */
static int read_header(struct journal *journal, int fd, struct err *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return failed(err, errno, "look at");
    journal->exists = true;
    if ((uint64_t)st.st_size < sizeof(struct header))
        return 0; /* killed before it had written anything */
    struct header header;
    if (read_all(fd, &header, sizeof(header), 0, err) < 0)
        return -1;
    if (memcmp(header.magic, MAGIC, sizeof(header.magic)) != 0 || header.head_max > LIMIT_MAX ||
        header.tail_max > LIMIT_MAX)
        return err_set(err, ERR_STORE, "'%s' is not the journal of an exec", journal->path);
    journal->head_max = header.head_max;
    journal->tail_max = header.tail_max;
    journal->received = header.received;
    journal->started = true;
    uint64_t there = (uint64_t)st.st_size - sizeof(header);
    uint64_t all = journal->head_max + ring_size(journal);
    if (there < all && there < journal->received) {
        /* In a ring that went round, what is left may be of any age. */
        bool round = journal->received > all && there > journal->head_max;
        journal->received = round ? journal->head_max : there;
    }
    return 0;
}

int journal_open(const char *path, uint64_t head_max, uint64_t tail_max,
                 struct journal **ret_journal, struct err *err)
{
    struct journal *journal = xcalloc(1, sizeof(*journal));
    journal->path = xstrdup(path);
    journal->head_max = head_max < LIMIT_MAX ? head_max : LIMIT_MAX;
    journal->tail_max = tail_max < LIMIT_MAX ? tail_max : LIMIT_MAX;
    pthread_mutex_init(&journal->lock, NULL);
    cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    int rc = 0;
    if (fd >= 0)
        rc = read_header(journal, fd, err);
    else if (errno != ENOENT)
        rc = failed(err, errno, "open");
    if (rc < 0) {
        journal_close(journal);
        return -1;
    }
    *ret_journal = journal;
    return 0;
}

/* For a call that writes. A file that was there must not come into being again. */
static int open_to_write(const struct journal *journal, int *ret_fd, struct err *err)
{
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (journal->exists ? 0 : O_CREAT);
    int fd = open(journal->path, flags, 0600);
    if (fd < 0)
        return failed(err, errno, "open");
    *ret_fd = fd;
    return 0;
}

/* Before any data: bytes without a header in front would be taken for something else. */
static int start_file(struct journal *journal, int fd, struct err *err)
{
    journal->exists = true;
    if (journal->started)
        return 0;
    if (write_header(journal, fd, 0, err) < 0)
        return -1;
    journal->started = true;
    return 0;
}

/* A piece that lies in neither head nor tail is only counted. */
static int append_piece(struct journal *journal, int fd, const char *data, size_t len,
                        struct err *err)
{
    size_t kept = len;
    if (journal->tail_max == 0)
        kept = smaller(journal->head_max - head_end(journal), len);
    if (write_range(journal, fd, journal->received, data, kept, err) < 0 ||
        write_header(journal, fd, journal->received + len, err) < 0)
        return -1;
    journal->received += len;
    return 0;
}

uint64_t journal_received(struct journal *journal)
{
    LOCK_JOURNAL(journal);
    return journal->received;
}

uint64_t journal_keeps(struct journal *journal, uint64_t at)
{
    LOCK_JOURNAL(journal);
    return (at > journal->head_max ? at : journal->head_max) + journal->tail_max;
}

bool journal_has_gap(struct journal *journal, uint64_t *ret_from, uint64_t *ret_to)
{
    LOCK_JOURNAL(journal);
    uint64_t from = head_end(journal);
    uint64_t to = tail_begin(journal);
    if (from == to)
        return false;
    *ret_from = from;
    *ret_to = to;
    return true;
}

int journal_read(struct journal *journal, uint64_t offset, void *data, size_t len, size_t *ret_len,
                 struct err *err)
{
    LOCK_JOURNAL(journal);
    uint64_t head = head_end(journal);
    uint64_t tail = tail_begin(journal);
    if (offset >= head && offset < tail)
        return err_set(err, ERR_RANGE_NOT_SATISFIABLE,
                       "the bytes from %llu up to %llu were dropped: more output than is kept",
                       (unsigned long long)head, (unsigned long long)tail);
    uint64_t end = offset < head && head < tail ? head : journal->received;
    size_t there = offset < end ? smaller(end - offset, len) : 0;
    if (there > 0) {
        cleanup_fd int fd = open(journal->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
            return failed(err, errno, "open");
        if (read_range(journal, fd, offset, data, there, err) < 0)
            return -1;
    }
    *ret_len = there;
    return 0;
}

/* Of LEN bytes at OFFSET, writes those that are still in the file. */
static int write_kept(const struct journal *journal, int fd, uint64_t offset, const char *data,
                      size_t len, struct err *err)
{
    uint64_t head = head_end(journal);
    uint64_t tail = tail_begin(journal);
    if (offset < head) {
        size_t part = smaller(head - offset, len);
        if (write_range(journal, fd, offset, data, part, err) < 0)
            return -1;
        data += part;
        offset += part;
        len -= part;
    }
    uint64_t dropped = offset < tail ? tail - offset : 0;
    if (dropped >= len)
        return 0;
    return write_range(journal, fd, offset + dropped, data + dropped, len - (size_t)dropped, err);
}

struct masking {
    struct journal *journal;
    int fd;
    char *piece;
    struct buf out;
};

static void masking_done(struct masking *masking)
{
    free_secret(masking->piece, PIECE);
    buf_wipe(&masking->out);
}

/* Only what changed is written: what is decided, and of what is undecided what is masked already.
 */
static int write_masked(struct masking *masking, uint64_t at, uint64_t end, bool changed,
                        struct err *err)
{
    const struct journal *journal = masking->journal;
    struct buf *out = &masking->out;
    if (changed && write_kept(journal, masking->fd, at, out->ptr, out->len, err) < 0)
        return -1;
    buf_reset(out);
    size_t masked = 0;
    if (!scrub_stream_peek(journal->stream, out, &masked))
        return err_set(err, ERR_INTERNAL, "no memory to mask the journal of an exec");
    if (masked > 0 && write_kept(journal, masking->fd, end - out->len, out->ptr, out->len, err) < 0)
        return -1;
    buf_reset(out);
    return 0;
}

/* Bytes that are next to each other in the output. */
static int mask_range(struct masking *masking, uint64_t from, uint64_t to, bool last,
                      struct err *err)
{
    struct scrub_stream *stream = masking->journal->stream;
    while (from < to) {
        size_t len = smaller(to - from, PIECE);
        if (read_range(masking->journal, masking->fd, from, masking->piece, len, err) < 0)
            return -1;
        uint64_t at = from - scrub_stream_held(stream);
        uint64_t before = scrub_stream_masked(stream);
        from += len;
        if (!scrub_stream_push(stream, masking->piece, len, &masking->out, last && from == to))
            return err_set(err, ERR_INTERNAL, "no memory to mask the journal of an exec");
        if (write_masked(masking, at, from, scrub_stream_masked(stream) != before, err) < 0)
            return -1;
    }
    return 0;
}

struct noting {
    const struct journal *journal;
    const struct journal_masking *wish;
};

static void note_masked(void *arg, uint64_t from, uint64_t to)
{
    const struct noting *noting = arg;
    uint64_t begin = noting->journal->stream_begin;
    noting->wish->note(noting->wish->arg, begin + from, begin + to);
}

static void begin_stream(struct journal *journal, const struct scrubber *scrubber, uint64_t begin)
{
    scrub_stream_free(journal->stream);
    journal->stream = scrubber == NULL ? NULL : scrub_stream_new(scrubber);
    journal->scrubber = scrubber;
    journal->stream_begin = begin;
    journal->scanned = begin;
}

/* On from where the stream stands, which is in the file or was dropped, with the gap left out. */
static int mask_rest(struct masking *masking, struct noting *noting, struct err *err)
{
    struct journal *journal = masking->journal;
    uint64_t head = head_end(journal);
    uint64_t tail = tail_begin(journal);
    uint64_t begin = journal->scanned;
    scrub_stream_watch(journal->stream, note_masked, noting);
    if (head < tail && begin < tail) {
        if (begin < head && mask_range(masking, begin, head, true, err) < 0)
            return -1;
        begin_stream(journal, journal->scrubber, tail);
        scrub_stream_watch(journal->stream, note_masked, noting);
        begin = tail;
    }
    return mask_range(masking, begin, journal->received, false, err);
}

static int mask_locked(struct journal *journal, const struct scrubber *scrubber, uint64_t from,
                       struct noting *noting, struct err *err)
{
    if (journal->received == 0 || scrubber_empty(scrubber))
        return 0;
    size_t before = scrubber_longest(scrubber) - 1;
    if (journal->scrubber != scrubber || journal->scanned != from) {
        begin_stream(journal, scrubber, from > before ? from - before : 0);
        journal->masked_from = from > before ? from : 0;
    }
    cleanup_fd int fd = -1;
    if (open_to_write(journal, &fd, err) < 0)
        return -1;
    cleanup(masking_done) struct masking masking = {
        .journal = journal, .fd = fd, .piece = xmalloc(PIECE), .out = BUF_INIT(PIECE + before)};
    if (mask_rest(&masking, noting, err) < 0) {
        begin_stream(journal, NULL, 0);
        return -1;
    }
    scrub_stream_watch(journal->stream, NULL, NULL);
    journal->scanned = journal->received;
    return 0;
}

int journal_mask(struct journal *journal, const struct journal_masking *masking, uint64_t from,
                 struct err *err)
{
    struct noting noting = {.journal = journal, .wish = masking};
    LOCK_JOURNAL(journal);
    return mask_locked(journal, masking->scrubber, from, &noting, err);
}

bool journal_is_masked(struct journal *journal, const struct scrubber *scrubber, uint64_t from,
                       uint64_t to)
{
    LOCK_JOURNAL(journal);
    return journal->scrubber == scrubber && from >= journal->masked_from && to <= journal->scanned;
}

bool journal_saw_decoy(struct journal *journal)
{
    LOCK_JOURNAL(journal);
    return journal->stream != NULL && scrub_stream_saw_decoy(journal->stream);
}

bool journal_held(struct journal *journal, const struct scrubber *scrubber, uint64_t end,
                  size_t *ret_held, size_t *ret_firmly)
{
    LOCK_JOURNAL(journal);
    if (journal->scrubber != scrubber || journal->scanned != end)
        return false;
    *ret_held = scrub_stream_held(journal->stream);
    *ret_firmly = scrub_stream_held_firmly(journal->stream);
    return true;
}

/* --- masked on the way in ----------------------------------------------------------------
 */

/* A piece: together with what was held before, it goes through the stream; where that changed
 * nothing, it is written as it came. */
static int append_piece_masked(struct masking *masking, const char *data, size_t len,
                               struct err *err)
{
    struct journal *journal = masking->journal;
    struct scrub_stream *stream = journal->stream;
    struct buf *out = &masking->out;
    uint64_t before = scrub_stream_masked(stream);
    size_t held = scrub_stream_held(stream), masked = 0;
    buf_reset(out);
    if (!scrub_stream_push(stream, data, len, out, false) ||
        !scrub_stream_peek(stream, out, &masked))
        return err_set(err, ERR_INTERNAL, "no memory to mask the journal of an exec");
    if (masked > 0 || scrub_stream_masked(stream) != before) {
        if (write_kept(journal, masking->fd, journal->received - held, out->ptr, held, err) < 0)
            return -1;
        data = out->ptr + held;
    }
    if (append_piece(journal, masking->fd, data, len, err) < 0)
        return -1;
    journal->scanned = journal->received;
    return 0;
}

/* What is there already is looked at in the file; nothing, as a rule. */
static int catch_up(struct journal *journal, struct noting *noting, struct err *err)
{
    const struct scrubber *scrubber = noting->wish->scrubber;
    uint64_t at = journal->received;
    if (journal->scrubber == scrubber && journal->scanned == at)
        return 0;
    if (at > 0)
        return mask_locked(journal, scrubber, at, noting, err);
    begin_stream(journal, scrubber, 0);
    journal->masked_from = 0;
    return 0;
}

static int append_masked(struct journal *journal, int fd, struct str data, struct noting *noting,
                         struct err *err)
{
    if (catch_up(journal, noting, err) < 0)
        return -1;
    size_t longest = scrubber_longest(noting->wish->scrubber);
    cleanup(masking_done) struct masking masking = {
        .journal = journal, .fd = fd, .out = BUF_INIT(PIECE + longest)};
    scrub_stream_watch(journal->stream, note_masked, noting);
    while (data.len > 0) {
        size_t len = smaller(data.len, PIECE);
        if (append_piece_masked(&masking, data.ptr, len, err) < 0) {
            begin_stream(journal, NULL, 0);
            return -1;
        }
        data.ptr += len;
        data.len -= len;
    }
    scrub_stream_watch(journal->stream, NULL, NULL);
    return 0;
}

static int append_plain(struct journal *journal, int fd, struct str data, struct err *err)
{
    while (data.len > 0) {
        size_t len = smaller(data.len, PIECE);
        if (append_piece(journal, fd, data.ptr, len, err) < 0)
            return -1;
        data.ptr += len;
        data.len -= len;
    }
    return 0;
}

int journal_append_masked(struct journal *journal, uint64_t offset, const void *data, size_t len,
                          const struct journal_masking *masking, struct err *err)
{
    struct noting noting = {.journal = journal, .wish = masking};
    LOCK_JOURNAL(journal);
    if (offset > journal->received)
        return err_set(err, ERR_INTERNAL,
                       "output from offset %llu on, but the journal ends at %llu",
                       (unsigned long long)offset, (unsigned long long)journal->received);
    uint64_t known = journal->received - offset;
    if (known >= len)
        return 0;
    cleanup_fd int fd = -1;
    if (open_to_write(journal, &fd, err) < 0 || start_file(journal, fd, err) < 0)
        return -1;
    struct str fresh = {(const char *)data + known, len - (size_t)known};
    return masking == NULL || scrubber_empty(masking->scrubber)
               ? append_plain(journal, fd, fresh, err)
               : append_masked(journal, fd, fresh, &noting, err);
}

int journal_append(struct journal *journal, uint64_t offset, const void *data, size_t len,
                   struct err *err)
{
    return journal_append_masked(journal, offset, data, len, NULL, err);
}

void journal_close(struct journal *journal)
{
    if (journal == NULL)
        return;
    scrub_stream_free(journal->stream);
    pthread_mutex_destroy(&journal->lock);
    free(journal->path);
    free(journal);
}

int journal_remove(const char *path, struct err *err)
{
    if (unlink(path) < 0 && errno != ENOENT)
        return failed(err, errno, "remove");
    return 0;
}
