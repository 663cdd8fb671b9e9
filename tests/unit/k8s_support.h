#pragma once

#include "base/json.h"
#include "tests/unit/temp_dir.h"

/* Single quotes in TEXT stand for double ones, so that JSON can be read in C. Parsed; the caller's.
 */
struct json *json_of(const char *text);

/* Compared as JSON, whatever the order of keys; says both on failure. */
void assert_json_eq(const struct json *is, const char *wanted);

/* Writes DIR/NAME anew by way of a rename; MODE as chmod. Returns its path, malloc'd. */
char *write_file(const struct temp_dir *dir, const char *name, const char *text, int mode);

/* Runs the suite of one case made of TESTS (NULL-terminated); the exit status for main(). */
struct TTest;
int run_tests(const char *name, const struct TTest *const *tests);
