#pragma once

#include <stdbool.h>
#include <stddef.h>

#define PREVIEW_HOST_LEN 254 /* with its NUL */

/* Does HOST, as a request's header has it, name something below DOMAIN? Then RET_NAME is that name
 * alone: lower case, without the port and the dot that may end it. All of them belong to previews,
 * whether there is such a one or not, so that a page of a preview never has the API as its origin;
 * but for names that no preview can have (api, www, admin, localhost), where the API may be. */
bool preview_host_read(const char *host, const char *domain, char ret_name[PREVIEW_HOST_LEN]);
