#pragma once

#include <stddef.h>

/* Calls ADD with every form in which VALUE is looked for: the value itself, and from 8 bytes on its
 * base64, hex, URL and JSON forms. An empty value has none. The same form may come twice. DATA is
 * borrowed for the call. */
void scrub_forms(const char *value, void (*add)(void *arg, const char *data, size_t len),
                 void *arg);
