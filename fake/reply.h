#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"

/* How a command that was never run ends: prepared by a test, or told by a callback. Constant once
 * made, shared by reference. */
struct fake_reply {
    _Atomic unsigned refs;
    int exit_code; /* without a signal and a failure */
    int signal;    /* 0: none */
    bool oom_killed;
    int64_t delay_ms;
    char *out[2]; /* stdout, stderr */
    size_t out_len[2];
    enum err_code failure; /* ERR_NONE: none */
    char *message;         /* of the failure */
};

/* PATH is the name of VALUE in messages. */
int fake_reply_parse(const struct json *value, const char *path, struct fake_reply **ret_reply,
                     struct err *err) must_check;
/* Exit 0 and no output, or this failure. */
struct fake_reply *fake_reply_new(enum err_code failure, const char *message);
struct fake_reply *fake_reply_ref(struct fake_reply *reply);
void fake_reply_unref(struct fake_reply *reply); /* NULL is allowed */
