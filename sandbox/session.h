#pragma once

#include "sandbox/exec.h"

/* Shell sessions. One is an execution, whose number is its id: a shell that is kept and runs one
 * command text at a time, each an execution of its own (EXEC_TEXT). It ends when its shell does,
 * when it was idle for too long, and with its sandbox; not with its client, nor with the server. */
struct session_spec {
    char *shell; /* a name, or an absolute path */
    struct text_map env;
    char *workdir; /* NULL: the sandbox's */
    int64_t idle_ms;
};
void session_spec_done(struct session_spec *spec);

/* Takes what SPEC holds, also on failure. Ready when exec_begun() and not exec_ended(). As
 * exec_start(); ERR_SESSION_LIMIT, too. */
int session_start(struct sandbox *sandbox, struct session_spec *spec, struct exec **ret_exec,
                  struct err *err) must_check;
/* The command that runs TEXT in it, to be started; takes TEXT. ERR_NOT_FOUND. */
int session_text(struct sandbox *sandbox, int64_t number, char *text, struct exec_spec *spec,
                 struct err *err) must_check;
/* That it can take a text now: ERR_SESSION_ENDED, ERR_SESSION_BUSY. The agent looks again. */
int session_check(struct sandbox *sandbox, int64_t number, struct err *err) must_check;
/* Members of the record; UID names the sandbox, also a gone one. ERR_NOT_FOUND also for an
 * execution that is no session. */
int session_json(struct sandboxes *all, const char *uid, int64_t number, struct json **ret_json,
                 struct err *err) must_check;
/* One of UID's; its page of the list, newest first, below BEFORE (0: the first). */
int session_list_json(struct sandboxes *all, const struct exec_key *before, size_t limit,
                      struct json **ret_page, struct err *err) must_check;

/* Loop thread: the agent has said where its shell is (takes CWD; NULL: unknown), or that it has
 * ended. */
void session_moved(struct exec *session, char *cwd, bool ended);
