#include "tests/unit/k8s_boxes.h"

#include <check.h>

#include "base/clock.h"
#include "base/crypto.h"

struct k8s_peer peer;
struct k8s_config config;
static struct loop *loop;
struct driver driver;

struct seen seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void on_changed(void *arg, const struct box_info *info)
{
    (void)arg;
    pthread_mutex_lock(&seen.lock);
    seen.changes++;
    seen.last = *info;
    pthread_mutex_unlock(&seen.lock);
    event_fire(&seen.changed);
}

static void on_listed(void *arg, const struct box_info *infos, size_t count)
{
    (void)arg;
    pthread_mutex_lock(&seen.lock);
    seen.listed++;
    seen.count = count;
    if (count > 0)
        seen.last = infos[0];
    pthread_mutex_unlock(&seen.lock);
    event_fire(&seen.changed);
}

static void on_health(void *arg, const struct err *why)
{
    (void)arg;
    pthread_mutex_lock(&seen.lock);
    if (why == NULL) {
        seen.recoveries++;
    } else {
        seen.outages++;
        seen.why = *why;
    }
    pthread_mutex_unlock(&seen.lock);
    event_fire(&seen.changed);
}

void boxes_await(const int *count, int wanted)
{
    int64_t deadline_ms = clock_now_ms() + 20000;

    for (;;) {
        uint64_t before = event_count(&seen.changed);
        bool there;

        pthread_mutex_lock(&seen.lock);
        there = *count >= wanted;
        pthread_mutex_unlock(&seen.lock);
        if (there)
            return;
        ck_assert_msg(event_block(&seen.changed, before, deadline_ms), "did not come");
    }
}

void boxes_begin(void)
{
    struct err err;

    ck_assert_int_eq(crypto_start(&err), 0);
    peer_start(&peer);
    event_init(&seen.changed);
    seen.listed = seen.changes = seen.outages = seen.recoveries = 0;
    config = (struct k8s_config){
        .kubeconfig = peer.kubeconfig,
        .namespace_ = "ns",
        .instance = "inst",
        .agent_image = "agent:1",
        .agent_delivery = "init",
    };
    loop = loop_new(&err);
    ck_assert_ptr_nonnull(loop);
    ck_assert_msg(k8s_driver_new(&config, loop, &driver, &err) == 0, "%s", err.msg);
}

void boxes_start(void)
{
    static const struct box_observer observer = {on_changed, on_listed, on_health, NULL};
    struct err err;

    ck_assert_msg(driver.ops->start(driver.self, &observer, &err) == 0, "%s", err.msg);
}

void boxes_end(void)
{
    driver.ops->stop(driver.self);
    driver.ops->free(driver.self);
    loop_stop(loop);
    peer_stop(&peer);
    event_done(&seen.changed);
}
