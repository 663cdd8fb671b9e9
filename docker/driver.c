#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "docker/agent_file.h"
#include "docker/driver_impl.h"
#include "driver/agent_program.h"

#define AGENT_MAX ((size_t)16 * 1024 * 1024)

/* --- start and stop -----------------------------------------------------------------------------
 */

static int docker_start(void *self, const struct box_observer *observer, struct err *err)
{
    struct docker *docker = self;

    pthread_mutex_lock(&docker->lock);
    docker->observer = *observer;
    pthread_mutex_unlock(&docker->lock);
    return docker_watch_start(docker, err);
}

static void docker_stop(void *self)
{
    struct docker *docker = self;

    if (docker->engine)
        engine_stop(docker->engine);
    docker_watch_stop(docker);
    pending_stop(docker);
    if (docker->attacher)
        attacher_stop(docker->attacher);
}

static void docker_free(void *self)
{
    struct docker *docker = self;

    docker_stop(docker);
    attacher_free(docker->attacher);
    engine_free(docker->engine);
    buf_done(&docker->agent);
    buf_done(&docker->readable_agent);
    json_free(docker->facts);
    pthread_mutex_destroy(&docker->lock);
    free(docker);
}

/* --- boxes --------------------------------------------------------------------------------------
 */

/* True when the engine has said which runtimes it has, and NAME is none of them. */
static bool lacks_runtime(struct docker *docker, const char *name)
{
    pthread_mutex_lock(&docker->lock);
    const struct json *runtimes = json_get(docker->facts, "Runtimes");
    bool lacks = json_is_object(runtimes) && !json_get(runtimes, name);
    pthread_mutex_unlock(&docker->lock);
    return lacks;
}

static int prepare(struct docker *docker, const struct box_spec *spec, struct making *ret_making,
                   struct err *err)
{
    const char *runtime = spec->runtime_class ? spec->runtime_class : docker->config->runtime;

    if (runtime && runtime[0] != '\0' && lacks_runtime(docker, runtime))
        return err_set(err, ERR_RUNTIME_CLASS_MISSING,
                       "field 'runtime_class': the engine has no runtime '%s'", runtime);
    return making_prepare(docker, spec, ret_making, err);
}

static int docker_check(void *self, const struct box_spec *spec, struct err *err)
{
    cleanup(making_done) struct making making = {.image = NULL};

    return prepare(self, spec, &making, err);
}

static int docker_create(void *self, const struct box_spec *spec, struct box_info *ret_info,
                         struct err *err)
{
    struct docker *docker = self;
    cleanup(making_done) struct making making = {.image = NULL};
    bool never = spec->pull_policy && strcmp(spec->pull_policy, "Never") == 0;
    bool always = spec->pull_policy && strcmp(spec->pull_policy, "Always") == 0;
    bool missing = false;
    struct err why;

    if (prepare(docker, spec, &making, err) < 0)
        return -1;
    if (pending_find(docker, spec->id, spec->uid, ret_info))
        return 0;
    if (always)
        return pending_add(docker, &making, ret_info, err);
    if (making_run(docker, &making, ret_info, &missing, &why) == 0)
        return 0;
    if (missing && !never)
        return pending_add(docker, &making, ret_info, err);
    return err_set(err, why.code, "%s", why.msg);
}

static int docker_destroy(void *self, const char *id, const char *box_uid, struct err *err)
{
    struct docker *docker = self;
    struct box_info info;
    struct err why;
    char name[64];

    if (box_uid[0] != '\0')
        return remove_container(docker, box_uid, err);
    (void)pending_cancel(docker, id);
    container_name(id, name);
    if (find_box(docker, name, &info, &why) < 0)
        return why.code == ERR_BACKEND_NOT_FOUND ? 0 : err_set(err, why.code, "%s", why.msg);
    return info.foreign ? 0 : remove_container(docker, info.container_id, err);
}

static int docker_inspect(void *self, const char *id, struct box_info *ret_info, struct err *err)
{
    struct docker *docker = self;
    struct box_info info;
    char name[64];

    if (pending_find(docker, id, NULL, ret_info))
        return 0;
    container_name(id, name);
    if (find_box(docker, name, &info, err) < 0)
        return -1;
    if (info.foreign)
        return err_set(err, ERR_BACKEND_NOT_FOUND, "the container '%s' is not ours", name);
    *ret_info = info;
    return 0;
}

static int docker_list(void *self, bool foreign, struct box_info **ret_infos, size_t *ret_count,
                       struct err *err)
{
    struct docker *docker = self;

    if (find_boxes(docker, foreign, ret_infos, ret_count, err) < 0)
        return -1;
    pending_list(docker, ret_infos, ret_count);
    return 0;
}

static int docker_side_objects(void *self, struct side_object **ret_objects, size_t *ret_count,
                               struct err *err)
{
    (void)self;
    (void)err;
    *ret_objects = NULL;
    *ret_count = 0;
    return 0;
}

static int docker_remove_side_object(void *self, const struct side_object *object, struct err *err)
{
    (void)self;
    (void)object;
    (void)err;
    return 0;
}

static struct stream *docker_open(void *self, const char *id, const char *box_uid,
                                  const struct stream_handler *handler, void *arg)
{
    struct docker *docker = self;
    char name[64];

    container_name(id, name);
    return attacher_open(docker->attacher, box_uid[0] != '\0' ? box_uid : name, handler, arg);
}

/* --- what holds ---------------------------------------------------------------------------------
 */

static void copy_text(const struct json *facts, const char *name, struct json *object,
                      const char *as)
{
    const char *text = json_get_text(facts, name);

    if (text)
        json_set_text(object, as, text);
}

static void add_limits(const struct json *facts, struct json *mine)
{
    struct json *limits = json_set_object(mine, "limits");

    json_set_bool(limits, "cpu", json_get_bool(facts, "CpuCfsQuota", false));
    json_set_bool(limits, "memory", json_get_bool(facts, "MemoryLimit", false));
    json_set_bool(limits, "pids", json_get_bool(facts, "PidsLimit", false));
    json_set_text(limits, "storage",
                  "of each writable directory alone, at most half of the memory");
}

static void add_runtimes(const struct json *facts, struct json *mine)
{
    struct json *names = json_set_array(mine, "runtimes");
    const struct json *runtimes = json_get(facts, "Runtimes");

    for (const struct json *item = json_first(runtimes); item; item = json_next(item))
        json_add_text(names, json_key(item));
}

static void add_warnings(const struct docker *docker, const struct json *facts,
                         struct json *warnings)
{
    static const char *const wanted[] = {"CpuCfsQuota", "MemoryLimit", "PidsLimit"};

    if (engine_is_insecure(docker->engine))
        json_add_text(warnings, "the engine's certificate is not looked at: set DOCKER_TLS_VERIFY");
    for (size_t i = 0; facts && i < ARRAY_LEN(wanted); i++) {
        cleanup_free char *text =
            xasprintf("the engine does not limit what it should: it says no to %s", wanted[i]);
        if (!json_get_bool(facts, wanted[i], false))
            json_add_text(warnings, text);
    }
}

static void docker_capabilities(void *self, struct json *object)
{
    struct docker *docker = self;
    struct json *mine = json_set_object(object, "docker");
    struct json *warnings = json_set_array(object, "warnings");

    pthread_mutex_lock(&docker->lock);
    const struct json *facts = docker->facts;
    json_set_text(mine, "isolation", "container");
    copy_text(facts, "ServerVersion", mine, "engine_version");
    copy_text(facts, "OperatingSystem", mine, "engine_system");
    copy_text(facts, "DefaultRuntime", mine, "default_runtime");
    add_runtimes(facts, mine);
    add_limits(facts, mine);
    add_warnings(docker, facts, warnings);
    pthread_mutex_unlock(&docker->lock);
}

static const struct driver_ops docker_ops = {
    .name = "docker",
    .promises =
        {
            .programs = true,
            .posix_files = true,
            .images = true,
            .previews = true,
            .runtime_classes = true,
            .adoption = true,
        },
    .start = docker_start,
    .stop = docker_stop,
    .free = docker_free,
    .check = docker_check,
    .create = docker_create,
    .destroy = docker_destroy,
    .inspect = docker_inspect,
    .list = docker_list,
    .side_objects = docker_side_objects,
    .remove_side_object = docker_remove_side_object,
    .open = docker_open,
    .capabilities = docker_capabilities,
};

/* --- opening ------------------------------------------------------------------------------------
 */

static int prepare_driver(struct docker *docker, struct loop *loop, struct err *err)
{
    cleanup_free char *agent = agent_program_find(docker->config->agent, "docker", err);
    struct place place = {.url = NULL};

    if (!agent || agent_tar(agent, false, &docker->agent, err) < 0 ||
        agent_tar(agent, true, &docker->readable_agent, err) < 0 ||
        place_find(docker->config->host, &place, err) < 0)
        return -1;
    docker->engine = engine_new(&place, err);
    if (!docker->engine)
        return -1;
    docker->attacher = attacher_new(loop, docker->engine, err);
    return docker->attacher ? 0 : -1;
}

int docker_driver_new(const struct docker_config *config, struct loop *loop,
                      struct driver *ret_driver, struct err *err)
{
    struct docker *docker = xcalloc(1, sizeof(*docker));

    docker->config = config;
    buf_init(&docker->agent, AGENT_MAX);
    buf_init(&docker->readable_agent, AGENT_MAX);
    pthread_mutex_init(&docker->lock, NULL);
    if (prepare_driver(docker, loop, err) < 0) {
        docker_free(docker);
        return -1;
    }
    *ret_driver = (struct driver){.ops = &docker_ops, .self = docker};
    return 0;
}
