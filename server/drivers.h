#pragma once

#include "base/err.h"
#include "base/mem.h"
#include "docker/docker.h"
#include "driver/driver.h"
#include "fake/fake.h"
#include "k8s/k8s.h"
#include "local/local.h"

struct loop;
struct options;

/* What a driver was opened with; it must outlive the driver. */
struct driver_settings {
    struct k8s_config k8s;
    struct local_config local;
    struct docker_config docker;
    char *local_dir, *image_cache;
    struct text_list image_folders;
};

/* Fills in the image and the network of a sandbox that names none, as far as they are not set. */
void driver_fill_defaults(struct options *options);
/* Whether there is the driver that the options name, with settings that it can use; makes nothing.
 */
int driver_check(const struct options *options, struct err *err) must_check;
/* Its streams need no TLS. */
bool driver_is_plain(const struct options *options);
/* That driver; driver_check() has been passed. OPTIONS and INSTANCE must outlive it, too. */
int driver_open(const struct options *options, const char *instance, struct loop *loop,
                struct driver_settings *settings, struct driver *ret_driver,
                struct err *err) must_check;
void driver_settings_done(struct driver_settings *settings);
