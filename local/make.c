#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "local/driver_impl.h"
#include "local/launch.h"
#include "local/plan.h"
#include "local/preflight.h"

#define INFO_MAX 1024
#define CLEAR_TRIES 200
#define CLEAR_STEP_MS 5
#define START_MS 10000 /* for bubblewrap to tell who the agent is */

/* What is held while a box is being made. */
struct making {
    struct local *local;
    struct box *box;
    const struct box_spec *spec;
    int dir;
    struct plan plan;
    struct text_list arguments, environment, doors;
    struct launch launch;
    int info[2]; /* a pipe, from bubblewrap */
    bool begun;  /* there is a process */
};

/* --- descriptors --------------------------------------------------------------------------------
 */

static int file_with(const char *text)
{
    cleanup_fd int fd = memfd_create("etc", MFD_CLOEXEC);
    size_t len = strlen(text);

    if (fd < 0 || write(fd, text, len) != (ssize_t)len || lseek(fd, 0, SEEK_SET) < 0)
        return -1;
    return TAKE_FD(fd);
}

/* A filter is read from where its descriptor stands, which all boxes would share. */
static int opened_again(int fd)
{
    char path[32];

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, O_RDONLY | O_CLOEXEC);
}

static int open_output(int dir, const char *name)
{
    return openat(dir, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
}

static int open_all(struct making *making, struct err *err)
{
    const struct local *local = making->local;
    int *fds = making->launch.fds;

    if (place_listen(&local->place, making->spec->id, &fds[BOX_FD_LISTEN], err) < 0)
        return -1;
    if (pipe2(making->info, O_CLOEXEC) < 0)
        return err_errno(err, ERR_BUSY, errno, "a pipe for a new sandbox");
    fds[BOX_FD_INFO] = TAKE_FD(making->info[1]);
    fds[BOX_FD_STATUS] = open_output(making->dir, PLACE_STATUS);
    making->launch.log = open_output(making->dir, PLACE_LOG);
    fds[BOX_FD_KNOWN] = opened_again(local->filters.known);
    fds[BOX_FD_REFUSED] = opened_again(local->filters.refused);
    for (enum box_fd which = BOX_FD_PASSWD; which < BOX_FD_END; which++) {
        cleanup_free char *text = plan_file(&making->plan, which);
        fds[which] = text ? file_with(text) : -1;
        if (text && fds[which] < 0)
            return err_errno(err, ERR_BUSY, errno, "a file for a new sandbox");
    }
    if (fds[BOX_FD_STATUS] < 0 || making->launch.log < 0 || fds[BOX_FD_KNOWN] < 0 ||
        fds[BOX_FD_REFUSED] < 0)
        return err_errno(err, ERR_BUSY, errno, "a file for a new sandbox");
    return 0;
}

static void close_all(struct making *making)
{
    for (int i = BOX_FD_LISTEN; i < BOX_FD_END; i++) {
        cleanup_fd_close(&making->launch.fds[i]);
        making->launch.fds[i] = -1;
    }
    cleanup_fd_close(&making->launch.log);
    cleanup_fd_close(&making->info[1]);
    making->launch.log = making->info[1] = -1;
}

/* --- starting -----------------------------------------------------------------------------------
 */

static int plan(struct making *making, struct err *err)
{
    const struct image *image = &making->box->image;

    making->plan = (struct plan){
        .spec = making->spec,
        .bwrap = making->local->bwrap,
        .agent = making->local->agent,
        .root = image->root,
        .storage = making->box->record.storage,
        .cgroup = &making->box->record.cgroup,
        .version_2 = making->local->cgroups.version_2,
        .without_server_ms = making->local->config->without_server_ms,
    };
    plan_environment(&image->env, &making->environment);
    making->launch.arguments = &making->arguments;
    making->launch.environment = &making->environment;
    making->launch.doors = &making->doors;
    cgroup_doors(&making->local->cgroups, &making->box->record.cgroup, &making->doors);
    making->launch.pids = making->local->uids.count > 0 ? making->box->record.pids : 0;
    making->launch.uid = making->box->record.host_uid;
    return plan_command(&making->plan, &making->arguments, err);
}

/* What bubblewrap says of itself, to its end; false when it does not come. */
static bool read_info(int fd, char text[INFO_MAX])
{
    size_t len = 0;
    ssize_t n;

    while (len + 1 < INFO_MAX && process_wait(fd, START_MS)) { /* any descriptor will do */
        n = read(fd, text + len, INFO_MAX - 1 - len);
        if (n <= 0) {
            text[len] = '\0';
            return n == 0 && len > 0;
        }
        len += (size_t)n;
    }
    return false;
}

/* Why it did not start, in bubblewrap's words. */
static int not_started(struct making *making, struct err *err)
{
    char words[512];

    place_read(&making->local->place, making->spec->id, PLACE_LOG, words, sizeof(words));
    words[strcspn(words, "\n")] = '\0';
    return err_set(err, ERR_CONTAINER_START, "the sandbox could not be started: %s%s",
                   *words ? words : "bubblewrap ended without a word", preflight_forbidden());
}

static int learn_agent(struct making *making, struct err *err)
{
    char text[INFO_MAX];
    cleanup_json struct json *info = NULL;
    struct process_id *agent = &making->box->record.agent;

    if (!read_info(making->info[0], text) ||
        json_parse(text, strlen(text), JSON_LENIENT, &info, NULL) < 0)
        return not_started(making, err);
    if (!process_identify((pid_t)json_get_int(info, "child-pid", 0), agent))
        return not_started(making, err);
    return 0;
}

static int start(struct making *making, struct err *err)
{
    struct box_record *record = &making->box->record;

    if (launch_begin(&making->launch, err) < 0) {
        making->begun = making->launch.bwrap.pid > 0;
        return -1;
    }
    making->begun = true;
    record->bwrap = making->launch.bwrap;
    close_all(making); /* so that the pipe ends when bubblewrap closes it */
    if (record_write(making->dir, record, err) < 0 || launch_go(&making->launch, err) < 0 ||
        learn_agent(making, err) < 0)
        return -1;
    return record_write(making->dir, record, err);
}

/* --- the end of a making ------------------------------------------------------------------------
 */

bool box_clear(const struct local *local, const struct box_record *record)
{
    if (!cgroup_remove(&record->cgroup)) {
        cgroup_kill(&record->cgroup);
        return false;
    }
    place_remove_box(&local->place, record->id);
    return true;
}

void box_clear_soon(const struct local *local, const struct box_record *record)
{
    for (int tries = 0; tries < CLEAR_TRIES && !box_clear(local, record); tries++)
        (void)poll(NULL, 0, CLEAR_STEP_MS);
}

static void undo(struct making *making)
{
    cleanup_fd int agent = process_open(&making->box->record.agent);

    process_signal(agent, SIGKILL);
    if (agent < 0)
        box_end_half_made(&making->box->record);
    if (making->begun) { /* our child still: its number cannot be another's */
        (void)kill(making->launch.bwrap.pid, SIGKILL);
        (void)waitpid(making->launch.bwrap.pid, NULL, 0);
    }
    (void)process_wait(agent, START_MS);
    for (int tries = 0; tries < CLEAR_TRIES && !box_clear(making->local, &making->box->record);
         tries++)
        (void)poll(NULL, 0, CLEAR_STEP_MS);
}

static int hold(struct making *making, struct err *err)
{
    struct box *box = making->box;

    box->bwrap = process_open(&box->record.bwrap);
    box->agent = process_open(&box->record.agent);
    if (box->agent < 0)
        return not_started(making, err);
    if (box->bwrap < 0)
        return err_set(err, ERR_CONTAINER_START, "bubblewrap has ended");
    return 0;
}

static int limit(struct making *making, struct err *err)
{
    const struct box_spec *spec = making->spec;
    struct cgroup_limits limits = {.pids = making->box->record.pids};

    (void)str_to_bytes(spec->memory_limit, &limits.memory); /* checked by the domain */
    (void)str_to_milli(spec->cpu_limit, &limits.cpu_milli);
    (void)str_to_milli(spec->cpu_request, &limits.cpu_share_milli);
    return cgroup_make(&making->local->cgroups, &making->box->record.cgroup, &limits, err);
}

int box_make(struct local *local, struct box *box, const struct box_spec *spec, struct err *err)
{
    struct making making = {.local = local, .box = box, .spec = spec, .dir = -1};
    int result = -1;

    for (int i = 0; i < BOX_FD_END; i++)
        making.launch.fds[i] = -1;
    making.launch.log = making.launch.gate = making.info[0] = making.info[1] = -1;
    if (place_make_box(&local->place, spec->id, &making.dir, err) < 0)
        return -1;
    cgroup_name(&local->cgroups, spec->id, &box->record.cgroup);
    if (plan(&making, err) == 0 && record_write(making.dir, &box->record, err) == 0 &&
        limit(&making, err) == 0 && open_all(&making, err) == 0 && start(&making, err) == 0 &&
        hold(&making, err) == 0 && ends_add(local, box, err) == 0)
        result = 0;
    launch_done(&making.launch);
    if (result < 0)
        undo(&making);
    close_all(&making);
    cleanup_fd_close(&making.info[0]);
    cleanup_fd_close(&making.dir);
    text_list_done(&making.arguments);
    text_list_done(&making.environment);
    text_list_done(&making.doors);
    return result;
}
