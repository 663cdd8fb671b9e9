#pragma once

#include "server/request.h"

/* The listing of sandboxes by the request's query; OWNER NULL: all owners'. */
enum verdict list_sandboxes(struct request *request, const char *owner);
