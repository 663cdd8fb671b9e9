#pragma once

#include "sandbox/exec.h"
#include "sandbox/sandboxes.h"

/* The body of POST …/execs. */
struct exec_wish {
    struct exec_spec spec;
    bool detach;
};
void exec_wish_done(struct exec_wish *wish);
/* PATIENT: the caller may be gone before the end (Prefer: wait), as with `detach`: unless he says
 * otherwise it lives on. What RET_WISH holds is the caller's to free, also on failure. */
int exec_body_parse(const struct json *json, const struct sandboxes_config *config, bool patient,
                    struct exec_wish *ret_wish, struct err *err) must_check;
/* The body of POST …/sessions/{s}/runs. RET_TEXT: its command, malloc'd. */
int exec_text_parse(const struct json *json, const struct sandboxes_config *config, bool patient,
                    struct exec_wish *ret_wish, char **ret_text, struct err *err) must_check;
