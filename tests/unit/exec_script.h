#pragma once

#include "sandbox/exec.h"
#include "tests/unit/fake_domain.h"

/* Executions against a scripted agent: what tests of them say and expect. One domain at a time. */
extern struct fake_domain domain;
/* The store refuses to write an execution (linked with --wrap=store_put_exec). */
extern bool store_fails;

void exec_script_setup(void);
void exec_script_teardown(void);

struct exec_spec spec_of(const char *command);
struct exec *start(struct exec_spec *spec);
struct exec *start_command(const char *command);
struct json *record_of(int64_t number);
void check_text(const struct json *json, const char *path, const char *expected);
void check_null(const struct json *json, const char *name);
void check_int(const struct json *json, const char *name, int64_t expected);
uint32_t take_open(const char *id, bool join, struct frame *ret_frame);
void say_started(uint32_t channel, uint64_t stdin_done);
void say_output(uint32_t channel, int stream, uint64_t offset, const char *text);
void say_result(uint32_t channel, uint16_t tag, uint64_t value);
struct frame expect_in_time(uint32_t channel, enum frame_type type);
void expect_only_pings(void);
void expect_commit(uint32_t channel);
struct json *run_printing(const char *text, size_t len);
/* The whole life of number 1: it ends with TAG and CODE (NULL: no error). Its record; NULL when the
 * answer is a problem, with that CODE. */
struct json *run_to(uint16_t tag, uint64_t value, const char *code, bool timed_out);
/* exec_output of stdout. */
int read_range(int64_t number, uint64_t offset, int64_t length, struct buf *out,
               struct exec_reading *ret_reading, struct err *err);
