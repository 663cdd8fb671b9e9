/* What happened to a sandbox, in its order: kept in memory until its record is in the store. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"
#include "sandbox/lifecycle.h"

#define WAITING_MAX 100 /* while the store fails; later ones are dropped */

struct happening {
    const char *type; /* a literal */
    struct json *detail;
    int64_t at;
};

struct history {
    size_t count;
    struct happening items[WAITING_MAX];
};

void history_free(struct history *history)
{
    for (size_t i = 0; history && i < history->count; i++) {
        json_free(history->items[i].detail);
    }
    free(history);
}

void sandbox_event(struct sandbox *sandbox, const char *type, struct json *detail)
{
    pthread_mutex_lock(&sandbox->all->lock);
    if (!sandbox->history) {
        sandbox->history = xcalloc(1, sizeof(*sandbox->history));
    }
    struct history *history = sandbox->history;
    if (history->count < WAITING_MAX) {
        history->items[history->count++] =
            (struct happening){.type = type, .detail = TAKE_PTR(detail), .at = clock_wall_ms()};
    }
    pthread_mutex_unlock(&sandbox->all->lock);
    json_free(detail);
    sandbox_settle(sandbox);
}

static void write_one(struct sandbox *sandbox, const struct happening *happening)
{
    cleanup_buf struct buf text = BUF_INIT(CAP_SMALL);
    if (!happening->detail || !json_print(happening->detail, &text)) {
        buf_reset(&text);
        (void)buf_append_str(&text, "{}");
    }
    struct event_row row = {.uid = sandbox->uid,
                            .type = (char *)(uintptr_t)happening->type,
                            .detail = text.ptr,
                            .at = happening->at};
    struct err err = {0};
    if (store_add_event(sandbox->all->store, &row, &err) < 0) { /* not worth a failure */
        log_event(LOG_LEVEL_WARN, "event not written", "id", sandbox->id, "type", happening->type,
                  "error", err.msg, NULL);
    }
}

void sandbox_write_events(struct sandbox *sandbox)
{
    pthread_mutex_lock(&sandbox->all->lock);
    struct history *history = TAKE_PTR(sandbox->history);
    pthread_mutex_unlock(&sandbox->all->lock);
    for (size_t i = 0; history && i < history->count; i++) {
        write_one(sandbox, &history->items[i]);
    }
    if (history)
        event_fire(&sandbox->changed); /* who follows them looks again */
    history_free(history);
}

static struct json *event_json(const struct event_row *row)
{
    struct json *item = json_new_object();
    struct json *detail = NULL;
    json_set_int(item, "id", row->seq);
    json_set_text(item, "type", row->type);
    json_set_time(item, "at", row->at);
    if (json_parse(row->detail, strlen(row->detail), JSON_LENIENT, &detail, NULL) < 0) {
        detail = json_new_object();
    }
    json_set(item, "detail", detail);
    return item;
}

int sandbox_events(struct sandboxes *all, const char *uid, int64_t after, size_t limit,
                   struct json **ret_page, struct err *err)
{
    struct event_row *rows = NULL;
    size_t count = 0;
    if (store_list_events(all->store, uid, after, limit + 1, &rows, &count, err) < 0) {
        return -1;
    }
    size_t shown = count < limit ? count : limit;
    struct json *page = json_new_object();
    struct json *items = json_set_array(page, "items");
    for (size_t i = 0; i < shown; i++) {
        json_add(items, event_json(&rows[i]));
    }
    if (count > shown) {
        char next[24];
        snprintf(next, sizeof(next), "%lld", (long long)rows[shown - 1].seq);
        json_set_text(page, "next", next);
    } else {
        json_set_null(page, "next");
    }
    event_rows_free(rows, count);
    *ret_page = page;
    return 0;
}
