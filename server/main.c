/* Wiring only: parse, open, start, wait for a signal, stop. */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/log.h"
#include "net/loop.h"
#include "sandbox/follow.h"
#include "sandbox/sandboxes.h"
#include "server/app.h"
#include "server/callers.h"
#include "server/drivers.h"
#include "server/http.h"
#include "server/options.h"
#include "server/preview_mode.h"
#include "server/routes.h"
#include "server/snapshots.h"
#include "store/store.h"

struct parts {
    struct options options;
    struct crypto_key key;
    char instance[64];
    char *data_dir;
    struct store *store;
    struct loop *loop;
    struct driver_settings settings;
    struct driver driver;
    bool has_driver;
    struct preview_mode previews;
    struct app app;
};

static enum log_level log_level_of(const char *name)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    for (size_t i = 0; name && i < ARRAY_LEN(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            return (enum log_level)i;
        }
    }
    return LOG_LEVEL_INFO; /* not reached: the options take no other */
}

/* The instance is a label of every object: by default a hash of the key, so that a copy of the
 * store alone cannot speak for it. */
static void derive_instance(struct parts *parts)
{
    uint8_t hash[CRYPTO_HASH_LEN];
    if (parts->options.instance) {
        snprintf(parts->instance, sizeof(parts->instance), "%s", parts->options.instance);
        return;
    }
    crypto_keyed_hash(&parts->key, "instance", NULL, 0, hash);
    snprintf(parts->instance, sizeof(parts->instance), "i-%02x%02x%02x%02x%02x%02x", hash[0],
             hash[1], hash[2], hash[3], hash[4], hash[5]);
}

/* With another key nothing would be found again, and what is sealed could not be read. */
static int check_key(const struct parts *parts, const char *key_path, struct err *err)
{
    uint8_t hash[CRYPTO_HASH_LEN];
    struct err why = {0};
    crypto_keyed_hash(&parts->key, "store", NULL, 0, hash);
    if (store_check_key(parts->store, hash, sizeof(hash), &why) == 0) {
        return 0;
    }
    if (why.code != ERR_CONFIG) {
        return err_set(err, why.code, "%s", why.msg);
    }
    return err_set(err, ERR_CONFIG,
                   "the store '%s' was made with another key than the one in '%s': put its own key "
                   "back there, or give another --store",
                   parts->options.store, key_path);
}

static int open_store(struct parts *parts, struct err *err)
{
    const struct options *options = &parts->options;
    cleanup_free char *beside = xasprintf("%s.key", options->store);
    const char *key_path = options->key_file ? options->key_file : beside;
    if (crypto_start(err) < 0 || crypto_key_load(key_path, &parts->key, err) < 0) {
        return -1;
    }
    derive_instance(parts);
    parts->data_dir = xasprintf("%s.d", options->store);
    if (mkdir(parts->data_dir, 0700) < 0 && errno != EEXIST) {
        return err_errno(err, ERR_CONFIG, errno, "make %s", parts->data_dir);
    }
    return store_open(options->store, &parts->store, err) < 0 ? -1
                                                              : check_key(parts, key_path, err);
}

static struct sandboxes_config domain_config(const struct parts *parts)
{
    const struct options *o = &parts->options;
    return (struct sandboxes_config){
        .policy = {.image = o->image,
                   .allow_images = o->allow_images,
                   .allow_pull_policies = o->allow_pull_policies,
                   .allow_users = o->allow_users,
                   .allow_writable_root = o->allow_writable_root,
                   .allow_profiles = o->allow_profiles,
                   .pull_policy = o->pull_policy,
                   .run_as_user = o->run_as_user,
                   .run_as_group = o->run_as_group,
                   .read_only_root = o->read_only_root,
                   .workdir = o->workdir,
                   .cpu = o->cpu,
                   .cpu_request = o->cpu_request,
                   .memory = o->memory,
                   .memory_request = o->memory_request,
                   .storage = o->storage,
                   .max_cpu = o->max_cpu,
                   .max_memory = o->max_memory,
                   .max_storage = o->max_storage,
                   .runtime_class = o->runtime_class,
                   .network = o->network,
                   .allow_host_network = o->allow_host_network && strcmp(o->driver, "local") == 0,
                   .allow_no_network = strcmp(o->driver, "docker") == 0,
                   .ready_timeout_ms = o->ready_timeout_ms,
                   .max_ready_timeout_ms = o->max_ready_timeout_ms,
                   .ttl_ms = o->ttl_ms,
                   .max_lifetime_ms = o->max_lifetime_ms,
                   .unschedulable_after_ms = o->unschedulable_after_ms},
        .instance = parts->instance,
        .data_dir = parts->data_dir,
        .exec_timeout_ms = o->exec_timeout_ms,
        .max_exec_timeout_ms = o->max_exec_timeout_ms,
        .max_output = o->max_output,
        .output_quota = o->output_quota,
        .max_sandboxes = o->max_sandboxes,
        .max_execs = o->max_execs,
        .tombstone_ms = o->tombstone_ms,
        .reap_every_ms = o->reap_every_ms,
        .preview_domain = parts->previews.domain,
        .preview_scheme = o->preview_scheme,
        .preview_port = o->preview_port,
        .proxied = parts->previews.proxied,
    };
}

static int open_domain(struct parts *parts, struct err *err)
{
    driver_fill_defaults(&parts->options);
    parts->loop = driver_is_plain(&parts->options) ? loop_new_plain(err) : loop_new(err);
    if (!parts->loop || driver_open(&parts->options, parts->instance, parts->loop, &parts->settings,
                                    &parts->driver, err) < 0) {
        return -1;
    }
    parts->has_driver = true;
    parts->app.fake = fake_of(&parts->driver);
    if (preview_mode_choose(&parts->options, &parts->driver, &parts->previews, err) < 0) {
        return -1;
    }
    const struct sandboxes_config config = domain_config(parts);
    const struct sandboxes_parts below = {
        .key = &parts->key, .driver = &parts->driver, .store = parts->store, .loop = parts->loop};
    if (sandboxes_new(&config, &below, &parts->app.sandboxes, err) < 0) {
        return -1;
    }
    return sandboxes_start(parts->app.sandboxes, err);
}

static void tell_port(struct app *app, int port)
{
    sandboxes_listens(app->sandboxes, port);
}

static int open_http(struct parts *parts, struct err *err)
{
    const struct options *options = &parts->options;
    if (callers_open(options->api_keys_file, options->admin_key_file, &parts->app.callers, err) <
        0) {
        return -1;
    }
    /* through the machine's loopback a sandbox would be a caller like any other */
    bool host_network = options->allow_host_network || strcmp(options->network, "host") == 0;
    if (host_network && !callers_keyed(parts->app.callers)) {
        return err_set(err, ERR_CONFIG,
                       "--allow-host-network needs --api-keys-file: sandboxes could use the API");
    }
    const struct http_config config = {
        .listen = options->listen,
        .workers = (size_t)options->workers,
        .queue = (size_t)options->queue,
        .connections = (size_t)options->connections,
        .local_only = !callers_keyed(parts->app.callers),
        .routes = route_tables,
        .preview_domain = parts->previews.proxied ? parts->previews.domain : NULL,
        .preview_scheme = options->preview_scheme,
        .bound = tell_port,
    };
    parts->app.options = options;
    parts->app.snapshots = snapshots_new();
    parts->app.started_ms = clock_now_ms();
    struct http *http; /* app.http is set by http_start, before the first request can come */
    return http_start(&config, &parts->app, &http, err);
}

static int start(struct parts *parts, struct err *err)
{
    if (driver_check(&parts->options, err) < 0 || open_store(parts, err) < 0 ||
        open_domain(parts, err) < 0 || open_http(parts, err) < 0) {
        return -1;
    }
    char port[16];
    snprintf(port, sizeof(port), "%d", http_port(parts->app.http));
    log_event(LOG_LEVEL_INFO, "listening", "address", parts->options.listen, "port", port, "driver",
              parts->driver.ops->name, "instance", parts->instance, NULL);
    return 0;
}

static void stop(struct parts *parts)
{
    if (parts->app.sandboxes) {
        follows_stop(parts->app.sandboxes);
    }
    if (parts->app.http) {
        http_stop(parts->app.http, parts->options.stop_timeout_ms);
    }
    if (parts->app.sandboxes) {
        sandboxes_stop(parts->app.sandboxes);
    } else if (parts->has_driver) {
        parts->driver.ops->stop(parts->driver.self);
    }
    if (parts->loop) {
        loop_stop(parts->loop);
    }
    if (parts->has_driver) {
        parts->driver.ops->free(parts->driver.self);
    }
    driver_settings_done(&parts->settings);
    snapshots_free(parts->app.snapshots);
    if (parts->app.callers) {
        callers_close(parts->app.callers);
    }
    if (parts->store) {
        store_close(parts->store);
    }
    free(parts->data_dir);
    explicit_bzero(&parts->key, sizeof(parts->key));
    options_done(&parts->options);
}

static void block_signals(sigset_t *ret_stop_signals)
{
    sigemptyset(ret_stop_signals);
    sigaddset(ret_stop_signals, SIGTERM);
    sigaddset(ret_stop_signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, ret_stop_signals, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* The start takes more memory than what follows: the filters of system calls, options, records. */
static void give_back(void)
{
    (void)malloc_trim(0); /* 0: there was nothing */
}

int main(int argc, char **argv)
{
    struct parts parts = {0};
    struct err err = {0};
    sigset_t stop_signals;
    switch (options_load(argc, argv, &parts.options, &err)) {
    case OPTIONS_SHOWN:
        return EXIT_SUCCESS;
    case OPTIONS_BAD:
        fprintf(stderr, "podsandboxd: %s\n", err.msg);
        return 2;
    case OPTIONS_RUN:
        break;
    }
    log_setup(log_level_of(parts.options.log_level));
    block_signals(&stop_signals);
    int failed = start(&parts, &err);
    if (failed) {
        log_event(LOG_LEVEL_ERROR, "cannot start", "code", err_code_name(err.code), "error",
                  err.msg, NULL);
    } else {
        give_back();
        int signal_number = 0;
        sigwait(&stop_signals, &signal_number);
        log_event(LOG_LEVEL_INFO, "stopping", "signal", signal_number == SIGINT ? "INT" : "TERM",
                  NULL);
    }
    stop(&parts);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
