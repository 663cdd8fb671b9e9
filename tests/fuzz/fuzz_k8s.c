/* What a hostile or broken API server, kubelet, credential plugin or kubeconfig can say. The first
 * byte of the input picks the reader, the second varies it; the rest is what it reads. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "k8s/channel.h"
#include "k8s/delivery.h"
#include "k8s/plugin.h"
#include "k8s/reflector.h"
#include "k8s/tracker.h"
#include "k8s/yaml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool good)
{
    if (!good)
        abort();
}

/* Everything in it goes out as JSON. */
static void check_info(const struct box_info *info)
{
    check(memchr(info->id, '\0', sizeof(info->id)) != NULL);
    check(memchr(info->message, '\0', sizeof(info->message)) != NULL);
    check(memchr(info->image, '\0', sizeof(info->image)) != NULL);
    check(info->reason < ERR_COUNT);
    check(info->state != BOX_FAILED || info->reason != ERR_NONE);
}

static void on_event(void *arg, const char *type, const struct json *object)
{
    struct tracker *tracker = arg;
    struct box_info info;
    struct tracked known;
    char why[64];
    int64_t next_ms;

    for (int64_t now = 0; now < 3; now++) {
        tracker_note_pod(tracker, object, now, &info);
        check_info(&info);
    }
    if (tracker_note_event(tracker, object, 4, &info))
        check_info(&info);
    while (tracker_next_due(tracker, 1000000, &info, &next_ms))
        check_info(&info);
    (void)delivery_judge(object, why, sizeof(why));
    if (strcmp(type, "DELETED") == 0)
        tracker_forget(tracker, info.id, "");
    (void)tracker_find(tracker, info.id, &known);
}

static void read_watch(const char *text, size_t len)
{
    struct tracker *tracker = tracker_new();
    struct reflector reflector = {.kind = KIND_POD, .event = on_event, .arg = tracker};
    char *version = xstrdup("1");

    while (len > 0) {
        const char *end = memchr(text, '\n', len);
        size_t line = end != NULL ? (size_t)(end - text) : len;
        struct err err = {.code = ERR_NONE};

        if (reflector_line(&reflector, text, line, &version, &err) < 0)
            check(err.code != ERR_NONE);
        len -= line + (end != NULL);
        text += line + (end != NULL);
    }
    free(version);
    tracker_free(tracker);
}

static void read_status(const char *text, size_t len, uint8_t vary)
{
    static const struct status_request about = {"create", "pods", "p"};
    static const int statuses[] = {200, 400, 401, 403, 404, 409, 410, 422, 429, 500, 503, 999};
    struct err err = {.code = ERR_NONE};
    char message[64];
    int code = 0;

    check(status_error(&about, statuses[vary % ARRAY_LEN(statuses)], text, len, &err) == -1);
    check(err.code != ERR_NONE && memchr(err.msg, '\0', sizeof(err.msg)) != NULL);
    if (status_of_exec(text, len, &code, message, sizeof(message)) == EXEC_END_EXITED)
        check(code >= 0 && code <= 255);
}

/* Messages are cut where the data says: 0xff ends one, 0xfe ends a piece. */
static void read_channels(const uint8_t *data, size_t len, uint8_t vary)
{
    struct channels channels;
    struct err why = {.code = ERR_NONE};
    bool first = true;

    channels_init(&channels);
    while (len > 0) {
        size_t size = 0;
        struct str out;
        bool last;

        while (size < len && data[size] < 0xfe)
            size++;
        last = size == len || data[size] == 0xff;
        if (channels_feed(&channels, (struct piece){data, size, first, last}, &out))
            check(out.len > 0 && out.len <= size);
        first = last;
        size += size < len;
        data += size;
        len -= size;
    }
    check(channels.stderr_.len <= CHANNEL_STDERR_MAX);
    channels_why(&channels, vary & 1, NULL, &why);
    check(why.code != ERR_NONE || channels.has_output);
    channels_done(&channels);
}

static void read_plugin(const char *text, size_t len)
{
    struct plugin_credential got = {.token = NULL};

    if (plugin_parse(text, len, "client.authentication.k8s.io/v1", &got, NULL) == 0)
        check(got.token != NULL || (got.cert_data != NULL && got.key_data != NULL));
    plugin_credential_done(&got);
}

static void read_yaml(const char *text, size_t len)
{
    cleanup_json struct json *json = NULL;
    struct err err = {.code = ERR_NONE};

    if (yaml_parse(text, len, &json, &err) < 0)
        check(json == NULL && err.code != ERR_NONE);
    else
        check(json != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data + 2;

    if (size < 2)
        return 0;
    switch (data[0]) {
    case 'w':
        read_watch(text, size - 2);
        break;
    case 's':
        read_status(text, size - 2, data[1]);
        break;
    case 'c':
        read_channels(data + 2, size - 2, data[1]);
        break;
    case 'p':
        read_plugin(text, size - 2);
        break;
    case 'y':
        read_yaml(text, size - 2);
        break;
    default:
        break;
    }
    return 0;
}
