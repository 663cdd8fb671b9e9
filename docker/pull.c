#include "docker/pull.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"

/* A registry that says nothing for so long is gone. */
#define IDLE_MS 300000
#define TELL_EVERY_MS 500
#define WORDS_MAX 1000

struct pull {
    const struct pull_progress *progress;
    int64_t told_ms;
    char error[WORDS_MAX]; /* what the stream said; "" for none */
};

char *pull_path(const char *image)
{
    cleanup_buf struct buf path = BUF_INIT(CAP_SMALL);
    const char *digest = strchr(image, '@'), *slash = strrchr(image, '/');
    const char *colon = strchr(slash ? slash : image, ':');
    const char *cut = digest ? digest : colon;
    struct str name = {image, cut ? (size_t)(cut - image) : strlen(image)};
    struct str tag = cut ? str_of(cut + 1) : STR("latest");

    if (!buf_append_str(&path, "/images/create") || !url_append_query(&path, "fromImage", name) ||
        !url_append_query(&path, "tag", tag))
        return NULL;
    return buf_take(&path, NULL);
}

static void tell(struct pull *pull, const struct json *line)
{
    const char *status = json_get_text(line, "status"), *layer = json_get_text(line, "id");
    const char *bar = json_get_text(line, "progress");
    int64_t now = clock_now_ms();
    char text[256];

    if (!pull->progress->told || !status || now - pull->told_ms < TELL_EVERY_MS)
        return;
    pull->told_ms = now;
    (void)snprintf(text, sizeof(text), "pulling the image: %.60s%s%.40s%s%.100s", status,
                   layer ? " " : "", layer ? layer : "", bar ? " " : "", bar ? bar : "");
    pull->progress->told(pull->progress->arg, text);
}

static bool on_line(void *arg, const char *text, size_t len)
{
    struct pull *pull = arg;
    cleanup_json struct json *line = NULL;

    if (pull->progress->cancelled && *pull->progress->cancelled)
        return false;
    if (len == 0 || json_parse(text, len, JSON_LENIENT, &line, NULL) < 0)
        return true;
    const char *words = json_get_text(line, "error");
    if (!words)
        words = json_get_text(json_get(line, "errorDetail"), "message");
    if (words)
        (void)snprintf(pull->error, sizeof(pull->error), "%s",
                       words[0] != '\0' ? words : "the engine does not say why");
    else
        tell(pull, line);
    return true;
}

/* What stands behind any status but a lost connection is the registry's answer. */
static int explain(const char *image, const struct err *why, struct err *err)
{
    bool engines = why->code == ERR_BACKEND_UNAVAILABLE || why->code == ERR_STOPPING ||
                   why->code == ERR_CANCELLED;
    bool name = why->code == ERR_INVALID_OBJECT;

    if (engines)
        return err_set(err, why->code, "%s", why->msg);
    return err_set(err, name ? ERR_INVALID_IMAGE : ERR_IMAGE_PULL_FAILED, "the image '%s': %s",
                   image, why->msg);
}

int pull_image(struct engine *engine, const char *image, const struct pull_progress *progress,
               struct err *err)
{
    struct pull pull = {.progress = progress};
    cleanup_free char *path = pull_path(image);
    struct engine_request request = {.method = "POST", .path = path, .about = "pull"};
    struct http_lines lines = {
        .line = on_line,
        .arg = &pull,
        .idle_ms = IDLE_MS,
        .max_line = CAP_ENGINE_LINE,
        .stop = engine_stop_flag(engine),
    };
    struct err why;

    if (!path)
        return err_set(err, ERR_INVALID_IMAGE, "the image's name is too long");
    if (engine_lines(engine, &request, &lines, &why) < 0)
        return explain(image, &why, err);
    if (progress->cancelled && *progress->cancelled)
        return err_set(err, ERR_CANCELLED, "the image is not wanted any more");
    if (pull.error[0] != '\0')
        return err_set(err, ERR_IMAGE_PULL_FAILED, "the image '%s': %s", image, pull.error);
    return 0;
}
