#include "server/routes.h"

#include <stddef.h>

const struct route_table *const route_tables[] = {
    &sandbox_routes,      &exec_routes,      &exec_signal_routes,
    &file_routes,         &file_edit_routes, &archive_routes,
    &watch_routes,        &changes_routes,   &preview_routes,
    &preview_link_routes, &admin_routes,     &fake_routes,
    &ps_routes,           &session_routes,   &health_routes,
    &page_routes,         &attach_routes,    NULL,
};
