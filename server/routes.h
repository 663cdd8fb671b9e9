#pragma once

#include "server/route.h"

/* The table of each api_*.c: `const struct route_table x_routes = {routes, ARRAY_LEN(routes)};`. A
 * new one is declared here and listed in routes.c. */
extern const struct route_table health_routes;  /* api_health.c */
extern const struct route_table sandbox_routes; /* api_sandboxes.c */
extern const struct route_table exec_routes;    /* api_execs.c */
extern const struct route_table exec_signal_routes;
extern const struct route_table attach_routes; /* api_attach.c */
extern const struct route_table file_routes;   /* api_files.c */
extern const struct route_table file_edit_routes;
extern const struct route_table archive_routes; /* api_archive.c */
extern const struct route_table changes_routes; /* api_changes.c */
extern const struct route_table watch_routes;   /* api_watch.c */
extern const struct route_table preview_routes;
extern const struct route_table preview_link_routes; /* api_previews.c */
extern const struct route_table ps_routes;           /* api_ps.c */
extern const struct route_table session_routes;      /* api_sessions.c */
extern const struct route_table admin_routes;        /* api_admin.c */
extern const struct route_table fake_routes;         /* api_fake.c */
extern const struct route_table page_routes;         /* api_page.c */

/* All of them, ended by NULL. */
extern const struct route_table *const route_tables[];
