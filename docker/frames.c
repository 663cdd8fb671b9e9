#include "docker/frames.h"

#include <string.h>

enum { FROM_STDIN, FROM_STDOUT, FROM_STDERR, FROM_ENGINE, STREAM_COUNT };

/* An engine writes a frame for each piece that it has read, of 32 KiB at most; a payload that looks
 * like a head by mistake has some other length. */
#define PAYLOAD_MAX (16U * 1024 * 1024)

static bool end_head(struct frames *frames)
{
    const uint8_t *head = frames->head;

    frames->left = (uint32_t)head[4] << 24 | (uint32_t)head[5] << 16 | (uint32_t)head[6] << 8 |
                   (uint32_t)head[7];
    return head[0] < STREAM_COUNT && head[1] == 0 && head[2] == 0 && head[3] == 0 &&
           frames->left <= PAYLOAD_MAX;
}

static void keep_words(struct buf *words, const uint8_t *data, size_t len)
{
    size_t room = words->max - words->len;

    (void)buf_append(words, data, len < room ? len : room);
}

bool frames_feed(struct frames *frames, const uint8_t *data, size_t len, uint8_t *out,
                 size_t *ret_out_len, struct buf *words)
{
    size_t out_len = 0;

    while (len > 0) {
        if (frames->left == 0) {
            size_t missing = sizeof(frames->head) - frames->have;
            size_t taken = len < missing ? len : missing;

            memcpy(frames->head + frames->have, data, taken);
            frames->have = (uint8_t)(frames->have + taken);
            data += taken;
            len -= taken;
            if (frames->have < sizeof(frames->head))
                break;
            frames->have = 0;
            if (!end_head(frames))
                return false;
            continue;
        }
        size_t taken = len < frames->left ? len : frames->left;

        if (frames->head[0] == FROM_STDIN || frames->head[0] == FROM_STDOUT) {
            memcpy(out + out_len, data, taken);
            out_len += taken;
        } else {
            keep_words(words, data, taken);
        }
        frames->left -= (uint32_t)taken;
        data += taken;
        len -= taken;
    }
    *ret_out_len = out_len;
    return true;
}

bool frames_in_frame(const struct frames *frames)
{
    return frames->have > 0 || frames->left > 0;
}
