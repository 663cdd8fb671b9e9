#pragma once

#include "base/err.h"

/* The path of podsandbox-agent, malloc'd: CONFIGURED when that is not NULL, else found near our own
 * program. DRIVER is for the message. NULL and ERR_CONFIG. */
char *agent_program_find(const char *configured, const char *driver, struct err *err);
