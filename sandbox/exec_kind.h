#pragma once

#include <stdint.h>

/* What an execution has to do with shell sessions (session.h). */
struct exec_kind {
    enum {
        EXEC_COMMAND, /* nothing */
        EXEC_SHELL,   /* a shell that is kept; timeout_ms is that of idleness */
        EXEC_TEXT,    /* the last of cmd, in the shell of `session` */
    } is;
    int64_t session;
};
