#pragma once

#include <stdbool.h>

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR };

/* One line per event on stderr: logfmt on a terminal, JSON otherwise. Thread-safe, keeps errno,
 * escapes control bytes. Call log_setup once, before threads start. */
void log_setup(enum log_level minimum);

/* For a caller to whom the pairs cost something. */
bool log_shows(enum log_level level);

/* KEY, VALUE string pairs end with NULL: log_event(LOG_LEVEL_INFO, "sandbox ready", "id", id,
 * NULL). A value that is NULL is empty, one of more than 4096 bytes is cut. Never pass tokens,
 * environments or bodies. */
void log_event(enum log_level level, const char *message, ...) __attribute__((sentinel));

/* The same with one formatted detail under the key "detail". */
void log_detail(enum log_level level, const char *message, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
