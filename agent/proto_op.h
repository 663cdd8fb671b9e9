#pragma once

/* What a FRAME_OPEN asks for, its fields, and what comes back; included by agent/proto.h. "*" is a
 * field that may be there several times, "?" one that may be missing without a default. */
enum proto_op {
    /* EXEC_ID, ARG*, ENV*, WORKDIR, TIMEOUT_MS (0 none), GRACE_MS (TERM to KILL), STDIN (1: stream
     * 0 feeds it, else /dev/null), STDIN_TOTAL?, COLUMNS? and ROWS? (0, 1 and 2 are a terminal of
     * that size; there is no stream 2), KEEP (1: lives on without a server), JOIN (1: only if it is
     * there, else RESULT not_found), OFFSET_OUT, OFFSET_ERR (resume from here). An EXEC_ID that is
     * there is joined. STARTED: PID, JOINED, KEEP, STDIN_DONE (stored input bytes, stream 0 goes on
     * there), OFFSET_OUT and OFFSET_ERR (where the streams go on: as asked, or later when bytes are
     * gone; the first windows count from these three), COLUMNS? and ROWS? (of its terminal now).
     * RESULT: EXIT_CODE or SIGNAL (as the kernel says, also when TIMED_OUT), TIMED_OUT, OOM (0 no,
     * 1 yes, 2 unknown), WALL_US, CPU_US, MAX_RSS, TOTAL_OUT, TOTAL_ERR; ERROR command_not_found /
     * not_executable (with EXIT_CODE 127 / 126), workdir_not_found, timeout, exec_failed. END of
     * streams 1 and 2 comes before RESULT. */
    OP_EXEC = 1,
    /* PATH, OFFSET, LENGTH (absent: to the end). STARTED: the ENTRY's fields and ETAG. Then stream
     * 1, END, RESULT. ERROR file_not_found, is_directory, not_regular, permission_denied,
     * link_loop… */
    OP_READ = 2,
    /* PATH, MODE?, SIZE? (what will come), IF_MATCH?, IF_NONE_MATCH (1: must not exist). Stream 0,
     * END. RESULT: ETAG, SIZE, MODE, CREATED. */
    OP_WRITE = 3,
    OP_STAT = 4,   /* PATH → RESULT: the entry's fields, ETAG. Follows symlinks */
    OP_REMOVE = 5, /* PATH, RECURSIVE → RESULT. */
    /* PATH, DEPTH (0: no limit), FILES_ONLY (regular files, no .git at any depth), DETAILS (all but
     * .git at any depth, with ETAG and CTIME_NS, as if each directory's name ended in a slash).
     * Stream 1 carries, per entry, u32 length and fields PATH (relative to PATH; the file itself:
     * ""), TYPE, SIZE, MODE, MTIME_MS, LINK?. RESULT: ROOT (resolved absolute path). */
    OP_TREE = 6,
    OP_MOVE = 7, /* PATH, TO, OVERWRITE → RESULT: ETAG. Makes parents; else already_exists */
    OP_MODE = 8, /* PATH, MODE, IF_MATCH? → RESULT: ETAG */
    /* PATH, OLD, NEW, COUNT (expected, 0: any ≥ 1), IF_MATCH? → RESULT: ETAG, COUNT; or conflict
     * with COUNT, how often OLD is there. The file is at most 64 MiB (too_large). */
    OP_REPLACE = 9,
    OP_MKDIR = 10, /* PATH, MODE? → RESULT: CREATED */
    /* PORT, TIMEOUT_MS, FORWARD → RESULT: READY. Waits until something listens on PORT; if only on
     * loopback and FORWARD, listens on the other addresses and forwards (RESULT: FORWARD 1) until
     * PORT_CLOSE or another PORT_WAIT for it. READY 0: the time is over. CANCEL ends the wait. */
    OP_PORT_WAIT = 11,
    OP_PORT_CLOSE = 12, /* PORT: ends the forwarding → RESULT */
    OP_USAGE = 13, /* RESULT: MEMORY, CPU_US, PIDS, OOM_KILLS of the sandbox's cgroup, DISK of the
                      workdir */
    /* PORT, TIMEOUT_MS → STARTED when connected to it (127.0.0.1, ::1, then the other addresses);
     * stream 0 to the program, stream 1 from it, END of either is a half close. RESULT after both.
     * ERROR port_closed (nobody listens), timeout, service_failed (broken meanwhile). Bytes may be
     * sent before STARTED. */
    OP_DIAL = 14,
    /* EXEC_ID (each known one) with PID of its supervisor, from PID 1 to the process that serves
     * it; nothing from the server. Stream 1 carries, per entry, u32 length and fields: TYPE "p"
     * PID, PPID, EXEC_ID?, STATE, CPU_US, MEMORY, AGE_MS, NAME, ARG*, CUT (1: ARG* was longer); or
     * TYPE "l" (who listens) PORT, ADDRESS. A field that cannot be known is absent. RESULT: PORTS
     * (1: the listeners could be seen). */
    OP_PS = 15,
    /* EXEC_ID, SIGNAL with SCOPE → RESULT when it is on its way; ERROR conflict: it has ended. No
     * SIGNAL: TERM to the whole tree, KILL after GRACE_MS → RESULT when nothing of it is left, also
     * when there is no such exec (any more). */
    OP_KILL = 16,
    /* PATH → STARTED when it can be read: TYPE. Stream 1 carries what is below it, or the file
     * itself, as agent/entries.h says; no symlink is followed, but for PATH itself. RESULT. */
    OP_PACK = 20,
    /* PATH (a directory, made where it is missing). Stream 0 carries entries as agent/entries.h
     * says, which are made below PATH without following a symlink. RESULT, also with an ERROR:
     * FILES, DIRECTORIES, LINKS, SIZE (bytes), what was made. */
    OP_UNPACK = 21,
    /* PATH, RECURSIVE → STARTED when it is watched. Stream 1 carries, per event, u32 length and
     * fields: TYPE (created, modified, deleted, moved, attrib, overflow: some are lost, or what is
     * below PATH is not watched, heartbeat: nothing for 10 s), PATH (from the root), FROM (of a
     * move), DIRECTORY. Until CANCEL, or until PATH is gone: ERROR file_not_found. ERROR too_many:
     * there are PROTO_WATCHES already. */
    OP_WATCH = 22,
    /* As OP_EXEC, but ARG is a shell (a name or a path) that is kept as a session, and TIMEOUT_MS
     * is how long it may be without a text to run. STARTED when it answers, with CWD, where it is.
     */
    OP_SHELL = 30,
    /* As OP_EXEC, but what runs is the last ARG, as a text, in the shell of SESSION, an EXEC_ID. No
     * ENV, no WORKDIR. RESULT: also CWD, where the shell is then, and SHELL_ENDED (1: it has ended,
     * and the session). ERROR session_busy, session_ended. An interrupt goes to the shell too, all
     * other signals only to what the text has started. */
    OP_SHELL_RUN = 31,
};

enum proto_scope {
    SCOPE_GROUP = 0,   /* the process group of the main process */
    SCOPE_PROCESS = 1, /* that one alone */
    SCOPE_TREE = 2,    /* all below it, whatever their sessions */
};
