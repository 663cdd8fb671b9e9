/* Bytes of a hostile engine: the stream of an exec, in whatever pieces, and what it says of a
 * container. The first byte says in what pieces the stream comes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "docker/container.h"
#include "docker/frames.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define INPUT_MAX (64 * KIB)

struct outcome {
    bool good;
    struct buf out, words;
};

static void check(int good)
{
    if (!good)
        abort();
}

static void feed(const uint8_t *data, size_t size, size_t cut, struct outcome *ret_outcome)
{
    static uint8_t room[INPUT_MAX];
    struct frames frames = {.have = 0};

    *ret_outcome =
        (struct outcome){.good = true, .out = BUF_INIT(INPUT_MAX), .words = BUF_INIT(64)};
    for (size_t at = 0; at < size && ret_outcome->good;) {
        size_t piece = cut == 0 || size - at < cut ? size - at : cut, got = 0;

        ret_outcome->good = frames_feed(&frames, data + at, piece, room, &got, &ret_outcome->words);
        check(got <= piece);
        check(!ret_outcome->good || buf_append(&ret_outcome->out, room, got));
        at += piece;
    }
}

static void outcome_done(struct outcome *outcome)
{
    buf_done(&outcome->out);
    buf_done(&outcome->words);
}

/* What was good before a fault is the same but for where the pieces end. */
static void feed_twice(const uint8_t *data, size_t size)
{
    struct outcome whole, pieces;

    feed(data + 1, size - 1, 0, &whole);
    feed(data + 1, size - 1, data[0], &pieces);
    check(whole.good == pieces.good);
    if (whole.good) {
        check(whole.out.len == pieces.out.len);
        check(memcmp(buf_text(&whole.out), buf_text(&pieces.out), whole.out.len) == 0);
        check(strcmp(buf_text(&whole.words), buf_text(&pieces.words)) == 0);
    }
    outcome_done(&whole);
    outcome_done(&pieces);
}

static void describe(const uint8_t *data, size_t size)
{
    cleanup_json struct json *json = NULL;
    struct box_info info;

    if (json_parse((const char *)data, size, JSON_LENIENT, &json, NULL) < 0)
        return;
    const char *id = json_get_text(json, "Id");
    container_describe(json_path(json, "Config.Labels"), id ? id : "", "ours", &info);
    container_judge(json_get(json, "State"), &info);
    check(strlen(info.id) < sizeof(info.id) && strlen(info.message) < sizeof(info.message));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > INPUT_MAX)
        return 0;
    feed_twice(data, size);
    describe(data, size);
    return 0;
}
