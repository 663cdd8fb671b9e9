#pragma once

#include <stdint.h>

#include "k8s/access.h"

/* What a credential plugin printed. */
struct plugin_credential {
    char *token;
    char *cert_data, *key_data;
    int64_t expires_wall_ms; /* 0: not said */
};
void plugin_credential_done(struct plugin_credential *credential); /* wipes */

/* Runs the program (never through a shell; blocks up to a minute) and reads its ExecCredential. */
int plugin_run(const struct exec_plugin *plugin, struct plugin_credential *ret_credential,
               struct err *err) must_check;

/* The ExecCredential itself, for plugin_run and tests. */
int plugin_parse(const char *text, size_t len, const char *api_version,
                 struct plugin_credential *ret_credential, struct err *err) must_check;
