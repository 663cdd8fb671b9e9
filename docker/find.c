#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/caps.h"
#include "docker/driver_impl.h"

char *find_filters(const struct docker *docker, bool foreign, const char *kind)
{
    cleanup_json struct json *filters = json_new_object();
    cleanup_free char *instance = xasprintf(LABEL_INSTANCE "=%s", docker->config->instance);
    cleanup_buf struct buf text = BUF_INIT(CAP_SMALL), query = BUF_INIT(CAP_SMALL);
    struct json *labels = json_set_array(filters, "label");

    json_add_text(labels, LABEL_MANAGED_BY "=" MANAGED_BY);
    if (!foreign)
        json_add_text(labels, instance);
    if (kind)
        json_add_text(json_set_array(filters, "type"), kind);
    (void)json_print(filters, &text); /* small */
    (void)url_append_query(&query, "filters", (struct str){buf_text(&text), text.len});
    return xstrdup(buf_text(&query) + 1);
}

int find_box(struct docker *docker, const char *container, struct box_info *ret_info,
             struct err *err)
{
    cleanup_free char *path = xasprintf("/containers/%s/json", container);
    struct engine_request request = {.path = path, .about = "look for the container"};
    cleanup_json struct json *reply = NULL;

    if (engine_call(docker->engine, &request, &reply, err) < 0)
        return -1;
    const struct json *labels = json_path(reply, "Config.Labels");
    const char *id = json_get_text(reply, "Id");
    if (!id || !json_get_text(labels, LABEL_ID))
        return err_set(err, ERR_BACKEND_NOT_FOUND, "the container '%s' is not ours", container);
    container_describe(labels, id, docker->config->instance, ret_info);
    container_judge(json_get(reply, "State"), ret_info);
    return 0;
}

/* How it has ended only an inspection says. False: it is not there any more, or just going. */
static bool complete(struct docker *docker, struct box_info *info)
{
    struct box_info seen;
    struct err why = {.code = ERR_NONE};

    if (info->state == BOX_FAILED && find_box(docker, info->container_id, &seen, &why) == 0)
        *info = seen;
    return info->state != BOX_GONE && why.code != ERR_BACKEND_NOT_FOUND;
}

int find_boxes(struct docker *docker, bool foreign, struct box_info **ret_infos, size_t *ret_count,
               struct err *err)
{
    cleanup_free char *filters = find_filters(docker, foreign, NULL);
    cleanup_free char *path = xasprintf("/containers/json?all=true&%s", filters);
    struct engine_request request = {.path = path, .about = "list the containers"};
    cleanup_json struct json *reply = NULL;
    size_t count = 0;

    if (engine_call(docker->engine, &request, &reply, err) < 0)
        return -1;
    if (!json_is_array(reply))
        return err_set(err, ERR_BACKEND, "the engine's list of containers is none");
    struct box_info *infos = xcalloc(json_count(reply) + 1, sizeof(*infos));
    for (const struct json *item = json_first(reply); item; item = json_next(item)) {
        const struct json *labels = json_get(item, "Labels");
        const char *id = json_get_text(item, "Id");
        cleanup_json struct json *status = json_new_object();

        if (!id || !json_get_text(labels, LABEL_ID))
            continue;
        container_describe(labels, id, docker->config->instance, &infos[count]);
        json_set_text(status, "Status", json_get_text(item, "State"));
        container_judge(status, &infos[count]);
        count += complete(docker, &infos[count]);
    }
    *ret_infos = infos;
    *ret_count = count;
    return 0;
}
