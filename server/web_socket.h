#pragma once

#include "base/err.h"
#include "base/mem.h"
#include "server/request.h"

struct session;

/* The handshake of our own WebSockets (RFC 6455). */
#define WEB_SOCKET_PROTOCOL "podsandbox.v1"

/* ERR_UPGRADE_REQUIRED (the answer gets the headers that say how), ERR_INVALID_REQUEST. */
int web_socket_check(struct request *request, struct err *err) must_check;
/* 101, when web_socket_check has passed. Takes SESSION. */
enum verdict reply_web_socket(struct request *request, struct session *session);
/* The key of the API that comes as a subprotocol, since pages of a browser can set no header;
 * malloc'd, to be wiped; NULL: none. */
char *web_socket_key(const struct request *request);
