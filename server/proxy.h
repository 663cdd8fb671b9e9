#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "sandbox/preview_access.h"
#include "server/preview_host.h"

/* Previews that the server itself serves: a request whose Host names one goes to a port inside its
 * sandbox, and what comes back to the client. */
struct request;
struct MHD_Connection;

/* What such a request carries beyond others. */
struct proxied {
    char host[PREVIEW_HOST_LEN];
    struct buf head; /* for the program */
    bool upgrade;
    struct preview_target target; /* without a sandbox: to be looked up */
};

/* On libmicrohttpd's thread: is it for a preview? Then its Host's name is in RET_NAME. */
bool proxy_wants(const struct request *request, char ret_name[PREVIEW_HOST_LEN]);
/* Makes it one: no route of the API is looked at. */
int proxy_admit(struct request *request, struct MHD_Connection *connection, const char *name,
                struct err *err) must_check;
void proxied_free(struct proxied *proxied); /* NULL is allowed */
