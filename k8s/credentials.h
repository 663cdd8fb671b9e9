#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "k8s/access.h"
#include "net/http_client.h"

/* The credentials of the moment. Files are looked at again when they change and every minute, and
 * what is missing, empty or half written leaves the last good one in use (B43); plugins run again
 * when theirs expires. Thread-safe. */
struct credentials;

/* One state of them: immutable, reference-counted. */
struct auth {
    _Atomic unsigned refs;
    char *token;          /* NULL: none */
    struct http_tls tls;  /* PEM texts, owned */
    uint64_t version;     /* differs for each state */
    uint64_t tls_version; /* differs where `tls` does */
};
void auth_unref(struct auth *auth); /* NULL is allowed */
void auth_unrefp(struct auth **auth);
#define cleanup_auth cleanup(auth_unrefp)
/* "Authorization: Bearer …", or NULL; the caller's, to free_secret. */
char *auth_header(const struct auth *auth);
/* Replaces the token in a message that a peer wrote. */
void auth_scrub(const struct auth *auth, struct err *err);

/* Consumes what ACCESS holds, also on failure. Reads the files once; a plugin runs at first use. */
struct credentials *credentials_new(struct access *access, struct err *err) must_check;
void credentials_free(struct credentials *self);

const struct access *credentials_access(const struct credentials *self);

/* A reference to the current state. Blocks while a plugin runs; with MAY_BLOCK false it then fails
 * with ERR_BUSY instead. */
struct auth *credentials_get(struct credentials *self, bool may_block, struct err *err) must_check;

/* The server answered 401 to REJECTED: gets newer ones if no other thread has meanwhile. The
 * plugin, if any, runs at the next credentials_get. */
void credentials_renew(struct credentials *self, const struct auth *rejected);
