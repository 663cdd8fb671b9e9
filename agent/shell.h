#pragma once

#include "agent/supervisor.h"

/* The supervisor of a shell session (OP_SHELL): it keeps one shell and hands it the texts of
 * OP_SHELL_RUN one by one. Each text runs in the shell itself, with the descriptors that came with
 * its order as 0, 1 and 2; nothing of the protocol is in them.
 *
 * The shell is interactive, without a terminal, so that errors and an interrupt end a text and not
 * the shell. Its own input is a pipe of short lines, its own output is thrown away (prompts). A
 * line opens what it needs as /proc/<this process>/fd/N, so the shell holds no descriptor that a
 * text could close or write to; therefore this process, unlike the other supervisors, may be looked
 * at by processes of its user. It holds nothing that they do not have.
 *
 * What the shell says of a text's end is believed. A text that forges it deceives its own caller
 * alone; its death, its directory and its time are this process's own observation. */

/* Descriptors that come with an order to run, in this order. */
enum shell_run_fd { RUN_CONTROL, RUN_IN, RUN_OUT, RUN_ERR, RUN_TEXT, RUN_FDS };

/* Runs in the forked process. SPEC: args[0] is the shell, timeout_ms how long it may be idle. */
_Noreturn void shell_run(struct agent *agent, const struct exec_spec *spec);

/* Over CONTROL, the session's: an order with the descriptors of a text (-1 with errno), and one
 * with or (not RET_TEXT) without. Returns as recvmsg(). */
int shell_order_send(int control, const struct supervisor_order *order, const int fds[RUN_FDS]);
ssize_t shell_order_receive(int control, struct supervisor_order *ret_order, int ret_fds[RUN_FDS],
                            bool *ret_text);
