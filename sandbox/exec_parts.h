#pragma once

#include "sandbox/exec_data.h"

/* What the files of an exec do for each other:
 *
 * exec.c        the front door: start, join, leave, feed, kill
 * exec_once.c   one for all requests with the same key (exec_once.h)
 * exec_stream.c the loop thread's side: the channel, input, the result
 * exec_append.c output on its way into the journals
 * exec_finish.c the result into the store, on a worker
 * exec_adopt.c  executions of before: a restarted server's, or found in an agent
 * exec_readers.c readers whose pace is the command's
 * exec_output.c reading the journals, masked (exec_output.h, exec_piece.h)
 * exec_text.c   output as text in a record
 * follow.c      output as it comes (follow.h), in pieces (exec_chunk.h), as events
 * attachment*.c who is attached (attachment.h): his seat and his input, what he is told
 * exec_scrub.c  masking of what was written down before a secret was known
 * exec_json.c   records as JSON; finding executions (exec_lookup.h) */

/* --- exec.c --- */
struct exec *exec_new(struct sandbox *sandbox, int64_t number); /* one reference */
/* Into sandbox->execs, which holds a reference. Takes nothing: all->lock is held. */
void exec_list_locked(struct exec *exec);
void exec_unlist(struct exec *exec); /* no-op when it is not in the list */
/* All in the list, referenced; malloc'd. Takes all->lock. */
struct exec **exec_snapshot(struct sandbox *sandbox, size_t *ret_count);
void exec_pending_done(struct exec *exec);
/* As exec_start; KEY (may be NULL) is claimed for its number. Under all->intents then. */
int exec_start_keyed(struct sandbox *sandbox, struct exec_spec *spec, struct idempotency_row *key,
                     struct exec **ret_exec, struct err *err) must_check;
void exec_not_running(struct exec *exec); /* no longer counted in sandbox->running_execs */

/* --- exec_stream.c; loop thread --- */
void exec_attach(struct exec *exec);
/* The end, as the agent told it or as this server found it. Takes FACTS. */
void exec_conclude(struct exec *exec, struct exec_facts *facts);
void exec_conclude_error(struct exec *exec, enum err_code code, const char *message);
void exec_start_grace(struct exec *exec, int64_t after_ms);
/* WHY becomes its error, unless it ends with one of its own; NULL: a caller wanted it. */
void exec_kill_now(struct exec *exec, int64_t grace_ms, const char *why);
void exec_pump(struct exec *exec);
extern const struct feed_owner_ops exec_feed_ops;
/* After exec_save. SAVED: the store has the result. */
void exec_settle(struct exec *exec, bool saved);

/* --- exec_finish.c --- */
/* Loop thread: the result is known. Takes FACTS. Who waits is answered from memory, before the
 * store has it: the agent keeps it until COMMIT, so that it is not lost with this server. */
void exec_end(struct exec *exec, struct exec_facts *facts);
void exec_save(struct exec *exec); /* on a worker: stores the result, then exec_settle */
void exec_put_ranges(struct json *json, const char *name, const struct ranges *ranges);
/* A copy with what came from the caller masked; KEPT: it lives on without a client, whatever SPEC
 * says. */
struct json *exec_masked_spec(const struct json *spec, const struct scrubber *scrubber, bool kept);
bool exec_kept(struct exec *exec);
/* The row as it is now, into the store. */
int exec_store(struct exec *exec, struct err *err) must_check;
void exec_facts_free(struct exec_facts *facts);
struct exec_moment { /* what goes with facts that were read */
    bool running, lost;
    int64_t ended;
};
struct json *exec_facts_json(struct exec *exec, struct exec_moment *ret_moment);

/* --- exec_adopt.c --- */
bool exec_only_agent_knows(const struct exec *exec);
/* Executions that the agent knows: those not in memory are looked up, on a worker. */
void exec_adopt_known(struct sandbox *sandbox, const struct link_hello *hello,
                      struct exec *const *execs, size_t count);

/* --- exec_append.c; loop thread --- */
/* Before the record is stored: no journals of another life of the number are there. */
int exec_begin_journals(struct exec *exec, struct err *err) must_check;
/* Appends and masks; opens the journal. After an error the same may be tried again. */
int exec_append(struct exec *exec, int stream, uint64_t offset, const void *data, size_t len,
                struct err *err) must_check;
/* The agent says that the stream has TOTAL bytes: those not received are lost. */
int exec_lost_up_to(struct exec *exec, int stream, uint64_t total, struct err *err) must_check;
/* Where the stream goes on; opens the journal if there is a file. */
int exec_received(struct exec *exec, int stream, uint64_t *ret_offset, struct err *err) must_check;
/* The journal of a stream, opened the first time; any thread. */
int exec_journal(struct exec *exec, int stream, struct journal **ret_journal,
                 struct err *err) must_check;
int exec_journal_open(struct sandboxes *all, const char *uid, int64_t number, int stream,
                      struct journal **ret_journal, struct err *err) must_check;

/* --- exec_readers.c --- */
/* The reader is its owner's, who removes it; he holds the exec. */
void exec_reader_add(struct exec *exec, struct exec_reader *reader);
void exec_reader_move(struct exec *exec, struct exec_reader *reader, const uint64_t at[2]);
bool exec_reader_slow(struct exec *exec, const struct exec_reader *reader);
void exec_reader_remove(struct exec *exec, struct exec_reader *reader);
/* Loop thread: the agent gets room for what is in the journals, as far as readers allow. */
void exec_credit(struct exec *exec);
void exec_readers_stop(struct exec *exec);
