#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "docker/agent_file.h"
#include "docker/driver_impl.h"

#define OWN_NETWORK "podsandbox"

/* --- failures -----------------------------------------------------------------------------------
 */

struct known_words {
    const char *words;
    enum err_code code;
};

static const struct known_words create_words[] = {
    {"invalid reference format", ERR_INVALID_IMAGE},
    {"repository name must be", ERR_INVALID_IMAGE},
    {"nknown runtime", ERR_RUNTIME_CLASS_MISSING},
    {"invalid runtime name", ERR_RUNTIME_CLASS_MISSING},
    {"unknown or invalid runtime", ERR_RUNTIME_CLASS_MISSING},
    {"OCI runtime \"", ERR_RUNTIME_CLASS_MISSING}, /* Podman */
};

static const struct known_words start_words[] = {
    {"nknown runtime", ERR_RUNTIME_CLASS_MISSING},
    {"exec: \\\"", ERR_CONTAINER_START},
    {"executable file not found", ERR_CONTAINER_START},
    {"exec format error", ERR_CONTAINER_START},
    {"failed to create endpoint", ERR_NETWORK_SETUP},
    {"network ", ERR_NETWORK_SETUP},
    {"netavark", ERR_NETWORK_SETUP},
    {"runtime create failed", ERR_CONTAINER_START},
    {"failed to create shim", ERR_CONTAINER_START},
    {"failed to create task", ERR_CONTAINER_START},
    {"container init", ERR_CONTAINER_START},
};

static int explain(const struct err *why, const struct known_words *known, size_t count,
                   struct err *err)
{
    for (size_t i = 0; i < count && why->code != ERR_BACKEND_UNAVAILABLE; i++) {
        if (strstr(why->msg, known[i].words))
            return err_set(err, known[i].code, "%s", why->msg);
    }
    return err_set(err, why->code, "%s", why->msg);
}

static bool is_missing_image(const struct err *why)
{
    return why->code == ERR_BACKEND_NOT_FOUND &&
           (strstr(why->msg, "o such image") || strstr(why->msg, "image not known") ||
            strstr(why->msg, "anifest"));
}

/* --- preparing ----------------------------------------------------------------------------------
 */

/* runc and its like run a file that its user may only execute; others, such as gVisor, do not. */
static bool needs_readable_agent(const char *runtime)
{
    return runtime && strcmp(runtime, "runc") != 0 && strcmp(runtime, "crun") != 0;
}

int making_prepare(struct docker *docker, const struct box_spec *spec, struct making *ret_making,
                   struct err *err)
{
    const struct docker_config *config = docker->config;
    const char *runtime = spec->runtime_class ? spec->runtime_class : config->runtime;
    bool internet = strcmp(spec->network, "internet") == 0;
    struct container_plan plan = {
        .instance = config->instance,
        .runtime = runtime && runtime[0] != '\0' ? runtime : NULL,
        .network = !internet         ? "none"
                   : config->network ? config->network
                                     : OWN_NETWORK,
        .pids = config->pids,
    };
    struct making making = {
        .own_network = internet && !config->network,
        .agent = needs_readable_agent(plan.runtime) ? &docker->readable_agent : &docker->agent,
    };

    if (!internet && strcmp(spec->network, "none") != 0)
        return err_set(err, ERR_NOT_SUPPORTED,
                       "field 'network': the docker driver has no network '%s'; use 'internet' or "
                       "'none'",
                       spec->network);
    if (engine_ask_kind(docker->engine, &plan.podman, err) < 0 ||
        container_build(&plan, spec, &making.body, err) < 0)
        return -1;
    container_describe(json_get(making.body, "Labels"), "", config->instance, &making.info);
    making.info.state = BOX_STARTING;
    making.image = xstrdup(spec->image);
    *ret_making = making;
    return 0;
}

void making_done(struct making *making)
{
    json_free(making->body);
    free(making->image);
    *making = (struct making){.image = NULL};
}

/* --- the network --------------------------------------------------------------------------------
 */

static bool knows_network(struct docker *docker)
{
    pthread_mutex_lock(&docker->lock);
    bool known = docker->has_network;
    pthread_mutex_unlock(&docker->lock);
    return known;
}

static void note_network(struct docker *docker, bool there)
{
    pthread_mutex_lock(&docker->lock);
    docker->has_network = there;
    pthread_mutex_unlock(&docker->lock);
}

static int make_network(struct docker *docker, struct err *err)
{
    cleanup_json struct json *body = json_new_object();
    struct engine_request request = {
        .method = "POST",
        .path = "/networks/create",
        .about = "make the network of sandboxes",
        .body = body,
    };

    json_set_text(body, "Name", OWN_NETWORK);
    json_set_text(body, "Driver", "bridge");
    json_set_bool(body, "CheckDuplicate", true);
    json_set_text(json_set_object(body, "Labels"), LABEL_MANAGED_BY, MANAGED_BY);
    /* Sandboxes do not reach each other. */
    json_set_text(json_set_object(body, "Options"), "com.docker.network.bridge.enable_icc",
                  "false");
    return engine_call(docker->engine, &request, NULL, err);
}

/* Others may make it at the same time. */
static int ensure_network(struct docker *docker, struct err *err)
{
    struct engine_request request = {
        .path = "/networks/" OWN_NETWORK,
        .about = "look for the network of sandboxes",
    };
    struct err why;

    if (knows_network(docker))
        return 0;
    if (engine_call(docker->engine, &request, NULL, &why) < 0) {
        if (why.code != ERR_BACKEND_NOT_FOUND)
            return err_set(err, why.code, "%s", why.msg);
        if (make_network(docker, &why) < 0 && why.code != ERR_BACKEND_CONFLICT) {
            bool unavailable = why.code == ERR_BACKEND_UNAVAILABLE;
            return err_set(err, unavailable ? why.code : ERR_NETWORK_SETUP, "%s", why.msg);
        }
    }
    note_network(docker, true);
    return 0;
}

/* --- steps --------------------------------------------------------------------------------------
 */

int remove_container(struct docker *docker, const char *container, struct err *err)
{
    cleanup_free char *path = xasprintf("/containers/%s?force=true&v=true", container);
    struct engine_request request = {
        .method = "DELETE",
        .path = path,
        .about = "remove the container",
    };
    struct err why;

    if (engine_call(docker->engine, &request, NULL, &why) == 0 ||
        why.code == ERR_BACKEND_NOT_FOUND ||
        (why.code == ERR_BACKEND_CONFLICT && strstr(why.msg, "already in progress")))
        return 0;
    return err_set(err, why.code, "%s", why.msg);
}

void discard_container(struct docker *docker, const char *container)
{
    struct err why;

    if (remove_container(docker, container, &why) < 0)
        log_event(LOG_LEVEL_DEBUG, "container not removed yet", "container", container, "error",
                  why.msg, NULL);
}

static int put_agent(struct docker *docker, const struct making *making, const char *container,
                     struct err *err)
{
    cleanup_free char *path =
        xasprintf("/containers/%s/archive?path=" AGENT_DIR "&noOverwriteDirNonDir=true", container);
    struct engine_request request = {
        .method = "PUT",
        .path = path,
        .about = "put the agent into the container",
        .tar = {making->agent->ptr, making->agent->len},
    };

    return engine_call(docker->engine, &request, NULL, err);
}

static int start(struct docker *docker, const char *container, struct err *err)
{
    cleanup_free char *path = xasprintf("/containers/%s/start", container);
    struct engine_request request = {
        .method = "POST",
        .path = path,
        .about = "start the container",
    };
    struct err why;

    if (engine_call(docker->engine, &request, NULL, &why) == 0)
        return 0;
    note_network(docker, false); /* perhaps it was removed */
    (void)explain(&why, start_words, ARRAY_LEN(start_words), err);
    /* What the engine finds wrong with one start is no failure of its API. */
    if (err && (err->code == ERR_BACKEND || err->code == ERR_INVALID_OBJECT))
        err->code = ERR_CONTAINER_START;
    return -1;
}

/* What stands under the name: ours of this very life (1), nothing (0), or another (-1). */
static int adopt(struct docker *docker, const struct making *making, struct box_info *ret_info,
                 struct err *err)
{
    struct box_info found;
    struct err why;

    if (find_box(docker, making->info.name, &found, &why) < 0) {
        if (why.code == ERR_BACKEND_NOT_FOUND && !strstr(why.msg, "not ours"))
            return 0;
        return err_set(err, why.code == ERR_BACKEND_NOT_FOUND ? ERR_ALREADY_EXISTS : why.code,
                       "a container named '%s' exists already: %s", making->info.name, why.msg);
    }
    if (found.foreign || strcmp(found.uid, making->info.uid) != 0)
        return err_set(err, ERR_ALREADY_EXISTS, "a container named '%s' exists already",
                       making->info.name);
    *ret_info = found;
    return 1;
}

/* A create may have been done although its answer never came (B17): what is there under the name
 * decides. */
static int create(struct docker *docker, const struct making *making, struct box_info *ret_info,
                  bool *ret_missing, struct err *err)
{
    cleanup_free char *path = xasprintf("/containers/create?name=%s", making->info.name);
    cleanup_json struct json *reply = NULL;
    struct engine_request request = {
        .method = "POST",
        .path = path,
        .about = "create the container",
        .body = making->body,
    };
    struct err why;

    if (engine_call(docker->engine, &request, &reply, &why) == 0) {
        const char *id = json_get_text(reply, "Id");

        container_describe(json_get(making->body, "Labels"), id ? id : "", docker->config->instance,
                           ret_info);
        ret_info->state = BOX_STARTING;
        return id ? 0 : err_set(err, ERR_BACKEND, "the engine made a container without an id");
    }
    if (is_missing_image(&why)) {
        *ret_missing = true;
        return err_set(err, ERR_IMAGE_PULL_FAILED, "%s", why.msg);
    }
    if (why.code == ERR_BACKEND_CONFLICT || why.code == ERR_BACKEND_UNAVAILABLE ||
        why.code == ERR_BACKEND) {
        int found = adopt(docker, making, ret_info, err);

        if (found > 0)
            return 0;
        if (found < 0 && why.code == ERR_BACKEND_CONFLICT)
            return -1;
    }
    return explain(&why, create_words, ARRAY_LEN(create_words), err);
}

int making_run(struct docker *docker, const struct making *making, struct box_info *ret_info,
               bool *ret_missing, struct err *err)
{
    struct box_info info = {.state = BOX_STARTING};

    *ret_missing = false;
    if (making->own_network && ensure_network(docker, err) < 0)
        return -1;
    if (create(docker, making, &info, ret_missing, err) < 0)
        return -1;
    if (info.state == BOX_STARTING) {
        if (put_agent(docker, making, info.container_id, err) < 0 ||
            start(docker, info.container_id, err) < 0) {
            discard_container(docker, info.container_id);
            return -1;
        }
        info.state = BOX_ATTACHABLE;
    }
    *ret_info = info;
    return 0;
}
